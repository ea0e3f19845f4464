"""Export of image models: training steps for planning, and samplers that run without TensorFlow."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.planning.trainable import Trainable
from onepass.replicator.portable.export import export_function, named_weights
from onepass.replicator.training.state import TrainState
from pixelcnn.config import AnyTrainConfig, SamplerName
from pixelcnn.density import ImageDensity, ImageLoss, condition_specs
from pixelcnn.sampling.generation import sample_multiscale, sample_pixelcnn, sampler_of
from pixelcnn.sampling.samplers import Prefix, multiscale_words

PLANNED_CLASSES = 10  # assumed number of classes if the configuration leaves it to the data


def export_sampler(
    folder: Path,
    density: ImageDensity,
    *,
    size: int | None = None,
    start_size: int | None = None,
    sampler: SamplerName = "cached",
    guided: bool = False,
    name: str = "draw",
    tensor_float_32: bool = True,
) -> None:
    """Export a function that samples one image with the density's current weights.

    It takes `seed` uint32 [2] (high word, low word), `rows` int32 [1] (the index of the image in
    the seed's sequence) and the condition: `label` int32 [1], `caption` int32 [1, 201] from
    `encode_caption`, `map` int32 [1, size, size], or `past`, `action` and `state`; and

    - for a PixelCNN: `temperature` [], `given` int32 [1, size, size, channels] and `given_count`
      int32 [], the number of its pixels to keep, in raster order. It returns `picture`.
    - for a multiscale model: `temperatures` [scales], base first, and `start` int32 [1, start_size,
      start_size, channels] if it enlarges an image. It returns every scale: `picture_8`,
      `picture_16`, ...

    Images are int32 [1, side, side, channels]. The batch size is always 1, as in `ImageSampler`,
    since a different batch size could change the last bits of sums, and thereby pixels.

    Args:
      start_size: side of the images to enlarge (multiscale); None: the base is sampled.
      sampler: name of the sampler; with "fixed-point" the function also returns `passes` int32 [],
        the number of passes of the PixelCNN or of the base.
      guided: whether the function also takes `guidance` [], greater than 0.
    """
    size = density.config.data.size if size is None else size
    if sampler == "naive":
        raise ValueError("`sampler` must be cached or fixed-point, got naive.")
    make = _pixelcnn_sampler if density.multiscale is None else _multiscale_sampler
    fn, own = make(density, size, start_size, sampler)
    inputs = {
        "seed": tf.TensorSpec([2], tf.uint32),
        "rows": tf.TensorSpec([1], tf.int32),
        **condition_specs(density.config),
        **own,
        **({"guidance": tf.TensorSpec([], tf.float32)} if guided else {}),
    }
    export_function(
        fn, inputs, folder, name, variables=named_weights(density), tensor_float_32=tensor_float_32
    )


def trainable(config: AnyTrainConfig) -> Trainable:
    """Return the training step of a configuration, for planning."""
    make = functools.partial(trainable, config)
    conditioning, data = config.conditioning, config.data
    if conditioning.kind in ("class", "map") and not conditioning.classes:
        conditioning = dataclasses.replace(conditioning, classes=PLANNED_CLASSES)
    if conditioning.kind == "video":
        conditioning = dataclasses.replace(conditioning, picture_channels=data.channels)
    config = dataclasses.replace(config, conditioning=conditioning)
    density = ImageDensity(config)
    state = TrainState(density, config.optimizer, config.loop.num_steps)
    images = [1, data.size, data.size, data.channels]
    spec = {
        **condition_specs(config),
        "levels": tf.TensorSpec(images, tf.int32),
        "seed": tf.TensorSpec([1, 2], tf.int32),
    }
    model = Trainable(state, ImageLoss(density), spec, config.loop.jit_compile, make)
    return model.resize_batches(data.batch_size, config.optimizer.accumulate)


def _pixelcnn_sampler(
    density: ImageDensity, size: int, start_size: int | None, sampler: SamplerName
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    network: Any = density.pixelcnn
    if start_size is not None:
        raise ValueError("`start_size` must be None for a PixelCNN, which cannot enlarge.")
    images = [1, size, size, density.config.data.channels]
    own = {
        "temperature": tf.TensorSpec([], tf.float32),
        "given": tf.TensorSpec(images, tf.int32),
        "given_count": tf.TensorSpec([], tf.int32),
    }

    def draw_image(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        given = Prefix(inputs["given"], inputs["given_count"])
        levels = sample_pixelcnn(
            density.conditioner,
            network,
            size,
            sampler_of(sampler),
            inputs,
            inputs["seed"],
            inputs["rows"],
            given,
            inputs["temperature"],
            inputs.get("guidance"),
        )
        if sampler != "fixed-point":
            return {"picture": levels}
        return {"picture": levels.levels, "passes": levels.batch_passes}

    return draw_image, own


def _multiscale_sampler(
    density: ImageDensity, size: int, start_size: int | None, sampler: SamplerName
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    model: Any = density.multiscale
    own = {"temperatures": tf.TensorSpec([len(model.sizes)], tf.float32)}
    if start_size is not None:
        images = [1, start_size, start_size, density.config.data.channels]
        own["start"] = tf.TensorSpec(images, tf.int32)

    def draw_scales(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        words = multiscale_words(model, inputs["seed"], inputs["rows"], size)
        start = inputs.get("start")
        scales, base = sample_multiscale(
            density.conditioner,
            model,
            size,
            sampler_of(sampler),
            inputs,
            words,
            start,
            inputs["temperatures"],
            inputs.get("guidance"),
        )
        counted = (
            {"passes": base.batch_passes} if sampler == "fixed-point" and start is None else {}
        )
        return {f"picture_{image.shape[1]}": image for image in scales} | counted

    return draw_scales, own
