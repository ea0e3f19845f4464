"""Probability density distillation: the fast students, their losses and their training."""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from distill.config import StudentConfig as StudentConfig
    from distill.evaluation import evaluate as evaluate
    from distill.model import StudentModel as StudentModel
    from distill.model import load as load
    from distill.presets import DistillConfig as DistillConfig
    from distill.student import ParallelWaveNet as ParallelWaveNet
    from distill.teacher import load_teacher as load_teacher

_PLACES = {
    "DistillConfig": "presets",
    "ParallelWaveNet": "student",
    "StudentConfig": "config",
    "StudentModel": "model",
    "evaluate": "evaluation",
    "load": "model",
    "load_teacher": "teacher",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
