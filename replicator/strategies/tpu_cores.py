"""Synchronous replicas on the cores of a TPU."""

import tensorflow as tf

from replicator.collectives import encoding
from replicator.runs.errors import UserError, first_line
from replicator.strategies.cluster_startup import refusal
from replicator.strategies.synchronous import SynchronousReplicator


class TpuReplicator(SynchronousReplicator):
    """Replicas of a TPUStrategy, whose sum over replicas does not support 64-bit integers."""

    def _sum(self, tensors: list) -> list:
        narrow = [encoding.to_limbs(t) if t.dtype == tf.int64 else t for t in tensors]
        sums = super()._sum(narrow)
        return [
            encoding.from_limbs(s) if t.dtype == tf.int64 else s
            for s, t in zip(sums, tensors, strict=True)
        ]


def tpu(address: str = "") -> SynchronousReplicator:
    """Return a replicator of synchronous replicas on the cores of a TPU.

    Args:
      address: name or `grpc://HOST:PORT`; empty: the one named by the environment; `local`: the one
        of this machine.

    Raises:
      UserError: there is none.
    """
    name = f"`{address}`" if address else "the environment's address"
    _check_reachable(address)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address not in ("", "local"):
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        raise UserError(f"There is no TPU at {name}: {first_line(str(error))}") from None
    return TpuReplicator("tpu", strategy)


def _check_reachable(address: str) -> None:
    """Raise UserError if nothing listens at HOST:PORT; TensorFlow would wait for minutes."""
    target = address.removeprefix("grpc://")
    if ":" in target and (error := refusal(target)):
        raise UserError(f"There is no TPU at `{address}`: {error}.")
