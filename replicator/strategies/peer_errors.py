"""Errors of TensorFlow that mean a lost peer: another process of the same run has ended."""

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
# Errors of one's own device, too, unless their message is about communication.
_AMBIGUOUS = (tf.errors.InternalError, tf.errors.FailedPreconditionError)
_COMMUNICATION = re.compile(
    r"aborted by|collective|incarnation|RecvBuf|rendezvous|connect|socket|heartbeat|coordination",
    re.IGNORECASE,
)


class PeerLostError(UserError):
    """Another process of the run has ended, or did not answer in time."""

    exit_status = FAILURE


def runs_in_lockstep(replicator: Replicator) -> bool:
    """Whether several processes make every step together."""
    return replicator.num_workers > 1 and not replicator.is_async


@contextlib.contextmanager
def explaining_peer_errors(replicator: Replicator) -> Iterator[None]:
    """A context in which TensorFlow's errors about a lost peer are raised as PeerLostError."""
    try:
        yield
    except PEER_ERRORS as error:
        if not runs_in_lockstep(replicator) or not is_about_peers(error):
            raise
        slow = isinstance(error, tf.errors.DeadlineExceededError)
        longer = "; --strategy multi_worker:SECONDS waits longer for a slow one" if slow else ""
        raise PeerLostError(
            f"Another process of this run is gone or does not answer ({_reason(error)}){longer}."
        ) from error


def is_about_peers(error: tf.errors.OpError) -> bool:
    """Whether one of PEER_ERRORS is about another process, and not about a device of this one."""
    return not isinstance(error, _AMBIGUOUS) or bool(_COMMUNICATION.search(str(error.message)))


def _reason(error: tf.errors.OpError) -> str:
    """The first words of TensorFlow's message, without the place in the graph."""
    kind = type(error).__name__.removesuffix("Error")
    text = str(error.message)
    cause = re.search(r"aborted by: (.*)", text)
    if cause is None and text.startswith("Graph execution error"):
        return kind
    line = " ".join((cause.group(1) if cause else text).split("\n")[0].split())
    return f"{kind}: {line.split('. ')[0][:160].rstrip(' :')}"
