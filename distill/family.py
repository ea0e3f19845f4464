"""The family of students of sound: the options of `onepass distill`, and their `ModelFamily`.

TensorFlow is imported only where it is used, so that help texts appear at once.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from distill.config import PRESETS, DistillConfig
from onepass.families import ModelFamily, later, module
from onepass.replicator.training.config import TrainingOptions
from wavenet.family import EvaluateArguments, listening_page, training_data

if TYPE_CHECKING:
    from distill.training import StudentRecipe
    from onepass.trained import Trained


@dataclasses.dataclass(frozen=True)
class DistillArguments(TrainingOptions):
    """Distil a teacher into a student that synthesises in one pass; a stopped run is resumed."""

    teacher: Path
    """Run directory or model folder of a WaveNet, or `shipped-teacher`; it is never changed."""
    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
    data: Path | None = None
    """Folder of recordings; None: the folder that the teacher was trained on."""


def _recipe(preset: str, given: DistillArguments) -> "StudentRecipe":
    from distill.teacher import load_teacher
    from distill.training import StudentRecipe

    data = given.data or training_data(given.teacher)
    return StudentRecipe(preset, given.config, data, load_teacher(given.teacher), given.teacher)


def _evaluate_student(given: EvaluateArguments, model: "Trained", data: Path) -> dict:
    from distill.evaluation import evaluate
    from distill.model import load, teacher_of
    from distill.teacher import load_teacher
    from wavenet.copy_synthesis import has_sounds, read_sounds
    from wavenet.evaluation import dev_corpus

    teacher = load_teacher(given.teacher or teacher_of(model))
    corpus = dev_corpus(teacher, data, given.speaker)
    peers, others = {}, {}
    for path in given.peers:
        if has_sounds(path):
            others[path.absolute().name] = read_sounds(path, model.front.sample_rate_hz)
        else:
            peers[path.absolute().name] = load(path)
    same = ("seed", "temperatures", "teacher_temperatures", "speculative_samples")
    asked: dict[str, Any] = {name: getattr(given, name) for name in same}
    asked |= {"copies": given.copy_synthesis, "part": given.split}
    with listening_page(given, model.front.sample_rate_hz) as page:
        return evaluate(model, teacher, corpus, page, peers=peers, others=others, **asked)


STUDENT = ModelFamily(
    verb="distill",
    makes="sound",
    presets=PRESETS,
    options=lambda preset: DistillArguments,
    score=lambda config: "best STFT distance + KL {:.3f}",
    evaluation=EvaluateArguments,
    training_data=training_data,
    recipe=_recipe,
    load=later("distill.model:load"),
    evaluate=_evaluate_student,
    report=later("distill.evaluation:format_report"),
    measure=later("distill.evaluation:measure"),
    card=later("distill.evaluation:card"),
    network="student",
    sampler=module("distill.model"),
    is_fast=True,
)
