"""The command `export`, which writes a run or a stored model as a bundle, NAME/VERSION."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from distill import model as speech_models
from onepass import families
from onepass.bundles import export
from onepass.bundles.export import check_new, seal, write_program, write_spec
from onepass.bundles.export_arguments import ExportArguments, entries_of
from onepass.bundles.formats import BUNDLE
from onepass.bundles.functions import functions
from onepass.bundles.manifest import check_folder, folder_kind, read_key
from onepass.families import ModelFamily
from onepass.foundation.card import write_folder
from onepass.foundation.files import replacing_folder, write_npz
from onepass.foundation.model_folders import (
    SHARED,
    SPEC_FILE,
    WEIGHTS_FILE,
    kind_of,
    model_folder,
    read_folder,
)
from onepass.foundation.rules import UserError, require

CARD = "card.md"
PROGRAM_BYTES, COPIES = 32 << 20, 4  # a bundle has the program and copies of the weights
RUN_OPTIONS = ("data_licence", "note", "machine", "parts_from", "temperature", "refine", "float16")
NOTHING = (None, "", (), False)
OWN_OPTIONS = ("length", "entries", "sample_rate_hz")  # for a folder of `onepass.save`
OF_BUNDLES = ("bare", "buckets", "batches", "bfloat16", "sign")  # options of this format alone
# Options that models of `onepass.save` do not use.
NOT_OWN = (*RUN_OPTIONS, "bare", "buckets", "batches", "bfloat16")


def write_export(given: ExportArguments) -> list[str]:
    """Write the export atomically, and return the lines that the command prints."""
    if given.format != BUNDLE:
        _refuse(given, (*RUN_OPTIONS, *OF_BUNDLES), "is for `--format bundle`.")
    elif given.rows != 1:
        raise UserError("`--rows` is for formats of one size: a bundle has `--batches`.")
    is_saved, family = folder_kind(given.run) == "saved", families.of_model(given.run)
    is_own = is_saved or (family is not None and family.makes == "arrays")
    if is_own or given.format != BUNDLE:
        usual = "autoregressive" if is_own else families.STUDENT
        return _export_model(given, family or families.registered(usual), is_own)
    _refuse(given, OWN_OPTIONS, "is for models that `onepass.save` wrote.")
    lines, out = [], _check_options(given)
    key = read_key(given.sign, "private") if given.sign else None
    sizes = [path.stat().st_size for path in model_folder(given.run).rglob("*") if path.is_file()]
    needed = PROGRAM_BYTES + COPIES * max(sizes, default=0)
    place = next(folder for folder in out.parents if folder.exists())
    if (free := shutil.disk_usage(place).free) < needed:
        raise UserError(f"{place} has {free >> 20} MiB left, and a bundle may need {needed >> 20}.")
    with replacing_folder(out) as folder:
        measured = _write_model(given, folder)
        if measured:
            lines.append(f"{given.out}: {measured}")
        if not given.bare:
            lines += _write_program(given, folder, out, key)
    return lines or [f"{given.out}: the model folder"]


def _export_model(given: ExportArguments, family: ModelFamily, is_own: bool) -> list[str]:
    """Export a user's model, or one of this library in a format of one size."""
    if is_own:
        who = "a model of arrays" if family.presets else "which `onepass.save` wrote"
        _refuse(given, NOT_OWN, f"is not for {given.run}, {who}.")
    else:
        _refuse(given, OWN_OPTIONS[1:], "is for models that `onepass.save` wrote.")
    model = family.load(given.run)
    length: Any = given.length[0] if len(given.length) == 1 else given.length or None
    try:
        export.export(
            model,
            given.out,
            format=given.format,
            length=length,
            rows=given.rows,
            sample_rate_hz=given.sample_rate_hz,
            entries=entries_of(given.entries),
            sign_with=given.sign,
            warm=given.warm,
        )
    except ValueError as error:  # an option that does not fit the model
        raise UserError(str(error)) from error
    return [f"{given.out}: {model.kind}"]


def _refuse(given: ExportArguments, names: tuple[str, ...], rule: str) -> None:
    for name in names:
        if getattr(given, name) not in NOTHING:
            raise UserError(f"`--{name.replace('_', '-')}` {rule}")


def _check_options(given: ExportArguments) -> Path:
    if not given.bare:
        check_folder(given.out, "`--out`")
    for name in ("bfloat16", "sign"):
        if given.bare and getattr(given, name):
            raise UserError(f"`--{name}` is of the program, which `--bare` leaves out.")
    if min((*given.buckets, *given.batches), default=1) < 1:
        raise UserError("`--buckets` and `--batches` must be at least 1.")
    check_new(given.out)
    return Path(given.out).absolute()


def _write_model(given: ExportArguments, folder: Path) -> str:
    source = model_folder(given.run)
    if not (source / SPEC_FILE).exists():
        return _measure_run(given, folder)
    _refuse(given, RUN_OPTIONS, f"is for runs; {given.run} has its card.")
    spec, weights = read_folder(source)
    kept = {name: value for name, value in spec.items() if name not in ("serving", SHARED)}
    write_spec(folder, kept)
    if SHARED in spec:
        write_npz(folder / WEIGHTS_FILE, weights)
    else:
        shutil.copyfile(source / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    if (source / CARD).exists():
        shutil.copyfile(source / CARD, folder / CARD)
    return ""


def _measure_run(given: ExportArguments, folder: Path) -> str:
    kind = kind_of(given.run)
    if families.of_kind(kind) is None:
        speech_models.load(given.run)  # raises an error that gives the reason
    family = families.registered(kind)
    makes_images = family.makes == "images"
    if makes_images and given.temperature is not None:
        raise UserError("`--temperature` is for models of sound.")
    require(
        given.refine is None or (family.is_fast and given.refine >= 0),
        "--refine",
        "at least 0, of a student",
        given.refine,
    )
    if given.parts_from and not makes_images:
        raise UserError("`--parts-from` is for multiscale models of images.")
    if given.float16 and not makes_images:
        raise UserError("`--float16` is for models of images: weights of sound stay in float32.")
    licence = given.data_licence or "unknown"
    written: Any = dataclasses.replace(given, out=folder, data_licence=licence)
    return write_folder(written, family.measure, family.card)


def _write_program(given: ExportArguments, folder: Path, out: Path, key: Any) -> list[str]:
    spec = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))
    family = families.registered(spec["kind"])
    if given.bfloat16:
        if not family.network:
            raise UserError("`--bfloat16` is for models of sound: images are drawn in float32.")
        spec["config"][family.network]["compute_dtype"] = "bfloat16"
    write_spec(folder, spec)
    model = family.load(folder)
    found = functions(model, batches=given.batches, buckets=given.buckets)
    write_program(folder, found, spec)
    lines = [f"{given.out}: {', '.join(found.calls)}"]
    if not seal(folder, out, given.warm, key, found.description):
        lines.append("without warm-up requests: these need the package tensorflow-serving-api")
    return lines
