"""Strategies that run a step on devices, workers, parameter servers, a mesh or a TPU.

The functions create their replicators, `from_environment` by the name in `--strategy`.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from onepass.foundation.rules import UserError, first_line
from onepass.replicator import collectives
from onepass.replicator.launch.tf_config import read_tf_config
from onepass.replicator.strategies.asynchronous import ParameterServerReplicator
from onepass.replicator.strategies.base import Replicator
from onepass.replicator.strategies.coordination import refusal
from onepass.replicator.strategies.mesh import ShardedReplicator
from onepass.replicator.strategies.synchronous import (
    SynchronousReplicator,
    local,
    multi_worker,
    single,
)

WORDS = (
    "auto, single, local, local:N, multi_worker, multi_worker:SECONDS, parameter_server, "
    "sharded:2x2, tpu, tpu:ADDRESS"
)


def parameter_server() -> Replicator:
    """Return a replicator of asynchronous workers with variables on parameter servers.

    TF_CONFIG defines the cluster. The function returns only in the coordinator (task `chief`); a
    `ps` or `worker` process serves until the chief has ended, and then exits.

    Raises:
      UserError: TF_CONFIG is missing or lacks a kind of task.
    """
    return ParameterServerReplicator()


def sharded(mesh: Mapping[str, int], layouts: Mapping[str, Sequence]) -> Replicator:
    """Return a replicator of one global step over a mesh, with sharded variables and batches.

    Args:
      mesh: size of each named dimension, e.g. {"batch": 2, "model": 2}.
      layouts: dict from a regular expression to a mesh dimension or None for each axis of the
        variables whose names it matches; other variables are whole on every device. Empty: every
        variable is sharded wherever the mesh divides it, and gathered where it is read.

    Raises:
      UserError: the mesh is invalid or needs more devices than there are, or a pattern is invalid.
    """
    return ShardedReplicator(mesh, layouts)


def from_environment(strategy: str = "auto") -> Replicator:
    """Return the replicator that `TrainingOptions.strategy` names; UserError: it cannot run."""
    word, _, argument = strategy.partition(":")
    if strategy == "auto":
        word = _fitting()
    if word in _WITHOUT_ARGUMENT and not argument:
        return _WITHOUT_ARGUMENT[word]()
    if word == "local":
        return local(_number(argument, strategy, "local:N") if argument else None)
    if word == "multi_worker":
        return multi_worker(_number(argument, strategy, "multi_worker:SECONDS"))
    if word == "sharded":
        return sharded(_mesh(argument, strategy), {})
    if word == "tpu":
        return tpu(argument)
    raise UserError(f"`--strategy` must be one of {WORDS}; got {strategy!r}.")


_WITHOUT_ARGUMENT: dict[str, Callable[[], Replicator]] = {
    "single": single,
    "multi_worker": multi_worker,
    "parameter_server": parameter_server,
}


def _fitting() -> str:
    task = read_tf_config()
    if task is not None:
        return "parameter_server" if task.cluster.get("ps") else "multi_worker"
    return "local" if len(tf.config.list_physical_devices("GPU")) > 1 else "single"


def _number(argument: str, strategy: str, form: str) -> int:
    if not argument.isdecimal() or int(argument) < 1:
        raise UserError(f"`--strategy {form}` requires a positive number, got {strategy!r}.")
    return int(argument)


def _mesh(argument: str, strategy: str) -> dict[str, int]:
    sizes = argument.split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise UserError(
            f"`--strategy sharded:2x2` requires two sizes, batch x model, got {strategy!r}."
        )
    return {"batch": int(sizes[0]), "model": int(sizes[1])}


class TpuReplicator(SynchronousReplicator):
    """Replicas of a TPUStrategy, which cannot sum 64-bit integers over replicas."""

    def _sum(self, tensors: list) -> list:
        narrow = [collectives.to_limbs(t) if t.dtype == tf.int64 else t for t in tensors]
        sums = super()._sum(narrow)
        return [
            collectives.from_limbs(s) if t.dtype == tf.int64 else s
            for s, t in zip(sums, tensors, strict=True)
        ]


def tpu(address: str = "") -> SynchronousReplicator:
    """Return a replicator of synchronous replicas on the cores of a TPU.

    Args:
      address: name of the TPU, or `grpc://HOST:PORT`; empty: the TPU named by the environment;
        `local`: this machine's TPU.
    """
    name = f"`{address}`" if address else "the environment's address"
    target = address.removeprefix("grpc://")
    if ":" in target and (error := refusal(target)):
        raise UserError(f"There is no TPU at `{address}`: {error}.")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address not in ("", "local"):
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as failure:
        raise UserError(f"There is no TPU at {name}: {first_line(str(failure))}") from None
    return TpuReplicator("tpu", strategy)
