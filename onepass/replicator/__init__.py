"""Run training steps on one or many devices: strategies, training, portable export.

The names below are imported on first access, because most of them import TensorFlow, while programs
that use `launch` must start without it.
"""

from typing import TYPE_CHECKING

from onepass.foundation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from onepass.replicator.strategies.base import Replicator as Replicator
    from onepass.replicator.training.config import OptimizerConfig as OptimizerConfig

_EXPORTS = {"OptimizerConfig": "training.config", "Replicator": "strategies.base"}
__all__ = list(_EXPORTS)
__getattr__ = lazy_exports(__name__, _EXPORTS)
