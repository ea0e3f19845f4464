"""Strategies that run a step on devices, workers, parameter servers, a mesh or a TPU."""

from onepass.replicator.strategies.base import Replicator
from onepass.replicator.strategies.factory import (
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
