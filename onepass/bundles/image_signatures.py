"""The signatures of an image model.

Each row of a batch is drawn separately, by the same programs as in local sampling, so the pixels do
not depend on the batch. `serving_default` draws with TensorFlow's kernels; XLA compiles all others.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.signature import COMPILED, PLAIN, Signature, TensorInfo, scale_name
from onepass.bundles.writing import Exported, Tensors, row_function, serving_spec
from onepass.foundation.errors import UserError
from onepass.likelihoods.noise import as_key
from onepass.replicator.portable.stablehlo import as_stablehlo
from onepass.trained import Trained
from pixelcnn.data.captions import NUM_CODES
from pixelcnn.density import ImageDensity, condition_specs
from pixelcnn.networks.config import part_names
from pixelcnn.sampling.generation import (
    LARGEST_COMPILED,
    multiscale_program,
    pixelcnn_program,
    sample_multiscale,
    sample_pixelcnn,
)
from pixelcnn.sampling.samplers import Prefix, multiscale_words, sample

BATCHES = tuple(range(1, 9))  # rows cost the same in any batch, so no batch is padded
MAX_GUIDANCE = 20.0  # beyond it, a pixel's best level has all of the probability
MAX_TEMPERATURE = 100.0  # beyond it, images are noise and numbers could overflow
INT32, INT64, FLOAT32, UINT8 = map(np.dtype, (np.int32, np.int64, np.float32, np.uint8))
Row = Callable[[Tensors], Tensors]  # from a batch of one to images without the batch axis
# Signatures by name, programs by name, and a function from a name and a program to a `Row`.
Parts = tuple[dict[str, Signature], dict[str, Any], Callable[[str, Any], Row]]


def export_functions(
    model: Trained, *, allowed_batches: Sequence[int] = (), buckets: Sequence[int] = ()
) -> Exported:
    """Return the signatures of an image model, by default in batches of 1 to 8; no `buckets`."""
    if buckets:
        raise UserError("`--buckets` is for audio models; images have one size.")
    if model.front.bits > 8:
        raise UserError(
            f"A bundle draws 8-bit images, got {model.front.bits}; `--bare` leaves it out."
        )
    density = model.network
    parts = (_of_pixelcnn if density.multiscale is None else _of_multiscale)(density)
    batches = sorted(set(allowed_batches)) or BATCHES
    serving = serving_spec(parts[0], batches)
    return Exported(
        _functions(parts), serving, density.variables, _compiled_functions(density, parts)
    )


def _compiled_functions(density: ImageDensity, parts: Parts) -> dict[str, Any]:
    if density.multiscale is not None and density.config.data.size > LARGEST_COMPILED:
        return {}
    signatures, programs, row_of = parts
    once = functools.cache(lambda program: as_stablehlo(program, density.variables))
    named = {name: once(program) for name, program in programs.items() if name != PLAIN}
    try:
        return _functions((signatures, named, row_of))
    except ValueError:  # an operation without a portable form
        return {}


def _functions(parts: Parts) -> dict[str, Any]:
    signatures, programs, row_of = parts
    return {n: row_function(signatures[n], row_of(n, program)) for n, program in programs.items()}


def _of_pixelcnn(density: ImageDensity) -> Parts:
    network: Any = density.pixelcnn
    size, channels = density.config.data.size, density.config.data.channels
    images = TensorInfo(UINT8, (None, size, size, channels))
    request, outputs = _request_inputs(density, 1), {"picture": images}
    count = TensorInfo(INT32, (None,), 0, size**2)
    signatures = {
        PLAIN: Signature(request, outputs),
        COMPILED: Signature(request, outputs),
        "complete": Signature(request | {"given": images, "given_count": count}, outputs),
    }

    def row_of(name: str, program: Callable[..., Any]) -> Row:
        def row(given: Tensors) -> Tensors:
            kept = Prefix(tf.zeros([1, size, size, channels], tf.int32), tf.constant(0))
            if "given" in given:
                kept = Prefix(tf.cast(given["given"], tf.int32), given["given_count"][0])
            return {"picture": _image(_draw_one(program, given, kept, given["temperature"][0, 0]))}

        return row

    plain = functools.partial(sample_pixelcnn, density.conditioner, network, size, sample)
    compiled = pixelcnn_program(density.conditioner, network, size)
    return signatures, {PLAIN: plain, COMPILED: compiled, "complete": compiled}, row_of


def _of_multiscale(density: ImageDensity) -> Parts:
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
    signatures = {PLAIN: whole, COMPILED: whole}
    # Every scale is drawn from the next smaller scale, the smallest without one.
    for side, smaller in zip(sizes, (None, *sizes), strict=False):
        given = {"start": images[smaller]} if smaller else {}
        signatures[scale_name(side)] = Signature(request | given, {"picture": images[side]})

    def plain(batch: Tensors, seed: tf.Tensor, rows: tf.Tensor, *arguments: Any) -> Any:
        words = multiscale_words(model, seed, rows, sizes[-1])
        return sample_multiscale(
            density.conditioner, model, sizes[-1], sample, batch, words, *arguments
        )

    def row_of(name: str, program: Callable[..., Any]) -> Row:
        def row(given: Tensors) -> Tensors:
            start = tf.cast(given["start"], tf.int32) if "start" in given else None
            scales, _ = _draw_one(program, given, start, given["temperature"][0])
            outputs = {f"picture_{scale.shape[1]}": _image(scale) for scale in scales}
            outputs["picture"] = _image(scales[-1])
            return {n: outputs[n] for n in signatures[name].outputs}

        return row

    programs = {PLAIN: plain}
    for side in sizes:
        program = multiscale_program(density.conditioner, model, side, sizes[-1])
        programs[scale_name(side)] = programs[COMPILED] = program
    return signatures, programs, row_of


def _request_inputs(density: ImageDensity, scales: int) -> dict[str, TensorInfo]:
    conditioning = density.config.conditioning
    last = conditioning.classes - 1
    limits = {"label": (0, last), "caption": (0, NUM_CODES - 1), "map": (-1, last)}
    limits["past"] = (0, conditioning.levels - 1)
    request = {
        "seed": TensorInfo(INT64, (None,), default=0),
        "row": TensorInfo(INT32, (None,), low=0, default=0),
        "temperature": TensorInfo(FLOAT32, (None, scales), 0, MAX_TEMPERATURE, 1),
    }
    if conditioning.has_null:
        request["guidance"] = TensorInfo(FLOAT32, (None,), 0, MAX_GUIDANCE, 0)
    for name, spec in condition_specs(density.config).items():
        shape = (None, *spec.shape.as_list()[1:])
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        request[name] = TensorInfo(dtype, shape, *limits.get(name, (None, None)))
    return request


def _draw_one(program: Callable[..., Any], given: Tensors, *arguments: Any) -> Any:
    condition = {name: given[name] for name in CONDITIONS if name in given}
    draw = functools.partial(program, condition, seed_key(given["seed"]), given["row"], *arguments)
    if "guidance" not in given:
        return draw()
    weight = given["guidance"][0]
    return tf.cond(weight > 0, lambda: draw(weight), draw)


CONDITIONS = ("label", "caption", "map", "past", "action", "state")


def seed_key(seed: tf.Tensor) -> tf.Tensor:
    """Return a seed int64 [1] as the key of noise, high word first; -n stands for 2^64 - n."""
    return as_key(tf.bitcast(seed[0], tf.int32)[::-1])


def _image(levels: tf.Tensor) -> tf.Tensor:
    return tf.cast(levels[0], tf.uint8)
