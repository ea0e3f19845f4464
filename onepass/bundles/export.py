"""`export` writes a model for use without its code, in one of the formats of `formats`.

What a bundle draws is compared with a user's model by one pass of the network, which draws each
element again from its noise and the bundle's elements before it: one that rounding moves to another
level has no effect on those after it. Where many move, the model's passes may not have converged.
"""

import functools
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.bundle import MODEL_FOLDER
from onepass.bundles.formats import BUNDLE, FORMATS, FormatName
from onepass.bundles.function import Function, Functions
from onepass.bundles.functions import Length, functions
from onepass.bundles.manifest import MANIFEST, check_folder, private_key, write_manifest
from onepass.bundles.own_functions import Entries
from onepass.bundles.saved_model import check_new, seal, write_program
from onepass.bundles.signature import SEED, Arrays
from onepass.families import of_kind
from onepass.foundation.allowed_operations import PROGRAM
from onepass.foundation.arguments import whole_number
from onepass.foundation.atomic_files import replacing_folder, write_npz
from onepass.foundation.errors import UserError
from onepass.foundation.tensorflow_state import check_compiler
from onepass.model import Autoregressive
from onepass.networks.conditions import given_once
from onepass.samplers.fixed_point import MOVED, has_moved, sample_symbols
from onepass.storage.save import named_reasons, rate_of, save

METHODS = ("cached", "fixed-point")


def drawn_again(
    model: Autoregressive, conditions: Any, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what a model draws after a bundle's elements, and their log probabilities.

    UnsupportedNetworkError means that it has no step, and that its passes do not converge.
    """
    given, symbols = conditions.of(_tensors(inputs)), model.symbols(elements)
    parameters = model.conditionals(elements, given)
    seed, num = int(inputs[SEED][0]), len(elements)
    noise = model.layout.noise(model.distribution, seed, num, elements.shape[1:])
    drawn = sample_symbols(parameters, model.distribution, noise, 1.0, symbols)
    moved = tf.reduce_mean(tf.cast(has_moved(symbols, drawn), tf.float32))
    if moved > MOVED and not getattr(model.symbol_network, "has_step", False):
        once = given_once(model.symbol_network, given, model.order, elements.shape)
        model.samplers.draw("fixed-point", noise, once, tf.constant(1.0))
    return model.codec.decode(drawn), model.log_prob(elements, given)


def drawn_from_noise(
    student: FlowStudent, conditions: Any, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, None]:
    """Return what a student draws from the noise of a bundle's elements; the rest as above."""
    num, length = elements.shape
    noise = student.noise(int(inputs[SEED][0]), tf.range(num), length)
    values = student.draw(noise, *conditions.of(_tensors(inputs)).values()).output
    return student.elements(values), None


def _tensors(inputs: Arrays) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in inputs.items()}


def export(
    model: Any,
    out: str | Path,
    *,
    format: FormatName = "bundle",
    length: Length = None,
    rows: int = 1,
    method: str = "cached",
    sample_rate_hz: int | None = None,
    entries: Entries = None,
    sign_with: Path | None = None,
    warm: bool = True,
) -> Path:
    """Write a model atomically, to be used without its code.

    Args:
      model: the model, which is exported with its current weights and not changed: for a bundle, an
        `Autoregressive` or a `FlowStudent`; else also a model of this library.
      out: the folder to write, new or empty; a bundle's is MODELS/NAME/VERSION, and the version is
        a whole number.
      format: "bundle", which `onepass serve` serves and `onepass.load` loads; "stablehlo", for JAX;
        or "tflite", for LiteRT.
      length: the largest number of elements of a sequence in a request; None: 65,536, or two
        minutes of audio. If the network has no step or reads `Frames`, it is required, and every
        request has exactly this number. For images (height, width, channels); None: the shape of
        the network's input. In other formats, the number of elements of a call.
      rows: number of rows of a call, in formats other than a bundle.
      method: how a WaveNet or a PixelCNN of this library draws there: "cached", or "fixed-point".
      sample_rate_hz: sample rate of an audio model, which is then served as such. None: the rate
        that the model was saved with, if any.
      entries: the size, in a request, of each axis of unknown size that is not an axis of the
        elements, such as the number of entries of a `Memory`: a number for all conditions, or
        numbers by the condition's name. Required for such conditions.
      sign_with: PEM file of a private ed25519 key that signs the bundle, for `onepass serve
        --trust`; None: do not sign it.
      warm: whether to write the warm-up requests that TensorFlow Serving makes, if the package
        tensorflow-serving-api is installed.

    Returns:
      The absolute path of the folder.

    Raises:
      UserError: the model cannot be exported, for the reason in the message, or none of its
        functions in this format (others are left out with a warning); or `out` exists and is
        not empty, or its name is not a version.
      ValueError: the model is of a different kind, or does not fit `length`, `sample_rate_hz` or
        `entries`.
    """
    family = of_kind(getattr(model, "kind", None))
    is_own = family is not None and family.parts.store is not None
    if family is None or not (is_own or format != BUNDLE):
        raise ValueError(
            f"`model` must be an Autoregressive or a FlowStudent, got {type(model).__name__}."
        )
    if format not in (BUNDLE, *FORMATS):
        known = ", ".join((BUNDLE, *FORMATS))
        raise ValueError(f"`format` must be one of {known}, got {format!r}.")
    check_compiler()
    out = Path(out).absolute()
    if format == BUNDLE:
        check_folder(out, "`out`")
    check_new(out)
    if not is_own:
        if method not in METHODS:
            raise ValueError(f"`method` must be {' or '.join(METHODS)}, got {method!r}.")
        return write_fixed(functions(model, method=method), out, format, rows, length)
    before, model.sample_rate_hz = model.sample_rate_hz, rate_of(model, sample_rate_hz)
    try:
        with named_reasons("exported"):
            found = functions(model, length=length, entries=entries)
        if format != BUNDLE:
            return write_fixed(found, out, format, rows, length)
        return _write_bundle(model, found, out, sign_with, warm)
    finally:
        model.sample_rate_hz = before


def write_fixed(
    found: Functions, out: Path, name: str, rows: int = 1, length: Length = None
) -> Path:
    """Write the functions of one size in the format `name`, with their manifest; return `out`.

    A function that the format cannot express is left out, with a warning.
    """
    length = length if isinstance(length, int | None) else None  # the shape of an image is known
    with replacing_folder(out) as folder, named_reasons("exported"):
        made = found.of_size(whole_number(rows, "rows"), length)
        entries, reasons = write_functions(folder, name, made, found.variables_of(made))
        said = {"format": 1, "functions": entries, "model": found.spec}
        (folder / MANIFEST).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
        write_manifest(folder)
    for reason in reasons:
        warnings.warn(f"{out} lacks {reason}", stacklevel=3)
    return out


def write_functions(
    folder: Path, name: str, made: Mapping[str, Function], variables: Mapping[str, tf.Variable]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Write functions in a format; return the entries of the manifest, and what was left out.

    Raises:
      UserError: the format can express none of them.
    """
    entries, reasons = {}, []
    for each, function in made.items():
        try:
            entry = FORMATS[name](folder, each, function, variables)
        except UserError as error:
            reasons.append(f"`{each}`: {error}")
            continue
        entries[each] = {**entry, "state": list(function.state)}
        if function.state:
            write_npz(folder / f"{each}_state.npz", function.first_state())
    if not entries:
        raise UserError(f"The model cannot be exported: {'; '.join(reasons)}")
    return entries, reasons


def _write_bundle(
    model: Any, found: Functions, out: Path, sign_with: Path | None, warm: bool
) -> Path:
    key = None if sign_with is None else private_key(sign_with)
    draws_elements = model.kind == Autoregressive.kind
    draw = drawn_again if draws_elements else drawn_from_noise
    with replacing_folder(out) as folder, named_reasons("exported"):
        try:
            live: Any = functools.partial(draw, model, found.conditions)
            write_program(folder, found.spec, found, live)
        except UserError as error:
            start, reason = f"{folder / PROGRAM} ", str(error)
            if not reason.startswith(start):
                raise
            raise UserError(
                f"The model cannot be exported: it {reason.removeprefix(start)}"
            ) from error
        if draws_elements:
            _write_model(model, folder / MODEL_FOLDER)
        seal(folder, out, warm, key, found.description)
    return out


def _write_model(model: Autoregressive, folder: Path) -> None:
    try:
        save(model, folder)
    except UserError as error:
        shutil.rmtree(folder, ignore_errors=True)
        warnings.warn(f"The bundle has a sampler, but no `autoregressive`: {error}", stacklevel=4)
