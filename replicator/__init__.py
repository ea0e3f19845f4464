"""Training steps on one or many devices: strategies, training, runs, portable export.

The names below are imported on first access, because most need TensorFlow, and several modules
(`runs.errors`, `launch`) serve programs that must start without it.
"""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from replicator.portable.adopt import adopt as adopt
    from replicator.portable.export import export_function as export_function
    from replicator.portable.export import export_training as export_training
    from replicator.runs.checkpoints import Checkpoints as Checkpoints
    from replicator.runs.errors import UserError as UserError
    from replicator.runs.progress import Progress as Progress
    from replicator.runs.run_directory import RunDirectory as RunDirectory
    from replicator.strategies.base import Replicator as Replicator
    from replicator.training.config import LoopConfig as LoopConfig
    from replicator.training.config import OptimizerConfig as OptimizerConfig
    from replicator.training.loop import Trainer as Trainer
    from replicator.training.optimizer import adam as adam
    from replicator.training.state import TrainState as TrainState
    from replicator.training.step import compile_step as compile_step

_PLACES = {
    "Checkpoints": "runs.checkpoints",
    "LoopConfig": "training.config",
    "OptimizerConfig": "training.config",
    "Progress": "runs.progress",
    "Replicator": "strategies.base",
    "RunDirectory": "runs.run_directory",
    "TrainState": "training.state",
    "Trainer": "training.loop",
    "UserError": "runs.errors",
    "adam": "training.optimizer",
    "adopt": "portable.adopt",
    "compile_step": "training.step",
    "export_function": "portable.export",
    "export_training": "portable.export",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
