"""Synchronous replicas in several processes, which TF_CONFIG defines."""

import tensorflow as tf

from onepass.foundation.errors import UserError, first_line
from onepass.replicator.collectives.collective_order import compare_workers, digest
from onepass.replicator.launch.tf_config import Task, read_tf_config
from onepass.replicator.strategies.cluster_startup import interruptible_startup, wait_for_all
from onepass.replicator.strategies.synchronous import SynchronousReplicator


class MultiWorkerReplicator(SynchronousReplicator):
    """Synchronous replicas on the devices of all workers in TF_CONFIG."""

    def __init__(self, strategy: tf.distribute.Strategy, task: Task):
        super().__init__(
            "multi_worker",
            strategy,
            num_workers=task.num_workers,
            worker_index=task.worker_index,
        )
        # Traced before any step, because TensorFlow numbers collectives in the order of tracing,
        # and steps that differ between workers would change the numbers of these two functions.
        spec = tf.TensorSpec([None], tf.int32)
        self._gather_sums = tf.function(self._rows, autograph=False)
        self._gather_sums = self._gather_sums.get_concrete_function(spec)
        self._gather_texts = tf.function(self._rows, autograph=False)
        self._gather_texts = self._gather_texts.get_concrete_function(spec)

    def _rows(self, numbers: tf.Tensor) -> tf.Tensor:
        """Gather int32 [n] from each worker as int32 [workers, n]."""

        def replica(numbers: tf.Tensor) -> tf.Tensor:
            own_row = tf.range(self.num_replicas) == self._replica_id()
            rows = tf.where(own_row[:, tf.newaxis], tf.cast(numbers, tf.int64)[tf.newaxis], 0)
            return self._sum([rows])[0]

        gathered = self._strategy.run(replica, args=(numbers,))
        rows = self._strategy.experimental_local_results(gathered)[0]
        return tf.cast(rows[:: self.num_replicas // self.num_workers], tf.int32)

    def _compare_calls(self, calls: list[str]) -> None:
        sums = self._gather_sums(digest(calls))
        if tf.reduce_all(sums == sums[:1]):
            return
        text = "\n".join(calls).encode()
        sizes = self._gather_sums(tf.fill([8], len(text)))[:, 0]
        longest = int(tf.reduce_max(sizes))
        padded = tf.constant(list(text.ljust(longest)), tf.int32)
        rows = self._gather_texts(padded).numpy()
        compare_workers([bytes(row.tolist()).decode().rstrip() for row in rows])


def multi_worker(
    timeout_seconds: float = 60.0, join_seconds: float = 600.0
) -> MultiWorkerReplicator:
    """Return a replicator of synchronous replicas on all devices of all workers in TF_CONFIG.

    Call this before TensorFlow does anything else.

    Args:
      timeout_seconds: time in seconds after which a collective that waits for workers fails.
      join_seconds: time in seconds to wait for the other workers to start.

    Raises:
      UserError: TF_CONFIG is missing or has parameter servers, a worker does not start in time,
        this process cannot join the cluster, or TensorFlow was used before this call.
    """
    task = read_tf_config()
    if task is None:
        raise UserError("The strategy multi_worker requires TF_CONFIG; `onepass launch` sets it.")
    if task.cluster.get("ps"):
        raise UserError(
            "TF_CONFIG has parameter servers: use the strategy parameter_server, not multi_worker."
        )
    wait_for_all(task, join_seconds)
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_seconds)
    try:
        with interruptible_startup():
            strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise UserError(
            "`multi_worker` must be called before TensorFlow does anything else."
        ) from None
    except tf.errors.OpError as error:
        raise UserError(
            f"{task.kind} {task.index} could not join the cluster of TF_CONFIG: "
            f"{first_line(error.message)}."
        ) from None
    return MultiWorkerReplicator(strategy, task)
