"""Video prediction: sampling of the next frames, one after another, given actions and states."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from onepass.draw import Draw
from onepass.foundation.errors import UserError
from onepass.trained import Trained
from pixelcnn.density import temperatures_of

FRAME_ROWS = 65536  # number of noise rows that are reserved for a video, one per frame
Temperature = float | tuple[float, ...]
Steps = tuple[np.ndarray, np.ndarray]


def predict(
    model: Trained,
    frames: np.ndarray,
    actions: np.ndarray,
    states: np.ndarray,
    *,
    seed: int = 0,
    row: int = 0,
    temperature: Temperature = 1.0,
) -> Iterator[np.ndarray]:
    """Yield the frames that follow the given ones, uint8 [size, size, channels] each.

    Args:
      actions: unnormalised actions, float32 [steps, A], starting at the first frame; steps + 1 -
        len(frames) frames are predicted.
      states: unnormalised states at the same steps, float32 [steps, S].
    """
    conditioning = model.config.conditioning
    if conditioning.kind != "video" or model.front.statistics is None:
        raise UserError("The model draws images, not the next frame of a video.")
    widths = (conditioning.action_channels, conditioning.state_channels)
    if (actions.shape[-1], states.shape[-1]) != widths:
        raise UserError(
            f"An action has {widths[0]} numbers and a state {widths[1]}, "
            f"got {actions.shape[-1]} and {states.shape[-1]}."
        )
    context = conditioning.context_frames
    if len(frames) < context or len(actions) != len(states) or len(actions) < len(frames):
        raise UserError(
            f"There must be at least {context} frames, and an action and a state for each."
        )
    scales = 1 if model.network.multiscale is None else len(model.network.multiscale.sizes)
    temperatures_of(temperature, scales)
    steps = (model.front.statistics.actions(actions), model.front.statistics.states(states))
    asked = Draw(1, model.front.size, seed, row=FRAME_ROWS * row, temperature=temperature)
    return _following(model, frames, steps, asked)


def _following(
    model: Trained, frames: np.ndarray, steps: Steps, asked: Draw
) -> Iterator[np.ndarray]:
    moves, places = steps
    context = model.config.conditioning.context_frames
    past = [np.asarray(frame) for frame in frames]
    for t in range(len(frames), len(moves) + 1):
        condition = {
            "past": np.stack(past[-context:])[None].astype(np.int32),
            "action": moves[None, t - context : t],
            "state": places[None, t - context : t],
        }
        # The frame's index is added to the row, so that no two frames share noise.
        frame = dataclasses.replace(asked, row=asked.row + t, condition=condition)
        past.append(next(model.model.images(frame))[-1])
        yield past[-1]
