"""The verb `distill` of the command line; `evaluate` for every model of sound.

TensorFlow is imported where it is used, so that a help text need not wait for it.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from distill.presets import PRESETS, DistillConfig
from foundation.errors import UserError
from replicator.training.command import TrainingOptions, check_outside, parse_training, run_training
from wavenet import command as wavenet_command
from wavenet.command import training_data

if TYPE_CHECKING:
    from distill.model import StudentModel
    from wavenet.model import SpeechModel


@dataclasses.dataclass(frozen=True)
class DistillArguments(TrainingOptions):
    """Distil a teacher into a student that synthesises in one pass; resumes where it stopped."""

    teacher: Path
    """Run directory or model folder of a WaveNet, or `shipped-teacher`; read, never written."""
    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
    data: Path | None = None
    """Folder of recordings; None: that of the teacher's training."""


def run_distill(preset: str, arguments: list[str], parse: Callable[..., Any]) -> int:
    """Run `onepass distill PRESET ...` and return the exit status, 128 + a signal that ended it."""
    words = ("distill", preset)
    given = parse_training(DistillArguments, words, arguments, parse, PRESETS[preset])
    from distill.portable import adopt_run, export_run
    from distill.teacher import load_teacher
    from distill.training import distill

    data = given.data or training_data(given.teacher)
    _keep_apart(given.workdir, given.teacher, data)

    def what() -> "tuple[str, DistillConfig, SpeechModel, Path, Path]":
        return preset, given.config, load_teacher(given.teacher), given.teacher, data

    return run_training(
        given,
        train=lambda replicator: distill(*what(), given.workdir, replicator=replicator),
        export=lambda: export_run(*what(), given.portable, given.workdir),
        adopt=adopt_run,
        score="best STFT distance + KL {:.3f}",
        samples="sounds",
    )


@dataclasses.dataclass(frozen=True)
class EvaluateArguments(wavenet_command.EvaluateArguments):
    """Evaluate a model on dev recordings.

    It measures a WaveNet's bits per sample, or a student and its teacher; how close they and
    Griffin-Lim come to the recordings; and speed.
    """

    teacher: Path | None = None
    """A student's teacher; None: the one that it was distilled from."""
    teacher_temperatures: tuple[float, ...] = ()
    """Temperatures besides 1 at which a student's teacher resynthesises the recordings too."""
    peers: Annotated[tuple[Path, ...], tyro.conf.arg(name="beside")] = ()
    """Run directories or model folders of other students to compare, each named by its folder: for
    example a student without one term of its loss. A folder of sounds, one by the name of each
    recording, is another vocoder."""
    speculative_samples: int = 0
    """Samples of a dev recording that the teacher draws with the student's drafts: reports the
    share that is kept, samples per pass, and the time compared with the cached sampler at batch 1.
    0: none."""


def run_evaluate(arguments: list[str], parse: Callable[..., Any]) -> int:
    """Run `onepass evaluate ...`: print the figures of a model of any kind."""
    given = parse(EvaluateArguments, arguments, "onepass evaluate")
    if given.copy_synthesis is not None and given.copy_synthesis < 1:
        raise UserError(f"`--copy-synthesis` must be at least 1, got {given.copy_synthesis}.")
    for option in ("temperatures", "teacher_temperatures"):
        if not all(t >= 0 for t in getattr(given, option)):
            name = option.replace("_", "-")
            raise UserError(f"`--{name}` must be 0 or more, got {getattr(given, option)}.")
    from distill.model import load
    from distill.training import KIND

    model: Any = load(given.model)
    if model.kind == KIND:
        figures, words = _evaluated(given, model)
    elif given.peers or given.teacher_temperatures:
        raise UserError(
            f"`--beside` and `--teacher-temperatures` are for students, not {given.model}."
        )
    else:
        figures, words = wavenet_command.evaluated(given, model)
    print(json.dumps(figures, indent=2) if given.as_json else words)
    return 0


def _evaluated(given: EvaluateArguments, model: "StudentModel") -> tuple[dict, str]:
    from distill.evaluation import evaluate, format_report
    from distill.model import load, teacher_of
    from distill.teacher import load_teacher
    from wavenet.copy_synthesis import has_sounds, stored_sounds
    from wavenet.evaluation import dev_corpus

    teacher = load_teacher(given.teacher or teacher_of(model))
    data = given.data or training_data(given.model)
    corpus = dev_corpus(teacher, data, given.speaker)
    first = (given.copy_synthesis, given.seed, given.split, given.temperatures)
    peers, others = {}, {}
    for path in given.peers:
        if has_sounds(path):
            others[path.absolute().name] = stored_sounds(path, model.sample_rate_hz)
        else:
            peers[path.absolute().name] = load(path)
    rest = (given.teacher_temperatures, peers, given.speculative_samples, others)
    figures = wavenet_command.reported(
        given, model, data, lambda page: evaluate(model, teacher, corpus, *first, page, *rest)
    )
    return figures, format_report(figures)


def _keep_apart(workdir: Path, teacher: Path, data: Path) -> None:
    from wavenet.shipped import FOLDERS

    place = Path(workdir).resolve()
    if str(teacher) not in FOLDERS and place == Path(teacher).resolve():
        raise UserError(f"The student needs a --workdir of its own, {workdir} is its teacher's.")
    check_outside(workdir, data, "recordings")
