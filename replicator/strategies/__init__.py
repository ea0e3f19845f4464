"""Strategies that run a step on devices, workers, parameter servers, a mesh or a TPU."""

from replicator.strategies.base import Replicator
from replicator.strategies.factory import (
    from_environment,
    local,
    multi_worker,
    parameter_server,
    sharded,
    single,
    tpu,
)

__all__ = [
    "Replicator",
    "from_environment",
    "local",
    "multi_worker",
    "parameter_server",
    "sharded",
    "single",
    "tpu",
]
