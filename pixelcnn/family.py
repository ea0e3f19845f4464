"""The family of image models: the options of their commands, and their `ModelFamily`."""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onepass.families import ModelFamily, later
from onepass.foundation.model_folders import FOLDERS
from onepass.foundation.rules import UserError, require
from onepass.replicator.training.config import TrainingOptions
from pixelcnn import shipped
from pixelcnn.config import PRESETS, MultiscaleTrainConfig, PixelCNNTrainConfig, config_from

if TYPE_CHECKING:
    from onepass.trained import Trained


@dataclasses.dataclass(frozen=True)
class PixelCNNArguments(TrainingOptions):
    """Train a PixelCNN on images; an interrupted run resumes where it stopped."""

    data: str
    """Folder of images of any format and size (classes are given by sub-folders, or by a table
    pictures.tsv with columns file, class, caption); or an npz file; or a folder with *_train.npz
    and *_dev.npz; or tfds:NAME."""
    config: Annotated[PixelCNNTrainConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class MultiscaleArguments(TrainingOptions):
    """Train a multiscale PixelCNN on images; an interrupted run resumes where it stopped."""

    data: str
    """Folder of images of any format and size (classes are given by sub-folders, or by a table
    pictures.tsv with columns file, class, caption); or an npz file; or a folder with *_train.npz
    and *_dev.npz, which contain episodes for a video model; or tfds:NAME."""
    config: Annotated[MultiscaleTrainConfig, tyro.conf.arg(name="")]


ARGUMENTS: dict[str, Any] = {"pixelcnn": PixelCNNArguments, "multiscale": MultiscaleArguments}


def arguments_of(preset: str) -> Any:
    """Return the dataclass of a preset's command-line options."""
    return ARGUMENTS[PRESETS[preset].config.kind]


def _detect_options(config: Any, arguments: list[str]) -> list[str]:
    if {"-h", "--help"} & set(arguments):
        return []
    from pixelcnn.data.detection import detect_options

    found = detect_options(config, arguments)
    if found:
        print(f"detected from the images: {' '.join(found)}")
    return found


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate an image model on dev images.

    Reports bits per dimension (in total and per scale, compared with lossless WebP and JPEG XL),
    how many bits the condition saves, and speed. If the images have classes, samples are also
    judged by a classifier, which is trained on real images when needed.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or a shipped model: shipped-digits, shipped-digits-teacher,
    shipped-digits-flow, shipped-digits-64, shipped-digits-64-teacher, shipped-upsample,
    shipped-emoji, ..."""
    data: str | None = None
    """Images, as for `train`, whose dev split is used; None: the model's training data."""
    everything: Annotated[bool, tyro.conf.arg(name="all")] = False
    """Evaluate on the images of all splits, including training images."""
    samples: int = 200
    """Number of images to sample and judge; 0: none."""
    guidance: float = 0.0
    """Guidance weight of the samples, as in `onepass sample`."""
    temperature: tuple[float, ...] = (1.0,)
    """Temperature of the samples: one number, or one per scale, base first."""
    seed: int = 0
    """Random seed of the samples."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def check(self) -> None:
        """Raise a UserError for a negative number of samples."""
        require(self.samples >= 0, "--samples", "at least 0", self.samples)


def _evaluate_model(given: EvaluateArguments, model: "Trained", data: str) -> dict:
    from pixelcnn.data.dataset import ImageDataset
    from pixelcnn.evaluation import evaluate

    dataset = ImageDataset.for_evaluation(
        data, model.config, model.front.classes, model.front.statistics, given.everything
    )
    return {**evaluate(model, dataset, given.seed), **_of_samples(given, model, dataset)}


def _of_samples(given: EvaluateArguments, model: "Trained", dataset: Any) -> dict:
    if not dataset.classes or not model.network.whole or not given.samples:
        return {}
    from pixelcnn.evaluation import classifier_for, evaluate_samples

    sources = [given.data] if given.data else []
    with contextlib.suppress(UserError):
        sources.insert(0, training_data(given.model))
    classifier = classifier_for(model, str(given.model), sources)
    if classifier is None:
        print("samples are not evaluated: --data has no training images", file=sys.stderr)
        return {}
    measures = evaluate_samples(
        model, dataset, classifier, given.samples, given.seed, given.guidance, given.temperature
    )
    return {"samples": measures}


def training_data(path: Path) -> str:
    """Return the images that a run was trained on, or the dev images of a shipped model."""
    if str(path) in FOLDERS and not path.exists():
        return str(shipped.dev_images(str(path)))
    if not (path / "config.json").exists():
        raise UserError(f"{path} does not say where its images are; name them with --data.")
    from onepass.foundation.run_directory import RunDirectory

    data = str(RunDirectory.open(path).config().get("data_folder"))
    if not data.startswith("tfds:") and not Path(data).exists():
        raise UserError(f"{path} was trained on {data}, which is gone; name it with --data.")
    return data


def format_report(figures: dict) -> str:
    """Return the result of an evaluation as lines of text."""
    from onepass.foundation.files import count_noun
    from onepass.foundation.measures import format_measure
    from pixelcnn.measures import DEEP_NAMES, NAMES

    bits, codecs = figures["measures"]["bits_per_dim"], figures["codec"]
    used = figures["dev"]["pictures"]
    others = (figures["dev"]["of"] or used) - used
    left = f" (its other {others} are for training; --all: use them too)" if others else ""
    trained = "joined" if figures["step"] is None else f"step {figures['step']}"
    lines = [
        f"{figures['model']}, {trained}, on {count_noun(used, 'dev image')} of {figures['data']}"
        f"{left}",
        f"  bits per dimension   {format_measure(bits)}",
    ]
    for name, title in (DEEP_NAMES if set(codecs) <= set(DEEP_NAMES) else NAMES).items():
        said = "not measured"
        if name == "jpeg_xl":
            said += ": pip install 'onepass[jxl]'"
        if name in codecs:
            change = f"{100 * (bits['mean'] / codecs[name] - 1):+.1f}%"
            what = "of the same numbers" if "codec_by_scale" in figures else "on the same images"
            said = f"{codecs[name]:.3f}   {what} ({change})"
        lines.append(f"  lossless {title:<11} {said}")
    for size, added in figures.get("codec_by_scale", {}).items():
        of = ", ".join(f"{NAMES[name]} {value:.3f}" for name, value in added.items())
        lines.append(f"  files of {size}, less those of {size // 2}, per number: {of}")
    if figures["seconds_per_picture"] is not None:
        lines.append(f"  seconds an image    {figures['seconds_per_picture']:.3f}")
    for name, measure in figures["measures"].items():
        if name != "bits_per_dim":
            lines.append(f"  {name.replace('_', ' ')}   {format_measure(measure)}")
    if samples := figures.get("samples"):
        heat = " ".join(f"{temperature:g}" for temperature in samples["temperature"])
        what = f"guidance {samples['guidance']:g}, temperature {heat}"
        lines += [
            f"  {samples['num']} samples, {what}: {_quality(samples)}",
            f"  {samples['dev']['pictures']} dev images: {_quality(samples['dev'])}",
        ]
    return "\n".join(lines)


def _quality(measures: dict) -> str:
    from onepass.foundation.measures import format_measure

    few = " of too few images" if measures.get("too_few_images") else ""
    return (
        f"class seen in {format_measure(measures['class_accuracy'], 100.0, 1, '%')}, "
        f"Frechet distance {measures['frechet_distance']:.2f}{few}, "
        f"precision {measures['precision']:.2f}, recall {measures['recall']:.2f}"
    )


IMAGES = ModelFamily(
    verb="train",
    makes="images",
    presets=PRESETS,
    options=arguments_of,
    score=lambda config: "best dev {:.3f} bits/dim",
    evaluation=EvaluateArguments,
    training_data=training_data,
    detected=_detect_options,
    recipe=later("pixelcnn.training:ImageRecipe.of"),
    load=later("pixelcnn.model:load"),
    evaluate=_evaluate_model,
    report=format_report,
    measure=later("pixelcnn.card:measure"),
    card=later("pixelcnn.card:card"),
    config_from=config_from,
    trainable=later("pixelcnn.training:trainable"),
)
