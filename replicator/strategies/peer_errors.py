"""What becomes of an error that comes of a missing process of the same run."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from replicator.runs.errors import UserError
from replicator.strategies.base import Replicator

GONE = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)


class PeerGoneError(UserError):
    """Another process of the run stopped, or could not be reached in time."""


def together(replicator: Replicator) -> bool:
    """Whether several processes run the same loop, step by step."""
    return replicator.num_workers > 1 and not replicator.is_async


@contextlib.contextmanager
def peers_needed(replicator: Replicator) -> Iterator[None]:
    """A context in which errors that come of a missing peer are raised as PeerGoneError."""
    try:
        yield
    except GONE as error:
        if not together(replicator):
            raise
        raise PeerGoneError(
            f"Another process of this run is gone or does not answer ({_reason(error)})."
        ) from error


def _reason(error: tf.errors.OpError) -> str:
    """What TensorFlow says, in a few words, without where in a graph it happened."""
    kind = type(error).__name__.removesuffix("Error")
    text = str(error.message)
    cause = re.search(r"aborted by: (.*)", text)
    if cause is None and text.startswith("Graph execution error"):
        return kind
    line = " ".join((cause.group(1) if cause else text).split("\n")[0].split())
    return f"{kind}: {line.split('. ')[0][:160].rstrip(' :')}"
