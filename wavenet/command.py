"""The options of a WaveNet's verbs, and its family.

TensorFlow is imported where it is used, so that a help text need not wait for it.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from foundation.errors import UserError
from replicator.training.command import TrainingOptions
from replicator.training.family import ModelFamily, Parts
from wavenet import shipped
from wavenet.dev_parts import DevPart
from wavenet.presets import KIND, PRESETS, TrainConfig

if TYPE_CHECKING:
    from wavenet.listening_page import ListeningPage
    from wavenet.model import SpeechModel

COPIES = 4  # dev recordings that a WaveNet resynthesises; few, since it is slow


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

    def check(self) -> None:
        """Raise a UserError that names the option if a number is out of range."""
        if self.copy_synthesis is not None and self.copy_synthesis < 1:
            raise UserError(f"`--copy-synthesis` must be at least 1, got {self.copy_synthesis}.")
        for option in ("temperatures", "teacher_temperatures"):
            if not all(t >= 0 for t in getattr(self, option)):
                name = option.replace("_", "-")
                raise UserError(f"`--{name}` must be 0 or more, got {getattr(self, option)}.")


@contextlib.contextmanager
def listening_page(
    given: EvaluateArguments, sample_rate_hz: int
) -> "Iterator[ListeningPage | None]":
    """Yield the requested page, still empty, or None, and write it at the end.

    Raises:
      UserError: the page cannot be written.
    """
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
    """Return the folder of recordings of a run; the shipped ones for a model folder."""
    if not (path / "config.json").exists():
        return shipped.recordings_folder()
    from foundation.run_directory import RunDirectory

    data = Path(str(RunDirectory.open(path).config().get("data_folder")))
    if not data.is_dir():
        raise UserError(f"{path} was trained on {data}, which is gone; name a folder with --data.")
    return data


def evaluated(given: EvaluateArguments, model: "SpeechModel", data: Path) -> dict:
    """Return the result of evaluating a WaveNet."""
    from wavenet.evaluation import dev_corpus, evaluate

    if given.peers or given.teacher_temperatures:
        raise UserError(
            f"`--beside` and `--teacher-temperatures` are for students, not {given.model}."
        )
    corpus = dev_corpus(model, data, given.speaker)
    copies = COPIES if given.copy_synthesis is None else given.copy_synthesis
    with listening_page(given, model.sample_rate_hz) as page:
        rest = (copies, given.seed, given.split, given.temperatures)
        return evaluate(model, corpus, *rest, page)


def _parts() -> Parts:
    from wavenet import card, evaluation, model, portable, training

    return Parts(
        recipe=lambda preset, given: training.SpeechRecipe(preset, given.config, given.data),
        load=model.load,
        evaluate=evaluated,
        report=evaluation.format_report,
        measure=card.measure,
        card=card.card,
        export_sampler=portable.export_chunks,
        config_from=training.config_from,
        trainable=portable.trainable,
    )


WAVENET = ModelFamily(
    verb="train",
    makes="sound",
    kinds=(KIND,),
    presets=PRESETS,
    options=lambda preset: TrainArguments,
    score=lambda config: "best dev {:.3f} bits/sample",
    evaluation=EvaluateArguments,
    training_data=training_data,
    load_parts=_parts,
    shipped=shipped.FOLDERS,
)
