"""Frames that are computed while they are read, so that hours of audio take little memory."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

KEPT_FRAMES = 4096  # frames to keep before the latest slice, since refinement reads with a delay


class FramesInPieces:
    """Frames [frames, channels] that are computed while they are read by slicing.

    Only the latest frames are kept in memory. Reading an earlier frame starts the computation again
    from the beginning. `gain_db` is undone in waveforms generated from the frames.
    """

    ndim = 2

    def __init__(
        self, shape: tuple[int, int], pieces: Callable[[], Iterator[np.ndarray]], gain_db: float
    ) -> None:
        """Initialise the frames with a function that yields them in pieces, in order."""
        self.shape, self.gain_db = shape, gain_db
        self._pieces = pieces
        self._begin()

    def __len__(self) -> int:
        """Return the number of frames."""
        return self.shape[0]

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the frames in a slice, float32 [frames, channels]."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"`part` must be a slice of step 1, got {part}.")
        if start < self._first:
            self._begin()
        while self._first + len(self._held) < stop:
            self._read(start)
        return self._held[start - self._first : max(start, stop) - self._first]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Return all frames as one array in memory."""
        return np.asarray(np.concatenate(list(self._pieces())), dtype)

    def _begin(self) -> None:
        self._coming = self._pieces()
        self._held, self._first = np.zeros((0, self.shape[1]), np.float32), 0

    def _read(self, start: int) -> None:
        surplus = max(0, min(start - KEPT_FRAMES - self._first, len(self._held)))
        self._held = np.concatenate([self._held[surplus:], next(self._coming)])
        self._first += surplus


class MappedFrames:
    """Frames in pieces with a function applied to each slice [frames, channels]."""

    def __init__(
        self, frames: FramesInPieces, function: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._frames, self._function = frames, function

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the function's result for the frames in a slice."""
        return self._function(self._frames[part])


class RepeatedFrames:
    """The same frames for every row of a batch, with shape [batch, frames, channels]."""

    def __init__(self, frames: FramesInPieces, rows: int) -> None:
        self.shape = (rows, *frames.shape)
        self._frames = frames

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        """Return the frames in a slice of rows and a slice of frames, float32."""
        rows, part = place
        repeated = np.repeat(self._frames[part][None], self.shape[0], 0)
        return repeated[rows]
