"""Video prediction: the next frames, sampled one after another from actions and states."""

from collections.abc import Iterator

import numpy as np

from foundation.errors import UserError
from pixelcnn.model import ImageModel
from pixelcnn.sampling.generation import Request
from pixelcnn.sampling.multiscale_sampler import temperatures_of

FRAME_ROWS = 65536  # rows of the noise that a video may use, one a frame
Temperature = float | tuple[float, ...]
Steps = tuple[np.ndarray, np.ndarray]


def predict(
    model: ImageModel,
    frames: np.ndarray,
    actions: np.ndarray,
    states: np.ndarray,
    *,
    seed: int = 0,
    row: int = 0,
    temperature: Temperature = 1.0,
) -> Iterator[np.ndarray]:
    """Yield the frames that follow the given ones, uint8 [size, size, channels], as they are drawn.

    Args:
      model: a model of video.
      frames: uint8 [context or more, size, size, channels]; prediction continues after the last.
      actions: float32 [steps, A], unnormalised, of every step starting at the first frame's; a
        frame is drawn for each step after the given frames', and one more after the last.
      states: float32 [steps, S], unnormalised, of the same steps as `actions`.
      seed: the noise's seed, an integer in [0, 2^64).
      row: index of the video under the seed; every frame of it has its own noise.
      temperature: 1 for the model's own distribution, or one number per scale.

    Raises:
      UserError: the model is not a model of video, or has different numbers of actions or states;
        raised at the call, before the first frame.
    """
    conditioning = model.config.conditioning
    if conditioning.kind != "video" or model.statistics is None:
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
    scales = 1 if model.multiscale is None else len(model.multiscale.sizes)
    temperatures_of(temperature, scales)
    steps = (model.statistics.actions(actions), model.statistics.states(states))
    return _following(model, frames, steps, (seed, FRAME_ROWS * row, temperature))


def _following(
    model: ImageModel, frames: np.ndarray, steps: Steps, draw: tuple[int, int, Temperature]
) -> Iterator[np.ndarray]:
    """Yield the next frames; `draw` is the seed, the row of frame 0, the temperature."""
    (moves, places), (seed, first_row, temperature) = steps, draw
    context = model.config.conditioning.context_frames
    past = [np.asarray(frame) for frame in frames]
    for t in range(len(frames), len(moves) + 1):
        condition = {
            "past": np.stack(past[-context:])[None].astype(np.int32),
            "action": moves[None, t - context : t],
            "state": places[None, t - context : t],
        }
        # A frame's number joins the row's, so that no two frames share noise.
        request = Request((first_row + t,), seed, model.size, condition, temperature)
        past.append(next(model.sampler.images(request))[-1])
        yield past[-1]
