"""Recordings and trained teachers that are shipped with the package."""

from pathlib import Path


def recordings_folder() -> Path:
    """Return the folder of the shipped recordings, with sub-folders `train/` and `dev/`.

    They contain one woman speaking US English, at 24 kHz, under CC0.
    """
    return Path(__file__).resolve().parent / "kathleen"
