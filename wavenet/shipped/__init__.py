"""Recordings and trained teachers that are shipped with the package."""

from pathlib import Path


def recordings_folder() -> Path:
    """Return the shipped recordings (`train/`, `dev/`): one woman, US English, 24 kHz, CC0."""
    return Path(__file__).resolve().parent / "kathleen"
