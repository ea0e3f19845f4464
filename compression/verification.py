"""Decoding once more, by nearly equal outputs, before a file is handed over."""

from collections.abc import Callable

import numpy as np

from replicator.runs.errors import UserError

# Steps of a network that take a few seconds: without being asked, no more are made to verify.
CHEAP_STEPS = 20_000
SHARE = 0.5  # of the tolerance; the rest is for what differs already between the two networks

Moved = Callable[[np.ndarray], np.ndarray]


def moved_by(tolerance: float) -> Moved:
    """Return a function that moves outputs up or down at random by half a relative tolerance."""
    draws = np.random.default_rng(0)

    def moved(outputs: np.ndarray) -> np.ndarray:
        return outputs * (1.0 + SHARE * tolerance * draws.choice([-1.0, 1.0], outputs.shape))

    return moved


def verify(decode: Callable[[], object], tolerance: float) -> None:
    """Raise UserError unless a file can be decoded.

    Args:
      decode: decodes the file and checks the elements, by moved outputs.
      tolerance: of the file, for the message.
    """
    try:
        decode()
    except UserError as error:
        raise UserError(
            f"The file could not be decoded again, and is not written: the network's cached or"
            f" repeated outputs differ by more than half of `tolerance`, {tolerance:g}; pass a"
            f" larger one, up to 0.001."
        ) from error
