"""The functions of the GPU benchmark in TensorFlow, to be exported: a whole call each."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

import onepass
from benchmarks.audio import NETWORKS, QUICK
from benchmarks.gpu import plan
from benchmarks.gpu.gpt import gpt
from distill.student import ParallelWaveNet
from onepass.networks.conditions import only_timed
from onepass.replicator.portable.export import PureFn, named_weights
from onepass.samplers import SAMPLERS
from onepass.step import incremental
from pixelcnn.density import ImageDensity, pixel_words, sample
from pixelcnn.model import sample_multiscale, sample_pixelcnn, sampler_of
from wavenet.network import Network, WaveNet
from wavenet.samplers.symbols import SoundSymbols

NUMBER = 4  # bytes of a float32
CLASSES = 10
Specs = dict[str, tf.TensorSpec]
SEED: Specs = {"seed": tf.TensorSpec([2], tf.uint32)}


class Program(NamedTuple):
    """A function to be exported.

    Attributes:
      fn: of a dict of tensors, in a dict.
      inputs: their shapes and types.
      variables: that it reads, by name.
      step_bytes: see `plan.Job`; 0: not counted.
      shipped: the weights are those of a shipped model, and travel with it.
    """

    fn: PureFn
    inputs: Specs
    variables: Mapping[str, tf.Variable]
    step_bytes: float = 0.0
    shipped: bool = False


def program_of(job: plan.Job, sizes: plan.Sizes, quick: bool) -> Program:
    """Return the program of a row that is not a peer's."""
    if job.size in (plan.WAVENET, plan.TEACHER):
        network = _sound_network(job.size, quick)
        made = _naive_sound if job.what == plan.NAIVE else _cached_sound
        count = sizes.naive_samples if job.what == plan.NAIVE else sizes.samples
        return made(network, job.batch, count)._replace(shipped=job.size == plan.TEACHER)
    if job.size in dict(sizes.gpts):
        make = _naive_tokens if job.what == plan.NAIVE else _derived_tokens
        return make(_gpt(dict(sizes.gpts)[job.size], sizes.horizon), job.batch, sizes)
    if job.unit == "images/s":
        return _images(job, sizes)
    return _student(job, sizes)


def rate_hz() -> int:
    """Return the sample rate of the students."""
    return _model("shipped").network.config.sample_rate_hz


@functools.cache
def _model(name: str) -> Any:
    return onepass.load(name)


@functools.cache
def _sound_network(size: str, quick: bool) -> Network:
    if size == plan.TEACHER:
        return _model(plan.TEACHER).network
    return WaveNet(QUICK["6x64"] if quick else NETWORKS[size])


def _inputs(config: Any, batch: int, samples: int) -> Specs:
    """Return a seed, rows of it and frames: constant rows would become megabytes of counters."""
    shape = [batch, -(-samples // config.hop_samples), config.feature_channels]
    rows, frames = tf.TensorSpec([batch], tf.int32), tf.TensorSpec(shape, tf.float32)
    return {**SEED, "rows": rows, "frames": frames}


def _cached_sound(network: Network, batch: int, samples: int) -> Program:
    symbols = SoundSymbols(network)

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        noise = network.likelihood.noise(given["seed"], given["rows"], 0, samples)
        condition = network.condition(given["frames"], None, samples)
        drawn = SAMPLERS["cached"](symbols, network.likelihood, noise, only_timed(condition))
        return {"levels": tf.ensure_shape(drawn, [batch, samples])}

    inputs = _inputs(network.config, batch, samples)
    weights, config = named_weights(network), network.config
    taps = config.layers * (config.filter_width - 1) * config.residual_channels
    read = _bytes(weights) + NUMBER * batch * taps  # once for a bunch of samples
    return Program(fn, inputs, weights, read / config.bunch_samples)


def _naive_sound(network: Network, batch: int, samples: int) -> Program:
    block = network.config.block_samples
    window = -(-(network.config.receptive_field + 1) // block) * block

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        noise = network.likelihood.noise(given["seed"], given["rows"], 0, samples)
        condition = network.condition(given["frames"], None, window)

        def body(t: tf.Tensor, levels: tf.Tensor):
            last = network(network.inputs(levels), condition)[:, -1]
            level = network.likelihood.sample(last, noise[:, t])
            return t + 1, tf.concat([levels[:, 1:], level[:, tf.newaxis]], 1)

        silence = tf.fill([batch, window], network.config.levels // 2)
        return {"levels": tf.while_loop(lambda t, _: t < samples, body, (0, silence))[1]}

    inputs = _inputs(network.config, batch, window)
    return Program(fn, inputs, named_weights(network))


def _student(job: plan.Job, sizes: plan.Sizes) -> Program:
    student: ParallelWaveNet = _model(job.what.removeprefix(plan.FIRST)).network
    hop, batch = student.config.hop_samples, job.batch
    frames = sizes.first_frames
    if not job.latency:
        frames = round(sizes.seconds * student.config.sample_rate_hz / hop)
    samples = frames * hop

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        noise = student.noise(given["seed"], given["rows"], 0, samples)
        condition, _ = student.condition(given["frames"], None, samples)
        return {"sound": tf.cast(student.draw(noise, condition).output, tf.float32)}

    inputs = _inputs(student.config, batch, samples)
    return Program(fn, inputs, named_weights(student), shipped=True)


def _images(job: plan.Job, sizes: plan.Sizes) -> Program:
    name = plan.MULTISCALE if job.what == "multiscale" else plan.PIXELCNN
    density: ImageDensity = _model(name).network
    size, rows = density.config.data.size, list(range(job.batch))

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        network: Any = density.multiscale or density.pixelcnn
        fixed = (density.conditioner, network, size)
        if density.multiscale is not None:
            words = pixel_words(density.multiscale, given["seed"], rows, size**2)
            heat = tf.ones([len(density.multiscale.sizes)])
            scales, _ = sample_multiscale(*fixed, sample, given, words, None, heat, None)
            return {"picture": scales[-1]}
        naively = functools.partial(_first_pixels, sizes.naive_pixels)
        sampler = naively if job.what == plan.NAIVE else sample
        return {"picture": sample_pixelcnn(*fixed, sampler, given, given["seed"], rows, None, 1.0)}

    inputs = SEED | {"label": tf.TensorSpec([job.batch], tf.int32)}
    return Program(fn, inputs, named_weights(density), shipped=True)


def _first_pixels(count: int, *arguments: Any, **options: Any) -> tf.Tensor:
    """Return what the naive sampler returns when its loop is over the first pixels alone."""
    whole = tf.while_loop

    def short(_: Callable, body: Callable, variables: Any, **more: Any) -> Any:
        tf.while_loop = whole
        return whole(lambda place, *_: place < count, body, variables, **more)

    tf.while_loop = short
    try:
        return sampler_of("naive")(*arguments, **options)
    finally:
        tf.while_loop = whole


@functools.cache
def _gpt(shape: tuple[int, int, int, int], length: int) -> Any:
    return gpt(*shape, length)


@functools.cache
def _derived(network: Any) -> Any:
    return incremental(network)


def _derived_tokens(network: Any, batch: int, sizes: plan.Sizes) -> Program:
    derived, count = _derived(network), sizes.tokens
    caches = _caches(derived, batch, sizes.horizon)

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        written = tf.TensorArray(tf.int32, count, element_shape=[batch])

        def body(t: tf.Tensor, token: tf.Tensor, state: Any, written: tf.TensorArray):
            logits, state = derived.step(token, state)
            drawn = tf.argmax(logits[:, 0], -1, output_type=tf.int32)
            return t + 1, drawn[:, tf.newaxis], state, written.write(t, drawn)

        # Inlined, so that nothing is left of the zeros in place of which the inputs are.
        start = derived.program(batch).initial_state(sizes.horizon)
        start |= {name: given[name] for name in caches}
        loop = (0, given["token"], start, written)
        return {
            "tokens": tf.transpose(tf.while_loop(lambda t, *_: t < count, body, loop)[3].stack())
        }

    weights = _keras_weights(network)
    layers, width = _shape(network)
    past = NUMBER * batch * layers * 2 * width * count / 2
    unread = NUMBER * sizes.horizon * width  # positions but one
    inputs = {"token": tf.TensorSpec([batch, 1], tf.int32), **caches}
    return Program(fn, inputs, weights, _bytes(weights) - unread + past)


def _caches(derived: Any, batch: int, horizon: int) -> Specs:
    """Return the keys of a state, which are inputs: as zeros TensorFlow would fill them here."""
    derived.program(batch).horizon(horizon)  # its tables, made once, outside of graphs
    start = tf.function(lambda: derived.program(batch).initial_state(horizon), autograph=False)
    state = start.get_concrete_function().structured_outputs
    keys = {name: value for name, value in state.items() if name.startswith(plan.KEYS)}
    return {name: tf.TensorSpec(value.shape, value.dtype) for name, value in keys.items()}


def _naive_tokens(network: Any, batch: int, sizes: plan.Sizes) -> Program:
    count, first = sizes.naive_tokens, sizes.tokens // 2

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        def body(t: tf.Tensor, tokens: tf.Tensor):
            drawn = tf.argmax(network(tokens)[:, first - 1], -1, output_type=tf.int32)
            return t + 1, tf.concat([tokens[:, 1:], drawn[:, tf.newaxis]], 1)

        start = tf.repeat(given["token"], first, 1)
        return {"tokens": tf.while_loop(lambda t, _: t < count, body, (0, start))[1]}

    return Program(fn, {"token": tf.TensorSpec([batch, 1], tf.int32)}, _keras_weights(network))


def _shape(network: Any) -> tuple[int, int]:
    """Return the layers and the width of a GPT."""
    attentions = [layer for layer in network.layers if "attention" in layer.name]
    return len(attentions), network.layers[1].table.shape[1]


def _keras_weights(network: Any) -> dict[str, tf.Variable]:
    return {f"{i:03d}/{v.path}": v.value for i, v in enumerate(network.trainable_variables)}


def _bytes(weights: Mapping[str, tf.Variable]) -> float:
    return float(sum(NUMBER * v.shape.num_elements() for v in weights.values()))
