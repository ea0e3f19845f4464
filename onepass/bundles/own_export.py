"""`export` writes a user's model as a bundle, NAME/VERSION, which `onepass serve` serves.

What the bundle draws is compared with the model by one pass of the network, which draws each
element again from its noise and the bundle's elements before it: one that rounding moves to another
level has no effect on those after it. Where many move, the model's passes may not have converged.
"""

import functools
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.audio_signatures import default_buckets, streaming_functions
from onepass.bundles.bundle import MODEL_FOLDER
from onepass.bundles.condition_inputs import CONDITIONS, ELEMENTS, FRAMES
from onepass.bundles.manifest import check_folder, private_key
from onepass.bundles.own_prompts import offer_prompts, offer_prompts_of_shape
from onepass.bundles.own_signatures import (
    Conditions,
    Entries,
    element_type,
    elements_of,
    of_shape,
    offer_log_prob,
    pad_log_prob,
)
from onepass.bundles.signature import ARRAY, IMAGE, SEED, SOUND, Arrays
from onepass.bundles.writing import (
    Exported,
    check_new,
    seal,
    write_program,
)
from onepass.families import of_kind, parts_of
from onepass.foundation.allowed_operations import PROGRAM
from onepass.foundation.arguments import checked_length
from onepass.foundation.atomic_files import replacing_folder
from onepass.foundation.errors import UserError
from onepass.foundation.tensorflow_state import check_compiler
from onepass.model import Autoregressive
from onepass.networks.condition_values import given_once
from onepass.samplers.fixed_point import MOVED, has_moved, sample_symbols
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.storage.program import assigning_nothing
from onepass.storage.save import named_reasons, rate_of, save


def drawn_again(
    model: Autoregressive, conditions: Conditions, inputs: Arrays, elements: np.ndarray
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
    student: FlowStudent, conditions: Conditions, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, None]:
    """Return what a student draws from the noise of a bundle's elements; the rest as above."""
    num, length = elements.shape
    noise = student.noise(int(inputs[SEED][0]), tf.range(num), length)
    values = student.draw(noise, conditions.of(_tensors(inputs))).output
    return student.elements(values), None


def _tensors(inputs: Arrays) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in inputs.items()}


LENGTHS = (256, 1024, 4096, 16_384, 65_536)  # sequences with a condition are padded to one of these
Length = int | Sequence[int] | None


def export(
    model: Autoregressive | FlowStudent,
    out: str | Path,
    *,
    length: Length = None,
    sample_rate_hz: int | None = None,
    entries: Entries = None,
    sign_with: Path | None = None,
    warm: bool = True,
) -> Path:
    """Write a model atomically as a bundle, which `onepass serve` serves.

    Args:
      model: the model, which is exported with its current weights and not changed.
      out: the bundle's folder, MODELS/NAME/VERSION, new or empty; the version is a whole number.
      length: the largest number of elements of a sequence in a request; None: 65,536, or two
        minutes of audio. If the network has no step or reads `Frames`, it is required, and every
        request has exactly this number. For images (height, width, channels); None: the shape of
        the network's input.
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
      The absolute path of the bundle's folder.

    Raises:
      UserError: the model cannot be exported, for the reason in the message; or `out` exists and is
        not empty, or its name is not a version.
      ValueError: the model is of a different kind, or does not fit `length`, `sample_rate_hz` or
        `entries`.
    """
    family = of_kind(getattr(model, "kind", None))
    if family is None or family.parts.store is None:
        raise ValueError(
            f"`model` must be an Autoregressive or a FlowStudent, got {type(model).__name__}."
        )
    check_compiler()
    model.follow(by_trace=True)
    layout = getattr(model, "layout", None)
    if layout is not None and layout.rank == 3:
        raise UserError(
            f"`model` must have one channel per time to be exported, got {layout.channels};"
            " `onepass.save` stores it."
        )
    out = Path(out).absolute()
    check_folder(out, "`out`")
    check_new(out)
    before, model.sample_rate_hz = model.sample_rate_hz, rate_of(model, sample_rate_hz)
    try:
        _write(model, out, length, entries, sign_with, warm)
    finally:
        model.sample_rate_hz = before
    return out


def _write(
    model: Any, out: Path, length: Length, entries: Entries, sign_with: Path | None, warm: bool
) -> None:
    conditions = Conditions(model, entries)
    shape = _image_shape(model, length) if model.order == "raster" else _length(length)
    key = None if sign_with is None else private_key(sign_with)
    with replacing_folder(out) as folder, named_reasons("exported"):
        spec, exported = _export_model(assigning_nothing(model), shape, conditions)
        try:
            live = functools.partial(parts_of(model.kind).bundled()[1], model, conditions)
            write_program(folder, spec, exported, live)
        except UserError as error:
            start, reason = f"{folder / PROGRAM} ", str(error)
            if not reason.startswith(start):
                raise
            raise UserError(
                f"The model cannot be exported: it {reason.removeprefix(start)}"
            ) from error
        if model.kind == Autoregressive.kind:
            _write_model(model, folder / MODEL_FOLDER)
        seal(folder, out, warm, key, exported.serving)


def _write_model(model: Autoregressive, folder: Path) -> None:
    try:
        save(model, folder)
    except UserError as error:
        shutil.rmtree(folder, ignore_errors=True)
        warnings.warn(f"The bundle has a sampler, but no `autoregressive`: {error}", stacklevel=4)


def _export_model(
    model: Any, shape: Any, conditions: Conditions
) -> tuple[dict[str, Any], Exported]:
    # Sound is served piece by piece, and frames are read all at once.
    is_sound = model.sample_rate_hz is not None and not conditions.at_frame_rate
    spec: dict[str, Any] = {
        "kind": model.kind,
        "makes": SOUND if is_sound else ARRAY,
        "order": model.order,
        "condition": FRAMES if conditions.is_frames else "none",
        "condition_channels": conditions.frame_channels,
        **({CONDITIONS: conditions.names} if conditions.names else {}),
        "codec": type(model.codec).__name__,
        "distribution": type(getattr(model, "distribution", model)).__name__,
        "temperature": 1.0,
        ELEMENTS: elements_of(model),
    }
    if model.order == "raster":
        return _exported_images(model, shape, spec, conditions)
    if is_sound:
        spec["sample_rate_hz"] = model.sample_rate_hz
    return _exported_sequences(model, shape, spec, conditions)


def _exported_sequences(
    model: Any, length: int | None, spec: dict[str, Any], conditions: Conditions
) -> tuple[dict[str, Any], Exported]:
    if conditions.at_frame_rate:
        if length is None:
            raise UserError("The model reads frames, so that `length` must be given.")
        return spec, _of_length(model, length, conditions)
    lengths = _lengths(model.sample_rate_hz, length)
    for each in lengths if model.kind == Autoregressive.kind else ():
        model.check_length((each,))  # the shortest first, as it is the cheapest to check
    try:
        streaming = parts_of(model.kind).bundled()[0](model, lengths[-1], conditions)
    except (NotCausalError, UnsupportedNetworkError) as error:
        if model.kind != "autoregressive" or model.sample_rate_hz is not None:
            raise UserError(f"The model cannot be exported: it has no step: {error}") from error
        if length is None:
            raise UserError(
                f"The network has no step, so that `length` must be given: {error}"
            ) from error
        return spec, _of_length(model, length, conditions)
    exported = streaming_functions(streaming, lengths)
    if model.kind == "autoregressive":
        padded = pad_log_prob(model, lengths)
        offer_log_prob(exported, padded, None, conditions)
        offer_prompts(exported, padded, streaming)
    spec |= {"hop_samples": 1, "speakers": [], "max_length": lengths[-1]}
    spec["unit_samples"] = exported.serving["streaming"]["unit_samples"]
    return spec, exported


def _of_length(model: Any, length: int, conditions: Conditions) -> Exported:
    exported = of_shape(model, (length,), False, conditions)
    only = length if conditions.at_frame_rate else None
    padded = pad_log_prob(model, [length])
    offer_log_prob(exported, padded, None, conditions, only)
    offer_prompts_of_shape(exported, padded, (length,), conditions)
    return exported


def _exported_images(
    model: Autoregressive, shape: tuple[int, ...], spec: dict[str, Any], conditions: Conditions
) -> tuple[dict[str, Any], Exported]:
    height, width, channels = shape
    is_level = model.codec.levels == 256 and element_type(model) == np.int32
    is_byte_image = is_level and height == width and channels in (1, 3)
    if is_byte_image:
        spec |= {"makes": IMAGE, "size": height, "channels": channels, "classes": []}
    exported = of_shape(model, shape, is_byte_image, conditions)
    offer_log_prob(exported, model, channels, conditions)
    offer_prompts_of_shape(exported, model, shape, conditions)
    return spec, exported


def _length(length: Length) -> int | None:
    return None if length is None else checked_length(length, "time")[0]


def _image_shape(model: Any, length: Length) -> tuple[int, ...]:
    network = model.symbol_network
    declared = getattr(network, "declared", network.inputs)  # default of a one-size network
    if length is not None:
        return checked_length(length, "raster")
    sizes = declared.shape[1:].as_list()
    return checked_length(None if None in sizes else sizes, "raster")


def _lengths(sample_rate_hz: int | None, length: int | None) -> list[int]:
    usual = LENGTHS if sample_rate_hz is None else default_buckets(sample_rate_hz, 1)
    longest = usual[-1] if length is None else length
    return [each for each in usual if each < longest] + [longest]
