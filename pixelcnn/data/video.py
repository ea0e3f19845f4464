"""Video episodes of a robot or a game: frames with actions and states."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np

from onepass.foundation.files import count_noun
from onepass.foundation.rules import UserError
from pixelcnn.config import ImageRules
from pixelcnn.data.batch_sampling import Arrays, cyclic_shuffle
from pixelcnn.data.image_file import fit_levels
from pixelcnn.data.sources import SPLITS, DataError, check_array, pair, read_arrays

KEYS = ("frames", "actions", "states")
LEAST_STD = 1e-6  # channels with a lower standard deviation are only centred


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Means and standard deviations of actions [A] and states [S] in the train split, float32."""

    action_mean: np.ndarray
    action_std: np.ndarray
    state_mean: np.ndarray
    state_std: np.ndarray

    def to_dict(self) -> dict[str, list[float]]:
        """Return the statistics as lists by name, for a JSON file."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_dict(cls, stored: dict[str, list[float]]) -> "Statistics":
        """Return the statistics from a result of `to_dict`."""
        return cls(**{name: np.asarray(values, np.float32) for name, values in stored.items()})

    def actions(self, raw: np.ndarray) -> np.ndarray:
        """Normalise actions, float32 [..., A]."""
        return ((raw - self.action_mean) / self.action_std).astype(np.float32)

    def states(self, raw: np.ndarray) -> np.ndarray:
        """Normalise states, float32 [..., S]."""
        return ((raw - self.state_mean) / self.state_std).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Episodes:
    """The clips of a split; a clip is one camera view of an episode, clip i of episode i // views.

    Frames are uint8 [clips, steps, height, width, channels]; actions and states, equal for all
    clips of an episode, are normalised, float32 [clips, steps, ...].
    """

    frames: np.ndarray
    actions: np.ndarray
    states: np.ndarray
    views: int

    @property
    def stored(self) -> Arrays:
        """The arrays that `batch_sampling.moments` reads."""
        return {"frames": self.frames, "actions": self.actions, "states": self.states}


@dataclasses.dataclass(frozen=True)
class Video:
    """The `Episodes` of "train" and "dev", their normalisation, and notes to print."""

    splits: dict[str, Episodes]
    statistics: Statistics
    notes: tuple[str, ...]
    classes: ClassVar[tuple[str, ...]] = ()
    found: ClassVar[None] = None  # not counted, since dev is a separate file


def _check_episodes(path: Path) -> Arrays:
    arrays = read_arrays(path, KEYS)
    frames = check_array(path, arrays, "frames", "uint8", (None, None, None, None, None, 3))
    for key in ("actions", "states"):
        shape = (len(frames), frames.shape[2], None)
        if not np.all(np.isfinite(check_array(path, arrays, key, "floats", shape))):
            raise DataError(path, f"`{key}` has a value that is not finite.")
    return arrays


def _check_alike(files: tuple[Path, Path], of: dict[str, Arrays]) -> None:
    for key, first_axis in {"frames": 3, "actions": 2, "states": 2}.items():
        ends = [list(arrays[key].shape[first_axis:]) for arrays in of.values()]
        if ends[0] != ends[1]:
            raise DataError(
                f"{files[0]} and {files[1]}", f"`{key}` end in {ends[0]} and {ends[1]}."
            )


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    std = flat.std(axis=0)
    moving = np.where(std < LEAST_STD, 1.0, std)
    return flat.mean(axis=0).astype(np.float32), moving.astype(np.float32)


def _episodes(arrays: Arrays, statistics: Statistics, rules: ImageRules | None) -> Episodes:
    frames, views = arrays["frames"], arrays["frames"].shape[1]
    clips = frames.reshape(-1, *frames.shape[2:])
    if rules is not None:
        flat = clips.reshape(-1, *clips.shape[-3:])
        small = np.stack([fit_levels(frame, rules) for frame in flat])
        clips = small.reshape(*clips.shape[:2], *small.shape[1:])
    actions, states = statistics.actions(arrays["actions"]), statistics.states(arrays["states"])
    return Episodes(
        clips, np.repeat(actions, views, axis=0), np.repeat(states, views, axis=0), views
    )


def _note(split: str, episodes: Episodes) -> str:
    clips, steps, height, width, channels = episodes.frames.shape
    many, views = count_noun(clips // episodes.views, "episode"), count_noun(episodes.views, "view")
    size = f"{count_noun(steps, 'step')} of {width}x{height}, {count_noun(channels, 'channel')}"
    return f"{split}: {many} in {views}, {size}"


def read_episodes(
    path: Path | str, rules: ImageRules | None = None, statistics: Statistics | None = None
) -> Video:
    """Read the episodes of a folder with one `*_train.npz` and one `*_dev.npz`.

    Each file has `frames` uint8 [episode, view, step, height, width, 3], `actions` float [episode,
    step, A] and `states` float [episode, step, S]. `statistics` are the normalisation of a trained
    model; None: computed from train.
    """
    folder = Path(path)
    files = pair(folder) if folder.is_dir() else None
    if files is None:
        raise DataError(folder, "no folder with a *_train.npz and a *_dev.npz.")
    of = {split: _check_episodes(file) for split, file in zip(SPLITS, files, strict=True)}
    _check_alike(files, of)
    height, width = of["train"]["frames"].shape[3:5]
    if rules and min(height, width) < rules.size:
        wanted = f"{rules.size}x{rules.size}"
        raise DataError(folder, f"its frames are {width}x{height}, smaller than {wanted}.")
    if statistics is None:
        action_mean, action_std = _moments(of["train"]["actions"])
        state_mean, state_std = _moments(of["train"]["states"])
        statistics = Statistics(action_mean, action_std, state_mean, state_std)
    for key, mean in {"actions": statistics.action_mean, "states": statistics.state_mean}.items():
        count = of["train"][key].shape[-1]
        if count != len(mean):
            problem = f"`{key}` have {count} numbers, the model knows {len(mean)}."
            raise DataError(folder, problem)
    splits = {split: _episodes(arrays, statistics, rules) for split, arrays in of.items()}
    return Video(
        splits, statistics, tuple(_note(split, episodes) for split, episodes in splits.items())
    )


def others(episodes: Episodes, context: int, seed: int) -> np.ndarray:
    """Return, for each example, the index of an example of the same view at a different moment.

    All views of a moment share its action, so the moments, steps of an episode, are permuted.
    """
    choices, views = episodes.frames.shape[1] - context, episodes.views
    num_episodes = len(episodes.frames) // views
    if num_episodes * choices < 2:
        raise UserError("Evaluation with exchanged actions needs at least two moments, got 1.")
    shuffled = cyclic_shuffle(seed, num_episodes * choices).reshape(num_episodes, 1, choices)
    view = np.arange(views)[:, None]
    return ((shuffled // choices * views + view) * choices + shuffled % choices).reshape(-1)
