"""The verbs of the command line for a WaveNet: train, evaluate.

TensorFlow is imported where it is used, so that a help text need not wait for it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from foundation.errors import UserError
from replicator.training.command import TrainingOptions, parse_training, run_training
from wavenet import shipped
from wavenet.dev_parts import DevPart
from wavenet.presets import PRESETS, TrainConfig

if TYPE_CHECKING:
    from wavenet.listening_page import ListeningPage
    from wavenet.model import SpeechModel

COPIES = 4  # dev recordings that a WaveNet makes anew: it is slow


@dataclasses.dataclass(frozen=True)
class TrainArguments(TrainingOptions):
    """Train a WaveNet on a folder of recordings; resumes where it stopped."""

    data: Path
    """Folder of recordings (wav, flac, ogg, mp3; any rate, any channels), searched to any depth."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate a model on dev recordings.

    It measures a WaveNet's bits per sample, or a student and its teacher; how close they and
    Griffin-Lim come to the recordings; and speed.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or `shipped`."""
    data: Path | None = None
    """Folder of recordings, whose dev split is used; None: the one it was trained on."""
    split: DevPart = "report"
    """Half of the dev recordings, by name: choose (on which checkpoints and settings are chosen),
    report (on which nothing is chosen), or dev for all."""
    speaker: str | None = None
    """Only recordings of this speaker, for a model of several; None: all."""
    copy_synthesis: Annotated[int | None, tyro.conf.arg(aliases=["--spoken"])] = None
    """Number of recordings (three seconds of each) that are resynthesised from their own features
    and compared; None: 4 by a WaveNet, all by a student."""
    temperatures: tuple[float, ...] = ()
    """Temperatures besides 1 at which the model resynthesises the recordings too, each a separate
    system; 1 samples its density, less comes closer to its mode."""
    listening_page: Path | None = None
    """HTML file to write, with the first five of these recordings by every system, to listen to."""
    seed: int = 0
    """Seed of the noise."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""


def run_train(preset: str, arguments: list[str], parse: Callable[..., Any]) -> int:
    """Run `onepass train PRESET ...` and return the exit status, 128 + a signal that stopped it."""
    words = ("train", preset)
    given = parse_training(TrainArguments, words, arguments, parse, PRESETS[preset])
    from wavenet.portable import export_run
    from wavenet.training import train

    what = (preset, given.config, given.data)
    return run_training(
        given,
        train=lambda replicator: train(*what, given.workdir, replicator=replicator),
        export=lambda: export_run(*what, given.portable, given.workdir),
        score="best dev {:.3f} bits/sample",
        samples="sounds",
    )


def evaluated(given: EvaluateArguments, model: "SpeechModel") -> tuple[dict, str]:
    """Return the figures of a WaveNet as one object, and as text."""
    from wavenet.evaluation import dev_corpus, evaluate, format_report

    data = given.data or training_data(given.model)
    corpus = dev_corpus(model, data, given.speaker)
    copies = COPIES if given.copy_synthesis is None else given.copy_synthesis
    rest = (copies, given.seed, given.split, given.temperatures)
    figures = reported(given, model, data, lambda page: evaluate(model, corpus, *rest, page))
    return figures, format_report(figures)


def reported(
    given: EvaluateArguments,
    model: Any,
    data: Path,
    evaluate: "Callable[[ListeningPage | None], dict]",
) -> dict:
    """Return the figures of an evaluation and what they are of; write the page, if one is asked."""
    page = listening_page(given, model.sample_rate_hz)
    named = {"model": str(given.model), "step": model.spec.get("step"), "data": str(data)}
    figures = named | evaluate(page)
    if page is not None:
        page.write()
    return figures


def listening_page(given: EvaluateArguments, sample_rate_hz: int) -> "ListeningPage | None":
    """Return the requested page, still empty, or None.

    Raises:
      UserError: the page cannot be written.
    """
    if given.listening_page is None:
        return None
    if not given.listening_page.parent.is_dir():
        raise UserError(f"`--listening-page`: there is no folder {given.listening_page.parent}.")
    from wavenet.listening_page import ListeningPage

    return ListeningPage(given.listening_page, f"{given.model}, by ear", sample_rate_hz)


def training_data(path: Path) -> Path:
    """Return the folder of recordings of a run; the shipped ones for a model folder."""
    if not (path / "config.json").exists():
        return shipped.recordings_folder()
    from foundation.run_directory import RunDirectory

    data = Path(str(RunDirectory.open(path).config().get("data_folder")))
    if not data.is_dir():
        raise UserError(f"{path} was trained on {data}, which is gone; name a folder with --data.")
    return data
