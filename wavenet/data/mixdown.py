"""Mixdown of channels to one: their mean, unless they cancel each other."""

import numpy as np

CANCELLED = 0.1  # of the power that the mean of channels without relation would have


class Mixdown:
    """The mean of the channels, block by block, and whether they cancel each other in it.

    Channels cancel where one is another one negated: their mean is silent though neither is.
    """

    def __init__(self, channels: int):
        self._blocks: list[np.ndarray] = []
        self._powers = np.zeros(channels)

    def add(self, block: np.ndarray) -> None:
        """Add a block [samples, channels]."""
        with np.errstate(over="ignore", invalid="ignore"):  # infinities, which the reader refuses
            self._blocks.append(block.mean(axis=1, dtype=np.float32))
            self._powers += np.square(block, dtype=np.float64).sum(0)

    @property
    def waveform(self) -> np.ndarray:
        """The mean of the channels, float32 [samples]."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.float32)

    @property
    def loudest(self) -> int:
        """Index of the channel of the greatest power."""
        return int(np.argmax(self._powers))

    @property
    def cancels(self) -> bool:
        """Whether the mean has lost nearly all power of the channels."""
        mixed = sum(float(np.square(block, dtype=np.float64).sum()) for block in self._blocks)
        return bool(mixed < CANCELLED * self._powers.sum() / self._powers.size**2)
