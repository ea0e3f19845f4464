"""Checks of frames that clients send against the convention of the model's training data."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from serving.errors import InvalidInput
from wavenet.features.conventions import MelConvention
from wavenet.features.frame_statistics import stored_statistics, unlike


def check_convention(spec: Mapping[str, Any], frames: np.ndarray) -> None:
    """Raise InvalidInput for frames that do not look like the model's training data.

    Args:
      spec: the model's model.json; older ones without statistics of frames are not checked.
      frames: float [frames, channels], those of the mel first.
    """
    trained, stored = stored_statistics(spec), (spec.get("features") or {}).get("mel")
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
    """Check the first `num_frames` of the `frames` of each row."""
    for frames, count in zip(inputs.get("frames", ()), inputs.get("num_frames", ()), strict=False):
        check_convention(spec, frames[:count])
