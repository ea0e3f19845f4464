"""Frames of recordings, and checks of the frames that clients send."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.foundation.stored_config import dataclass_from
from wavenet.config import DataConfig
from wavenet.data.recorded_level import level_of
from wavenet.features.conventions import MelConvention, read_statistics, unlike
from wavenet.front import SoundFront


def front_of(spec: Mapping[str, Any]) -> SoundFront:
    """Return the front of the model that a bundle's model.json describes."""
    data = dataclass_from(DataConfig, spec["config"]["data"])
    speakers, level_db = tuple(spec["speakers"]), level_of(spec)
    return SoundFront(data, spec["hop_samples"], spec["gain_db"], speakers, level_db)


def check_convention(spec: Mapping[str, Any], frames: np.ndarray) -> None:
    """Raise InvalidInput if frames [frames, channels] are unlike those of the training data.

    Nothing is checked for a model without mel frames or, as in older bundles, their statistics.
    """
    trained, stored = read_statistics(spec), (spec.get("features") or {}).get("mel")
    if trained is None or not stored or not frames.size:
        return
    mel = MelConvention.from_dict(stored)
    why = unlike(frames[:, : mel.bands], trained, mel)
    if why:
        raise InvalidInput(
            f"`frames` are of another convention: {why}; as 1 - mel / {mel.silence:.3f}. Use "
            "`force` to speak them anyway."
        )


def check_rows(spec: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> None:
    """Apply `check_convention` to each row's first `num_frames` of the input `frames`."""
    for frames, count in zip(inputs.get("frames", ()), inputs.get("num_frames", ()), strict=False):
        check_convention(spec, frames[:count])
