"""How a training step runs on one or many devices: strategies, training, runs, portable export.

The names below are imported when they are first asked for, because most need TensorFlow and
several of the rooms (`runs.errors`, `launch`) serve programs that must start without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    """The public names, with what is loaded already."""
    return sorted({*globals(), *_PLACES})
