"""The functions of an image model.

Each row of a batch is drawn separately, by the same programs as in local sampling, so the pixels do
not depend on the batch. `serving_default` draws with TensorFlow's kernels; XLA compiles all others.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.bundles.function import (
    INT32,
    UINT8,
    Function,
    Functions,
    Make,
    Tensors,
    by_rows,
    drawing_functions,
    keys_of,
    noise_infos,
)
from onepass.bundles.signature import PLAIN, Signature, TensorInfo, scale_name
from onepass.foundation.rules import UserError
from onepass.replicator.portable.export import as_stablehlo, named_variables
from onepass.trained import Trained
from pixelcnn.config import part_names
from pixelcnn.data.captions import NUM_CODES
from pixelcnn.density import ImageDensity, Prefix, condition_specs, pixel_words
from pixelcnn.model import (
    LARGEST_COMPILED,
    count_passes,
    multiscale_program,
    pixelcnn_program,
    sample_multiscale,
    sample_pixelcnn,
    sampler_of,
)

BATCHES = tuple(range(1, 9))  # rows cost the same in any batch, so no batch is padded
MAX_GUIDANCE = 20.0  # beyond it, a pixel's best level has all of the probability
MAX_TEMPERATURE = 100.0  # beyond it, images are noise and numbers could overflow


class Drawing(NamedTuple):
    """Drawing of images: a signature, a program, and what calls it for the inputs of one row."""

    signature: Signature
    program: Callable[..., Any]
    row: Callable[[Callable[..., Any], Tensors], Tensors]

    def function(self, program: Callable[..., Any]) -> Function:
        """Return the function of batches that calls a program for every row."""
        row: Make = functools.partial(self.row, program)
        return Function(by_rows(self.signature, row), self.signature)


def image_functions(
    model: Trained,
    *,
    batches: Sequence[int] = (),
    buckets: Sequence[int] = (),
    method: str = "cached",
) -> Functions:
    """Return the functions of an image model, by default in batches of 1 to 8; no `buckets`.

    `method` is the sampler of `serving_default`.
    """
    if buckets:
        raise UserError("`--buckets` is for audio models; images have one size.")
    if model.front.bits > 8:
        raise UserError(
            f"A bundle draws 8-bit images, got {model.front.bits}; `--bare` leaves it out."
        )
    density = model.network
    make = _of_pixelcnn if density.multiscale is None else _of_multiscale
    drawings = make(density, sampler_of(method))
    calls = {name: each.function(each.program) for name, each in drawings.items()}
    found = drawing_functions(calls, sorted(set(batches)) or BATCHES)
    found.variables = named_variables(density)
    found.lowered = functools.partial(_lower, density, drawings)
    return found


def _lower(density: ImageDensity, drawings: dict[str, Drawing]) -> dict[str, Function]:
    if density.multiscale is not None and density.config.data.size > LARGEST_COMPILED:
        return {}
    once = functools.cache(lambda program: as_stablehlo(program, density.variables))
    compiled = {name: each for name, each in drawings.items() if name != PLAIN}
    return {name: each.function(once(each.program)) for name, each in compiled.items()}


def _of_pixelcnn(density: ImageDensity, sampler: Callable[..., Any]) -> dict[str, Drawing]:
    network: Any = density.pixelcnn
    size, channels = density.config.data.size, density.config.data.channels
    images = TensorInfo(UINT8, (None, size, size, channels))
    request, outputs = _request_inputs(density, 1), {"picture": images}
    count = TensorInfo(INT32, (None,), 0, size**2)
    prefix = {"given": images, "given_count": count}

    def row(program: Callable[..., Any], given: Tensors) -> Tensors:
        kept = Prefix(tf.zeros([1, size, size, channels], tf.int32), tf.constant(0))
        if "given" in given:
            kept = Prefix(tf.cast(given["given"], tf.int32), given["given_count"][0])
        drawn = _draw_one(program, given, kept, given["temperature"][0, 0])
        return {"picture": _image(count_passes(drawn).levels)}

    plain = functools.partial(sample_pixelcnn, density.conditioner, network, size, sampler)
    compiled = pixelcnn_program(density.conditioner, network, size)
    whole = Signature(request, outputs)
    return {
        PLAIN: Drawing(whole, plain, row),
        "compiled": Drawing(whole, compiled, row),
        "complete": Drawing(Signature(request | prefix, outputs), compiled, row),
    }


def _of_multiscale(density: ImageDensity, sampler: Callable[..., Any]) -> dict[str, Drawing]:
    model: Any = density.multiscale
    missing = [part for part in part_names(model.sizes) if part not in model.parts]
    if model.any_shape:
        rule = "which no bundle has a program for: `--bare` writes the model without one."
        raise UserError(f"The model enlarges photographs of any shape in tiles, {rule}")
    if missing:
        raise UserError(f"The run has not trained {', '.join(missing)}; it cannot draw.")
    sizes, channels = model.sizes, density.config.data.channels
    images = {side: TensorInfo(UINT8, (None, side, side, channels)) for side in sizes}
    request = _request_inputs(density, len(sizes))
    scales = {f"picture_{side}": info for side, info in images.items()}
    whole = Signature(request, {"picture": images[max(images)], **scales})

    def plain(batch: Tensors, seed: tf.Tensor, rows: tf.Tensor, *arguments: Any) -> Any:
        words = pixel_words(model, seed, rows, sizes[-1] ** 2)
        return sample_multiscale(
            density.conditioner, model, sizes[-1], sampler, batch, words, *arguments
        )

    def drawing(signature: Signature, program: Callable[..., Any]) -> Drawing:
        def row(program: Callable[..., Any], given: Tensors) -> Tensors:
            start = tf.cast(given["start"], tf.int32) if "start" in given else None
            scales, _ = _draw_one(program, given, start, given["temperature"][0])
            outputs = {f"picture_{scale.shape[1]}": _image(scale) for scale in scales}
            outputs["picture"] = _image(scales[-1])
            return {name: outputs[name] for name in signature.outputs}

        return Drawing(signature, program, row)

    programs = {
        side: multiscale_program(density.conditioner, model, side, sizes[-1]) for side in sizes
    }
    drawings = {PLAIN: drawing(whole, plain), "compiled": drawing(whole, programs[sizes[-1]])}
    # Every scale is drawn from the next smaller scale, the smallest without one.
    for side, smaller in zip(sizes, (None, *sizes), strict=False):
        start = {"start": images[smaller]} if smaller else {}
        signature = Signature(request | start, {"picture": images[side]})
        drawings[scale_name(side)] = drawing(signature, programs[side])
    return drawings


def _request_inputs(density: ImageDensity, scales: int) -> dict[str, TensorInfo]:
    conditioning = density.config.conditioning
    last = conditioning.classes - 1
    limits = {"label": (0, last), "caption": (0, NUM_CODES - 1), "map": (-1, last)}
    limits["past"] = (0, conditioning.levels - 1)
    request = noise_infos((None, scales), high=MAX_TEMPERATURE)
    if conditioning.has_null:
        request["guidance"] = TensorInfo(np.dtype(np.float32), (None,), 0, MAX_GUIDANCE, 0)
    for name, spec in condition_specs(density.config).items():
        shape = (None, *spec.shape.as_list()[1:])
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        low, high = limits.get(name, (None, None))
        request[name] = TensorInfo(dtype, shape, low, high)
    return request


def _draw_one(program: Callable[..., Any], given: Tensors, *arguments: Any) -> Any:
    condition = {name: given[name] for name in CONDITIONS if name in given}
    draw = functools.partial(program, condition, keys_of(given["seed"])[0], given["row"])
    if "guidance" not in given:
        return draw(*arguments)
    weight = given["guidance"][0]
    return tf.cond(weight > 0, lambda: draw(*arguments, weight), lambda: draw(*arguments))


CONDITIONS = ("label", "caption", "map", "past", "action", "state")


def _image(levels: tf.Tensor) -> tf.Tensor:
    return tf.cast(levels[0], tf.uint8)
