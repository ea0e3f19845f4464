"""By kind of model, what an export of it takes; imported when it is asked for."""

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicator.runs import card
from serving.bundles.export_arguments import ExportArguments

PORTABLE_FRAMES = 200


@dataclasses.dataclass(frozen=True)
class Exporter:
    """The parts of an export of one kind of model.

    loader: module whose `load` reads a model folder. signatures: module with `export_functions`.
    card: module whose `export` measures a run and writes its model folder. makes_images: whether
    its models make images. network: key of the configuration that says what type the network
    computes in, or None where that is float32. write_portable: writes the sampler as functions that
    JAX can run, from the model, a folder and the shortest length in frames.
    """

    loader: str
    signatures: str
    card: str
    makes_images: bool
    network: str | None
    write_portable: Callable[[Any, Path, int], None]

    def load(self, folder: Path) -> Any:
        """Return the model of a folder, with the weights as they are stored."""
        return importlib.import_module(self.loader).load(folder)

    def export_functions(self, model: Any, **options: Any) -> tuple[Any, dict, dict, dict]:
        """Return module, functions, lowered functions, and `serving` of model.json."""
        return importlib.import_module(self.signatures).export_functions(model, **options)

    def measure(self, given: ExportArguments, folder: Path) -> str:
        """Measure a run on dev and write its model folder; return what was measured, in words."""
        names = ("run", "note", "machine", "temperature", "float16", "parts_from")
        options = {name: getattr(given, name) for name in names}
        options |= {"out": folder, "data_licence": given.data_licence or "unknown"}
        return importlib.import_module(self.card).export(card.ExportArguments(**options))


def _portable_student(model: Any, folder: Path, frames: int) -> None:
    module = importlib.import_module("distill.portable")
    module.export_sampler(folder, model.network, batch=1, num_frames=frames or PORTABLE_FRAMES)


def _portable_teacher(model: Any, folder: Path, frames: int) -> None:
    from wavenet.samplers import CHUNK_SAMPLES

    config, module = model.network.config, importlib.import_module("wavenet.portable")
    chunk = config.context_block_samples if config.context_layers else CHUNK_SAMPLES
    options = {"chunk_samples": chunk, "num_frames": frames or PORTABLE_FRAMES}
    module.export_sampler(folder, model.network, batch=1, **options)


def _portable_images(model: Any, folder: Path, frames: int) -> None:
    del frames
    importlib.import_module("pixelcnn.portable").export_sampler(folder, model.density)


_SOUND = ("distill.model", "serving.bundles.audio_signatures")
_TEACHER = Exporter(*_SOUND, "wavenet.card", False, "network", _portable_teacher)
_STUDENT = Exporter(*_SOUND, "distill.card", False, "student", _portable_student)
_IMAGES = Exporter(
    *("pixelcnn.model", "serving.bundles.image_signatures", "pixelcnn.card"),
    True,
    None,
    _portable_images,
)
EXPORTERS = {
    "wavenet": _TEACHER,
    "parallel-wavenet": _STUDENT,
    "pixelcnn": _IMAGES,
    "multiscale": _IMAGES,
}
