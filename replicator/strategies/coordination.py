"""How the processes of one run act as one: they meet, agree, and notice when one of them is gone.

The first of them, the chief, alone reads checkpoints, writes and speaks.
"""

import contextlib
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
from tensorflow.python.eager import context as tf_context  # barriers have no public name

from replicator.runs.errors import UserError
from replicator.strategies.base import Replicator
from replicator.strategies.peer_errors import GONE, peers_needed, together

PATIENCE_SECONDS = 24 * 3600.0  # at a meeting, while every peer is alive
CHECK_SECONDS, ANSWER_SECONDS, ATTEMPTS = 3.0, 5.0, 2
_numbers = itertools.count()


def meet(replicator: Replicator) -> None:
    """Returns once every process of the run has called it, however long that takes.

    Unlike a collective it has no time limit: it ends when a process is gone or does not answer.

    Raises:
      PeerGoneError: within about 20 seconds of that.
    """
    if not together(replicator):
        return
    errors: list[BaseException] = []
    name = f"meeting_{next(_numbers)}"
    waiting = threading.Thread(target=_wait, args=(name, errors), daemon=True)
    with peers_needed(replicator):
        waiting.start()
        while waiting.is_alive():
            waiting.join(CHECK_SECONDS)
            if waiting.is_alive():
                _check_peers()
        if errors:
            raise errors[0]


@contextlib.contextmanager
def chief_first(replicator: Replicator) -> Iterator[None]:
    """A context that the others enter when the chief has left it, and that all leave together.

    What the chief has prepared on disk is there for the others, where they share the disk.
    """
    if not replicator.is_chief:
        meet(replicator)
    yield
    if replicator.is_chief:
        meet(replicator)
    meet(replicator)


@contextlib.contextmanager
def placed(replicator: Replicator) -> Iterator[None]:
    """A context to make everything with variables in: the replicator's scope."""
    with peers_needed(replicator), replicator.scope():
        yield


def heard(replicator: Replicator, say: Callable[[str], None]) -> Callable[[str], None]:
    """What a process tells the person watching with: `say` for the chief, silence for others."""
    return say if replicator.is_chief else lambda line: None


def agree(replicator: Replicator, variables: Mapping[str, tf.Variable], identity: dict) -> None:
    """Gives the variables of every process the values that they have in the chief.

    Args:
      variables: made in the scope of `replicator`.
      identity: JSON-able, what must be the same in every process.

    Raises:
      UserError: it is not; PeerGoneError: a process is gone.
    """
    meet(replicator)
    if not together(replicator):
        return
    text = json.dumps(identity, sort_keys=True).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")

    def step(_):
        values = replicator.broadcast([tf.identity(v) for v in variables.values()])
        replicator.update(list(variables.values()), values)
        return replicator.all_gather(tf.constant(digest, tf.int64))

    rows = tf.data.Dataset.from_tensors(tf.zeros([replicator.num_replicas]))
    digests = replicator.compile(step)(iter(replicator.batches(rows))).numpy()
    local = replicator.num_replicas // replicator.num_workers
    others = [i // local for i, other in enumerate(digests) if other != digests[0]]
    if others:
        raise UserError(
            f"Worker {others[0]} was started with another configuration or other data than worker "
            "0; all processes of a run need the same options."
        )


class Wishes:
    """Lets the processes of a run stop after the same step, whichever of them was asked to.

    A wish travels with the metrics of the next step, as a float of each replica.

    Args:
      reasons: what there is to wish; the last of several is granted.
    """

    def __init__(self, reasons: Sequence[str], replicator: Replicator):
        self._reasons = reasons
        self._heard: str | None = None
        self.told: dict[str, tf.Variable] = {}
        if together(replicator):
            with placed(replicator):
                zeros = tf.zeros([len(reasons)])
                self.told["wishes"] = tf.Variable(zeros, trainable=False, name="wishes")

    def tell(self, wish: str | None) -> None:
        """Sets what this process wishes during the next step."""
        if self.told and wish is not None:
            self.told["wishes"].assign([float(reason == wish) for reason in self._reasons])

    def heard(self, metrics: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The metrics of a step without the wishes in it, which are noted."""
        if self.told:
            mean = metrics["wishes"].numpy()
            wished = [r for r, share in zip(self._reasons, mean, strict=True) if share > 0]
            self._heard = wished[-1] if wished else None
        return {name: value for name, value in metrics.items() if name not in self.told}

    def granted(self, own: str | None) -> str | None:
        """What all processes do now: what any has told, or, in a run of one process, its own."""
        return self._heard if self.told else own


def _wait(name: str, errors: list[BaseException]) -> None:
    try:
        tf_context.context().wait_at_barrier(name, int(PATIENCE_SECONDS * 1000))
    except Exception as error:  # handed to the thread that waits for this one
        errors.append(error)


def _check_peers() -> None:
    """Raises one of GONE for a peer that does not answer."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, own = resolver.cluster_spec(), (resolver.task_type, resolver.task_id)
    for job in cluster.jobs:
        for task in cluster.task_indices(job):
            if (job, task) != own:
                _check_peer(f"/job:{job}/replica:0/task:{task}")


def _check_peer(name: str) -> None:
    for attempt in range(ATTEMPTS):
        try:
            tf_context.context().check_collective_ops_peer_health(
                name, timeout_in_ms=int(ANSWER_SECONDS * 1000)
            )
            return
        except GONE:
            if attempt + 1 == ATTEMPTS:
                raise
