"""The family of WaveNets: the options of their commands, and their `ModelFamily`.

TensorFlow is imported only where it is used, so that `--help` is fast.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from onepass.families import ModelFamily, later, module
from onepass.foundation.rules import UserError, require
from onepass.replicator.training.config import TrainingOptions
from wavenet import shipped
from wavenet.config import PRESETS, TrainConfig, config_from
from wavenet.dev_parts import DevPart

if TYPE_CHECKING:
    from onepass.trained import Trained
    from wavenet.listening_page import ListeningPage

COPIES = 4  # dev recordings that a WaveNet resynthesises by default; few, since it is slow


@dataclasses.dataclass(frozen=True)
class TrainArguments(TrainingOptions):
    """Train a WaveNet on a folder of recordings; an interrupted run resumes where it stopped."""

    data: Path
    """Folder of recordings (wav, flac, ogg or mp3; any sample rate and channel count), searched
    recursively."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate a model on dev recordings.

    Reports bits per sample of a WaveNet, or compares a student with its teacher. Also reports their
    speed, and how similar their audio, and that of Griffin-Lim, is to the recordings.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or name of a shipped model, such as `shipped`."""
    data: Path | None = None
    """Folder of recordings, whose dev split is used; None: the folder that the run was trained on,
    or the shipped recordings for a model folder."""
    split: DevPart = "report"
    """Part of the dev recordings: choose (the half that checkpoints and settings are selected on),
    report (the other half), or dev (all)."""
    speaker: str | None = None
    """Evaluate only recordings of this speaker, for a multi-speaker model; None: all speakers."""
    copy_synthesis: Annotated[int | None, tyro.conf.arg(aliases=["--spoken"])] = None
    """Number of recordings to resynthesise from their features (three seconds each) and compare;
    None: 4 for a WaveNet, all for a student."""
    temperatures: tuple[float, ...] = ()
    """Additional temperatures at which the model resynthesises the recordings, each a separate
    system. Temperature 1 samples the model's density; lower values are closer to its mode."""
    listening_page: Path | None = None
    """HTML page to write, with audio players for the first five recordings and every system."""
    seed: int = 0
    """Random seed of the sampling noise."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""
    teacher: Path | None = None
    """Teacher to compare a student with; None: the teacher that it was distilled from."""
    teacher_temperatures: tuple[float, ...] = ()
    """Additional temperatures at which a student's teacher resynthesises the recordings."""
    peers: Annotated[tuple[Path, ...], tyro.conf.arg(name="beside")] = ()
    """Other students to compare (run directories or model folders), such as one trained without a
    term of the loss; each is named after its folder. A folder of audio files with the recordings'
    names is compared as another vocoder."""
    speculative_samples: int = 0
    """Number of samples of a dev recording that the teacher draws speculatively from the student's
    drafts; reports the acceptance rate, the samples per pass, and the time compared with the cached
    sampler at batch size 1. 0: skip."""

    def check(self) -> None:
        """Raise a UserError that names the first option whose value is out of range."""
        copies = self.copy_synthesis
        require(copies is None or copies >= 1, "--copy-synthesis", "at least 1", copies)
        for option in ("temperatures", "teacher_temperatures"):
            if not all(t >= 0 for t in getattr(self, option)):
                name = option.replace("_", "-")
                raise UserError(f"`--{name}` must be at least 0, got {getattr(self, option)}.")


@contextlib.contextmanager
def listening_page(
    given: EvaluateArguments, sample_rate_hz: int
) -> "Iterator[ListeningPage | None]":
    """Yield an empty page, which is written on exit, or None if no page was requested."""
    if given.listening_page is None:
        yield None
        return
    if not given.listening_page.parent.is_dir():
        raise UserError(f"`--listening-page`: there is no folder {given.listening_page.parent}.")
    from wavenet.listening_page import ListeningPage

    page = ListeningPage(given.listening_page, f"{given.model}, by ear", sample_rate_hz)
    yield page
    page.write()


def training_data(path: Path) -> Path:
    """Return a run's folder of training recordings, or the shipped ones for a model folder."""
    if not (path / "config.json").exists():
        return shipped.recordings_folder()
    from onepass.foundation.run_directory import RunDirectory

    data = Path(str(RunDirectory.open(path).config().get("data_folder")))
    if not data.is_dir():
        raise UserError(f"{path} was trained on {data}, which is gone; name a folder with --data.")
    return data


def evaluate_model(given: EvaluateArguments, model: "Trained", data: Path) -> dict:
    """Return the result of `wavenet.evaluation.evaluate` with the given options."""
    from wavenet.evaluation import dev_corpus, evaluate

    if given.peers or given.teacher_temperatures:
        raise UserError(
            f"`--beside` and `--teacher-temperatures` are for students, not {given.model}."
        )
    corpus = dev_corpus(model, data, given.speaker)
    copies = COPIES if given.copy_synthesis is None else given.copy_synthesis
    with listening_page(given, model.front.sample_rate_hz) as page:
        return evaluate(model, corpus, copies, given.seed, given.split, given.temperatures, page)


WAVENET = ModelFamily(
    verb="train",
    makes="sound",
    presets=PRESETS,
    options=lambda preset: TrainArguments,
    score=lambda config: "best dev {:.3f} bits/sample",
    evaluation=EvaluateArguments,
    training_data=training_data,
    recipe=later("wavenet.training:SpeechRecipe.of"),
    load=later("wavenet.model:load"),
    evaluate=evaluate_model,
    report=later("wavenet.evaluation:format_report"),
    measure=later("wavenet.evaluation:measure"),
    card=later("wavenet.evaluation:card"),
    config_from=config_from,
    trainable=later("wavenet.training:trainable"),
    network="network",
    sampler=module("wavenet.samplers.generation"),
)
