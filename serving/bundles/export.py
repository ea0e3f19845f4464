"""The verb `export`: a run or a model folder as a bundle, NAME/VERSION, that can be served."""

import contextlib
import importlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from distill import card as student_card
from distill import model as speech_models
from distill import portable as student_portable
from distill.model import StudentModel
from pixelcnn import card as image_card
from pixelcnn import model as images
from pixelcnn import portable as image_portable
from pixelcnn import shipped as image_shipped
from pixelcnn.config import KINDS as IMAGE_KINDS
from pixelcnn.model import ImageModel
from replicator.runs.errors import UserError
from replicator.runs.model_folder import read_folder
from replicator.runs.model_spec import SPEC_FILE, WEIGHTS_FILE, kind_of
from serving.bundles.allowed_operations import LOWERED, PROGRAM, check_program
from serving.bundles.export_arguments import ExportArguments
from serving.bundles.manifest import write_manifest
from serving.bundles.signature import Signature
from serving.bundles.signing import private_key, sign
from serving.bundles.warmup import write_warmup
from wavenet import card as teacher_card
from wavenet import portable as teacher_portable
from wavenet import shipped as teacher_shipped
from wavenet.model import SpeechModel
from wavenet.samplers import CHUNK_SAMPLES

AnyModel = SpeechModel | StudentModel | ImageModel
CARD = "card.md"
PORTABLE = "portable"
PORTABLE_FRAMES = 200
PROGRAM_BYTES, COPIES = 32 << 20, 4  # a bundle is the program, and the weights a few times
RUN_OPTIONS = ("data_licence", "note", "machine", "parts_from", "temperature", "float16")
NETWORKS = {"wavenet": "network", "parallel-wavenet": "student"}  # where a config has them


def export(given: ExportArguments) -> list[str]:
    """Writes the bundle, whole or not at all; lines on what was written.

    Raises UserError, in one line, for what cannot be exported, or for an OUT that is in use.
    """
    lines, out = [], _checked(given)
    key = private_key(given.sign) if given.sign else None
    _check_disk(out, _shipped(given.run))
    with _atomic_folder(out) as folder:
        measured = _write_model(given, folder)
        if measured:
            lines.append(f"{given.out}: {measured}")
        if not given.bare:
            lines += _write_program(given, folder)
            write_manifest(folder)
            if key is not None:
                sign(folder, out.parent.name, int(out.name), key)
    return lines or [f"{given.out}: the model folder"]


def _checked(given: ExportArguments) -> Path:
    """OUT, which is new or empty, and called by a version."""
    out = Path(given.out).absolute()
    if not given.bare and not out.name.isdecimal():
        raise UserError(
            f"`--out` must end in a version, a whole number, such as {given.out}/1; "
            f"got {given.out}."
        )
    for name in ("bfloat16", "portable", "sign"):
        if given.bare and getattr(given, name):
            raise UserError(f"`--{name}` is of the program, which `--bare` leaves out.")
    if min((*given.buckets, *given.batches), default=1) < 1:
        raise UserError("`--buckets` and `--batches` must be at least 1.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{given.out} is there already; a new version goes to another folder.")
    return out


def _check_disk(out: Path, source: Path) -> None:
    """UserError where there is no room for a bundle, before the model is loaded and measured."""
    sizes = [path.stat().st_size for path in source.rglob("*") if path.is_file()]
    needed = PROGRAM_BYTES + COPIES * max(sizes, default=0)
    place = next(folder for folder in out.parents if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UserError(f"{place} has {free >> 20} MiB left, and a bundle may need {needed >> 20}.")


@contextlib.contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes `out` when the block ends, and is gone if it raises."""
    folder, made = out.with_name(f".{secrets.token_hex(8)}"), not out.parent.exists()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"Cannot create the folder {out}: {error.strerror}.") from error
    try:
        yield folder
        os.replace(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and not out.exists():
            with contextlib.suppress(OSError):  # whatever else came to lie there
                out.parent.rmdir()


def _write_model(given: ExportArguments, folder: Path) -> str:
    """Writes the model folder; what was measured, "" of a folder that is taken as it is."""
    source = _shipped(given.run)
    if not (source / SPEC_FILE).exists():
        return _measured(given, folder)
    for name in RUN_OPTIONS:
        if getattr(given, name) not in (None, "", (), False):
            raise UserError(f"`--{name.replace('_', '-')}` is for runs; {given.run} has its card.")
    spec, _ = read_folder(source)
    _write_spec(folder, {name: value for name, value in spec.items() if name != "serving"})
    for name in (WEIGHTS_FILE, CARD):
        if name != CARD or (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    return ""


def _shipped(path: Path) -> Path:
    """The folder of a model, where `path` may be the name of a shipped one."""
    if path.exists():
        return path
    if str(path) in image_shipped.FOLDERS:
        return image_shipped.folder(str(path))
    if str(path) in teacher_shipped.FOLDERS:
        return teacher_shipped.folder(str(path))
    return speech_models.SHIPPED[str(path)]() if str(path) in speech_models.SHIPPED else path


def _measured(given: ExportArguments, folder: Path) -> str:
    """Measures a run on dev and writes its model folder; what was measured, in words."""
    options: dict[str, Any] = {"data_licence": given.data_licence or "unknown", "note": given.note}
    options |= {"run": given.run, "out": folder, "machine": given.machine}
    options |= {"temperature": given.temperature, "float16": given.float16}
    if kind_of(given.run) in IMAGE_KINDS:
        if given.temperature is not None:
            raise UserError("`--temperature` is for models of sound.")
        return image_card.export(image_card.ExportArguments(**options, parts_from=given.parts_from))
    if given.parts_from:
        raise UserError("`--parts-from` is for multiscale models of images.")
    if given.float16:
        raise UserError("`--float16` is for models of images: weights of sound stay in float32.")
    model = speech_models.load(given.run)
    if isinstance(model, StudentModel):
        return student_card.export(teacher_card.ExportArguments(**options), model)
    return teacher_card.export(teacher_card.ExportArguments(**options))


def _write_program(given: ExportArguments, folder: Path) -> list[str]:
    """Adds the program to a model folder; lines on it."""
    spec = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))
    if given.bfloat16:
        _compute_in_bfloat16(spec)
    _write_spec(folder, spec)
    model = _loaded(spec, folder)
    if isinstance(model, ImageModel) and model.bits > 8:
        raise UserError(f"A bundle draws 8-bit images, got {model.bits}; `--bare` leaves it out.")
    batches, buckets = sorted(set(given.batches)), sorted(set(given.buckets))
    module, functions, lowered, serving = _signatures_of(model).export_functions(
        model, allowed_batches=batches, buckets=buckets
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder), functions, options)
    _write_spec(folder, spec | {"serving": serving})
    declared = {name: Signature.from_dict(s) for name, s in serving["signatures"].items()}
    check_program(folder, declared)
    if lowered:
        with tempfile.TemporaryDirectory(dir=folder) as place:  # of the same variables once more
            tf.saved_model.save(module, place, lowered, options)
            os.replace(Path(place) / PROGRAM, folder / LOWERED)
        check_program(folder, declared)
    lines = [f"{given.out}: {', '.join(declared)}"]
    if given.portable:
        _write_portable(model, folder / PORTABLE, buckets)
    if given.warm and not write_warmup(folder, given.out.absolute().parent.name, serving):
        lines.append("without warm-up requests: these need the package tensorflow-serving-api")
    return lines


def _write_spec(folder: Path, spec: dict[str, Any]) -> None:
    (folder / SPEC_FILE).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")


def _compute_in_bfloat16(spec: dict[str, Any]) -> None:
    if spec["kind"] not in NETWORKS:
        raise UserError("`--bfloat16` is for models of sound: images are drawn in float32.")
    spec["config"][NETWORKS[spec["kind"]]]["compute_dtype"] = "bfloat16"


def _loaded(spec: dict[str, Any], folder: Path) -> AnyModel:
    """The model of a folder, with the weights as they are stored."""
    return images.load(folder) if spec["kind"] in IMAGE_KINDS else speech_models.load(folder)


def _signatures_of(model: AnyModel) -> ModuleType:
    """The module whose `export_functions` knows the model."""
    of_images = isinstance(model, ImageModel)
    return importlib.import_module(
        "serving.bundles.image_signatures" if of_images else "serving.bundles.audio_signatures"
    )


def _write_portable(model: AnyModel, folder: Path, buckets: list[int]) -> None:
    """Writes the sampler as functions that JAX can run."""
    if isinstance(model, ImageModel):
        image_portable.export_sampler(folder, model.density)
        return
    frames = min(buckets, default=PORTABLE_FRAMES)
    if isinstance(model, StudentModel):
        student_portable.export_sampler(folder, model.network, batch=1, num_frames=frames)
        return
    config = model.network.config
    chunk = config.context_block_samples if config.context_layers else CHUNK_SAMPLES
    teacher_portable.export_sampler(
        folder, model.network, batch=1, chunk_samples=chunk, num_frames=frames
    )
