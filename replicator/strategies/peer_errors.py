"""TensorFlow errors of a lost peer, another process of the same run that has ended."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from replicator.runs.errors import FAILURE, UserError
from replicator.strategies.base import Replicator

PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)
# These may also come from a local device, unless their message is about communication.
_AMBIGUOUS = (tf.errors.InternalError, tf.errors.FailedPreconditionError)
_COMMUNICATION = re.compile(
    r"aborted by|collective|incarnation|RecvBuf|rendezvous|connect|socket|heartbeat|coordination",
    re.IGNORECASE,
)


class PeerLostError(UserError):
    """An error of another process that has ended, or did not answer in time."""

    exit_status = FAILURE


def runs_in_lockstep(replicator: Replicator) -> bool:
    """Return whether several processes run every step together."""
    return replicator.num_workers > 1 and not replicator.is_async


@contextlib.contextmanager
def explaining_peer_errors(replicator: Replicator) -> Iterator[None]:
    """Raise TensorFlow's errors about a lost peer as PeerLostError."""
    try:
        yield
    except PEER_ERRORS as error:
        if not runs_in_lockstep(replicator) or not is_about_peers(error):
            raise
        slow = isinstance(error, tf.errors.DeadlineExceededError)
        longer = "; --strategy multi_worker:SECONDS sets the time limit" if slow else ""
        raise PeerLostError(
            f"Another process of this run is gone or does not answer ({_reason(error)}){longer}."
        ) from error


def is_about_peers(error: tf.errors.OpError) -> bool:
    """Return whether one of PEER_ERRORS is about another process and not about a local device."""
    return not isinstance(error, _AMBIGUOUS) or bool(_COMMUNICATION.search(str(error.message)))


def _reason(error: tf.errors.OpError) -> str:
    """Return the start of TensorFlow's message without the location in the graph."""
    kind = type(error).__name__.removesuffix("Error")
    text = str(error.message)
    cause = re.search(r"aborted by: (.*)", text)
    if cause is None and text.startswith("Graph execution error"):
        return kind
    line = " ".join((cause.group(1) if cause else text).split("\n")[0].split())
    return f"{kind}: {line.split('. ')[0][:160].rstrip(' :')}"
