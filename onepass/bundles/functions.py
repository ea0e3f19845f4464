"""`functions` returns any model as pure functions of tensors by name."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onepass.bundles.function import Function, Functions
from onepass.bundles.image_functions import image_functions
from onepass.bundles.own_functions import (
    PIECES,
    Conditions,
    Entries,
    StreamingAutoregressive,
    StreamingFlows,
    density_functions,
    element_type,
    elements_of,
    pad_log_prob,
)
from onepass.bundles.own_prompts import functions_of_shape, prompt_functions
from onepass.bundles.sequence_functions import default_buckets, sequence_functions
from onepass.bundles.signature import ARRAY, CONDITIONS, ELEMENTS, FRAMES, IMAGE, LOG_PROB, SOUND
from onepass.bundles.sound_functions import sound_functions
from onepass.foundation.arguments import check_draw_length
from onepass.foundation.errors import UserError
from onepass.model import Autoregressive
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.storage.save import assigning_nothing

PADDED = (256, 1024, 4096, 16_384, 65_536)  # sequences with a condition are padded to one of these
Length = int | Sequence[int] | None


def functions(model: Any, **options: Any) -> Functions:
    """Return the functions of a model, with its current weights.

    Args:
      model: an `Autoregressive`, a `FlowStudent`, or a `Trained` of sound or images.
      options: those of the kind of model: `batches` and `buckets` for models of this library,
        `length` and `entries` for a user's.

    Raises:
      UserError: the model has no such functions; the message says why.
    """
    makes = getattr(model, "makes", None)
    if makes == "sound":
        return sound_functions(model, **options)
    if makes == "images":
        return image_functions(model, **options)
    return _of_own(model, **options)


def _of_own(
    model: Any, *, length: Length = None, entries: Entries = None, batches: Sequence[int] = ()
) -> Functions:
    model.follow(by_trace=True)
    layout = getattr(model, "layout", None)
    if layout is not None and layout.rank == 3:
        raise UserError(
            f"`model` must have one channel per time to be exported, got {layout.channels};"
            " `onepass.save` stores it."
        )
    conditions = Conditions(model, entries)
    if model.order == "raster":
        shape = _image_shape(model, length)
        found = _of_images(assigning_nothing(model), shape, conditions)
    else:
        found = _of_sequences(assigning_nothing(model), _length(length), conditions)
    # Sound is served piece by piece, and frames are read all at once.
    is_sound = model.sample_rate_hz is not None and not conditions.at_frame_rate
    found.batches = sorted(set(batches)) or found.batches
    found.conditions = conditions
    found.spec = {
        "kind": model.kind,
        "makes": SOUND if is_sound else ARRAY,
        "order": model.order,
        "condition": FRAMES if conditions.is_frames else "none",
        **({CONDITIONS: conditions.names} if conditions.names else {}),
        "codec": type(model.codec).__name__,
        "distribution": type(getattr(model, "distribution", model)).__name__,
        ELEMENTS: elements_of(model),
        **({"sample_rate_hz": model.sample_rate_hz} if is_sound else {}),
        **found.spec,
    }
    return found


def _of_sequences(model: Any, length: int | None, conditions: Conditions) -> Functions:
    if conditions.at_frame_rate:
        if length is None:
            raise UserError("The model reads frames, so that `length` must be given.")
        return _of_length(model, length, conditions)
    lengths = _lengths(model.sample_rate_hz, length)
    draws_elements = model.kind == Autoregressive.kind
    for each in lengths if draws_elements else ():
        model.check_length((each,))  # the shortest first, as it is the cheapest to check
    make = StreamingAutoregressive if draws_elements else StreamingFlows
    try:
        streaming = make(model, lengths[-1], conditions)
    except (NotCausalError, UnsupportedNetworkError) as error:
        if not draws_elements or model.sample_rate_hz is not None:
            raise UserError(f"The model cannot be exported: it has no step: {error}") from error
        if length is None:
            raise UserError(
                f"The network has no step, so that `length` must be given: {error}"
            ) from error
        return _of_length(model, length, conditions)
    found = sequence_functions(streaming, lengths)
    if draws_elements:
        padded = pad_log_prob(model, lengths)
        density = density_functions(padded, conditions, None, None)
        found.calls[LOG_PROB] = density[LOG_PROB]
        prompt_functions(found, padded, streaming)
        found.fixed = _with_density(found.fixed, density, lengths[-1])
    found.spec["max_length"] = lengths[-1]
    return found


def _with_density(
    fixed: Callable[..., dict[str, Function]], density: dict[str, Function], longest: int
) -> Callable[..., dict[str, Function]]:
    """Return `fixed` with the functions of given elements, besides those that draw."""

    def make(rows: int, length: int | None) -> dict[str, Function]:
        size = min(length or PIECES[0], longest)
        given = {name: each.fixed(rows, [size]) for name, each in density.items()}
        return fixed(rows, size) | given

    return make


def _of_length(model: Any, length: int, conditions: Conditions) -> Functions:
    only = length if conditions.at_frame_rate else None
    padded = pad_log_prob(model, [length])
    density = density_functions(padded, conditions, None, only)
    return functions_of_shape(padded, (length,), False, conditions, density)


def _of_images(model: Autoregressive, shape: tuple[int, ...], conditions: Conditions) -> Functions:
    height, width, channels = shape
    is_level = model.codec.levels == 256 and element_type(model) == np.int32
    is_byte_image = is_level and height == width and channels in (1, 3)
    density = density_functions(model, conditions, channels, None)
    found = functions_of_shape(model, shape, is_byte_image, conditions, density)
    if is_byte_image:
        found.spec = {"makes": IMAGE, "size": height, "channels": channels, "classes": []}
    return found


def _length(length: Length) -> int | None:
    return None if length is None else check_draw_length(length, "time")[0]


def _image_shape(model: Any, length: Length) -> tuple[int, ...]:
    network = model.symbol_network
    declared = getattr(network, "declared", network.inputs)  # default of a one-size network
    if length is not None:
        return check_draw_length(length, "raster")
    sizes = declared.shape[1:].as_list()
    return check_draw_length(None if None in sizes else sizes, "raster")


def _lengths(sample_rate_hz: int | None, length: int | None) -> list[int]:
    usual = PADDED if sample_rate_hz is None else default_buckets(sample_rate_hz, 1)
    longest = usual[-1] if length is None else length
    return [each for each in usual if each < longest] + [longest]
