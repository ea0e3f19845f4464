"""The verb `distill` of the command line; `sample` and `evaluate` for every model of sound.

What needs TensorFlow is imported where it is used, so that a help text need not wait for it.
"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from distill.presets import PRESETS, DistillConfig
from replicator.runs.errors import UserError
from wavenet import command as wavenet_command
from wavenet.command import training_data
from wavenet.sample_arguments import SampleArguments

if TYPE_CHECKING:
    from distill.model import StudentModel


@dataclasses.dataclass(frozen=True)
class DistillArguments:
    """Distil a teacher into a student that speaks in one pass; resumes where it stopped."""

    teacher: Path
    """Run directory or model folder of a WaveNet, or `shipped-teacher`; read, never written."""
    workdir: Path
    """Run directory; one that holds the same configuration is resumed."""
    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
    data: Path | None = None
    """Folder of recordings; None: the one that the teacher was trained on."""
    portable: Path | None = None
    """Do not distil: write step, weights and clips to this folder, for `python DIR/run.py` on a
    machine with JAX and without TensorFlow."""
    adopt: Path | None = None
    """Take the weights that `run.py` made in this folder into the run directory first."""
    strategy: str = "auto"
    """What to run on: auto (what TF_CONFIG and the GPUs ask for), single (one device), local (every
    GPU), local:N (N devices; without GPUs so many logical CPUs), multi_worker or parameter_server
    (the cluster of TF_CONFIG), sharded:2x2 (weights and batches in shards, batch x model), tpu or
    tpu:ADDRESS. A run may be resumed on another."""


def run_distill(preset: str, arguments: list[str], parse) -> int:
    """Parses the rest of `onepass distill PRESET ...`, distils; 128 + a signal that stopped it."""
    default = DistillArguments(tyro.MISSING, tyro.MISSING, PRESETS[preset].config)
    given = parse(
        DistillArguments, arguments, f"onepass distill {preset}", default, PRESETS[preset].about
    )
    from distill.portable import adopt_run, export_run
    from distill.teacher import load_teacher
    from distill.training import distill
    from replicator import strategies

    replicator = strategies.from_environment(given.strategy)  # before TensorFlow does anything
    teacher = load_teacher(given.teacher)
    data = given.data or training_data(given.teacher)
    _keep_apart(given.workdir, given.teacher, data)
    if given.portable:
        places = (given.teacher, data, given.portable, given.workdir)
        export_run(preset, given.config, teacher, *places)
        return 0
    if given.adopt and replicator.is_chief:
        print(f"{given.workdir} is at step {adopt_run(given.adopt, given.workdir)} now.")
    outcome = distill(
        preset,
        given.config,
        teacher,
        given.teacher,
        data,
        given.workdir,
        replicator=replicator,
    )
    following = f"Next: onepass sample {given.workdir} --out sounds"
    if replicator.is_chief:
        print(outcome.summary(given.workdir, "best STFT distance {:.3f}", following))
    return outcome.exit_status


@dataclasses.dataclass(frozen=True)
class EvaluateArguments(wavenet_command.EvaluateArguments):
    """How good a model is on dev recordings: a WaveNet's bits per sample, a student beside its
    teacher; how close they and Griffin-Lim come to the recordings; speed."""

    teacher: Path | None = None
    """A student's teacher; None: the one that it was distilled from."""


def run_evaluate(arguments: list[str], parse) -> int:
    """Parses the rest of `onepass evaluate ...` and prints the figures of a model of any kind."""
    given = parse(EvaluateArguments, arguments, "onepass evaluate")
    if given.copy_synthesis is not None and given.copy_synthesis < 1:
        raise UserError(f"`--copy-synthesis` must be at least 1, got {given.copy_synthesis}.")
    from distill.model import StudentModel, load

    model = load(given.model)
    if isinstance(model, StudentModel):
        figures, words = _evaluated(given, model)
    else:
        figures, words = wavenet_command.evaluated(given, model)
    print(json.dumps(figures, indent=2) if given.as_json else words)
    return 0


def _evaluated(given: EvaluateArguments, model: "StudentModel") -> tuple[dict, str]:
    """The figures of a student as one object, and in words."""
    from distill.evaluation import evaluate, in_words
    from distill.model import teacher_of
    from distill.teacher import load_teacher
    from wavenet.evaluation import dev_corpus

    teacher = load_teacher(given.teacher or teacher_of(model))
    data = given.data or training_data(given.model)
    figures = {
        "model": str(given.model),
        "step": model.spec.get("step"),
        "data": str(data),
        **evaluate(
            model,
            teacher,
            dev_corpus(teacher, data),
            given.copy_synthesis,
            given.seed,
            given.split,
        ),
    }
    return figures, in_words(figures)


def run_sample(arguments: list[str], parse) -> int:
    """Parses the rest of `onepass sample ...` and writes sounds of a WaveNet or of a student."""
    given = parse(SampleArguments, arguments, "onepass sample")
    from distill.model import load
    from wavenet.sample_command import sample

    return sample(given, load)


def _keep_apart(workdir: Path, teacher: Path, data: Path) -> None:
    from distill.model import SHIPPED

    place = Path(workdir).resolve()
    if str(teacher) not in SHIPPED and place == Path(teacher).resolve():
        raise UserError(f"The student needs a --workdir of its own, {workdir} is its teacher's.")
    if place.is_relative_to(Path(data).resolve()):
        raise UserError(
            f"The run directory {workdir} must be outside the data folder {data}: its samples "
            "would be taken for recordings."
        )
