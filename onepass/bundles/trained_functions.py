"""The functions of models of this library: of sound as `StreamingModel`s, and of images.

Each row of a batch of images is drawn separately, by the same programs as in local sampling, so the
pixels do not depend on the batch. `serving_default` draws with TensorFlow's kernels; XLA compiles
all others.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from distill.residual import Condition, Prediction
from distill.student import ParallelWaveNet
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
from onepass.bundles.sequence_functions import (
    ANY_BATCHES,
    Advanced,
    Conditioning,
    Maybe,
    NoiseSource,
    Size,
    State,
    StateSpecs,
    StreamingModel,
    StreamingRows,
    default_buckets,
    sequence_functions,
    storable,
    whole_pieces,
)
from onepass.bundles.signature import PLAIN, Signature, TensorInfo, scale_name
from onepass.foundation.rules import UserError
from onepass.networks.conditions import only_timed
from onepass.replicator.portable.export import as_stablehlo, named_variables
from onepass.samplers import cached_chunk
from onepass.samplers.fixed_point import draw_by_passes
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
from wavenet.network import Network, WaveNet
from wavenet.samplers.symbols import SoundSymbols
from wavenet.vocoder import VocoderWaveNet

STUDENT_PIECES = (1600, 16_000)  # approximate samples of the short and the long compiled piece
TEACHER_PIECES = (256, 1024)


def sound_functions(
    model: Trained,
    *,
    batches: Sequence[int] = (),
    buckets: Sequence[int] = (),
    method: str = "cached",
) -> Functions:
    """Return the functions of a model of sound, for sounds of up to the largest of `buckets`.

    `method` is "cached", or "fixed-point" for a network whose samples are drawn by passes.
    """
    streaming = streaming_model(model.network)
    if method == "fixed-point":
        streaming = StreamingTeacher(model.network, passes=True)
    usual = default_buckets(model.front.sample_rate_hz, streaming.hop_samples)
    lengths = sorted(set(buckets)) or usual
    return sequence_functions(streaming, lengths, batches, model.front.temperature)


class StreamingStudent(StreamingModel):
    """The flows of a student as a `StreamingModel`."""

    rows_alone = False

    def __init__(self, student: ParallelWaveNet):
        config, self._student = student.config, student
        self.variables = named_variables(student)
        self.hop_samples, self.side_frames = config.hop_samples, student.side_frames
        self.feature_channels, self.speakers = config.feature_channels, config.speakers
        self.channels, self.dtype = config.gate_inputs, student.dtype
        self.pieces = whole_pieces(STUDENT_PIECES, config.hop_samples)
        self._first = student.initial_state(1)

    def state(self) -> StateSpecs:
        """Describe the past inputs of every layer, by number."""
        flat = enumerate(tf.nest.flatten(self._first))
        return {str(n): tf.TensorSpec(x.shape[1:], storable(x.dtype)) for n, x in flat}

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size
    ) -> Conditioning:
        """Return the student's condition of every sample of a segment."""
        made, phase = self._student.condition(frames, speaker, samples, phase, skipped)
        return Conditioning(self._by_sample(made, samples), phase)

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """Return the noise that the flows read."""
        return self._student.noise(source.key, source.row, source.start, samples)

    def advance(
        self, source: NoiseSource, noise: tf.Tensor, channels: Maybe, state: State
    ) -> Advanced:
        """Return the samples that the flows compute from noise, and their layers' past inputs."""
        firsts = enumerate(tf.nest.flatten(self._first))
        flat = [tf.cast(state[str(n)], first.dtype) for n, first in firsts]
        pasts = tf.nest.pack_sequence_as(self._first, flat)
        noise *= source.temperature[:, None]
        flowed, pasts = self._student.advance(noise, pasts, self._condition(channels))
        later = enumerate(tf.nest.flatten(pasts))
        after = {str(n): tf.cast(past, storable(past.dtype)) for n, past in later}
        return tf.cast(flowed.output, tf.float32), after

    def _by_sample(self, condition: Condition, samples: Size) -> Maybe:
        gates = self._student.gate_condition(condition, samples)
        bunch = self._student.config.bunch_samples
        return None if gates is None else tf.repeat(gates, bunch, 1)[:, :samples]

    def _condition(self, channels: Maybe) -> Condition:
        bunch = self._student.config.bunch_samples
        return Condition(None if channels is None else channels[:, ::bunch])


class StreamingResidual(StreamingStudent):
    """The flows of a student that generate a residual, and the recursion from it to the audio.

    The condition's channels are those of the gates, then source, log gain and coefficients.
    """

    def __init__(self, student: ParallelWaveNet):
        super().__init__(student)
        self._order = student.config.prediction_order
        self.has_phase = student.config.source != "none"
        self.channels, self.dtype = student.config.gate_inputs + 2 + self._order, tf.float32

    def _by_sample(self, condition: Condition, samples: Size) -> Maybe:
        if condition.prediction is None:
            raise ValueError("The condition of a residual has a prediction.")
        prediction = condition.prediction
        gates: Any = super()._by_sample(condition, samples)  # never None for a residual student
        source = tf.zeros_like(gates[..., 0]) if condition.source is None else condition.source
        by_row = tf.concat([prediction.log_gain[..., None], prediction.coefficients], -1)
        spread = tf.repeat(by_row, self._student.config.row_samples, 1)[:, :samples]
        parts = (gates, source[..., None], spread)
        return tf.concat([tf.cast(p, self.dtype) for p in parts], -1)

    def _condition(self, channels: Maybe) -> Condition:
        sizes = [self._student.config.gate_inputs, 1, 1, self._order]
        gates, source, log_gain, coefficients = tf.split(channels, sizes, -1)
        every = self._student.config.row_samples
        prediction = Prediction(coefficients[:, ::every], log_gain[:, ::every, 0])
        source = source[..., 0] if self.has_phase else None
        gates = tf.cast(gates, self._student.dtype)[:, :: self._student.config.bunch_samples]
        return Condition(gates, source, prediction)


class StreamingTeacher(StreamingRows):
    """A WaveNet as a `StreamingModel`, which draws each row separately.

    A larger batch sums in a different order, which would make a row depend on its neighbours.
    With `passes`, samples are drawn by the fixed-point sampler, in passes over windows.
    """

    def __init__(self, network: Network, passes: bool = False):
        config, self._network, self._passes = network.config, network, passes
        self._symbols = SoundSymbols(network)
        super().__init__(self._symbols.initial_state(1))
        self.variables = named_variables(network)
        self.hop_samples, self.dtype = config.hop_samples, network.dtype
        self.side_frames = config.frame_width // 2 + 2 if config.feature_channels else 0
        if network.conditioner is not None:
            # The condition's type may differ from the layers'.
            self.dtype, self.side_frames = network.front_dtype, network.conditioner.side_frames
        self.feature_channels, self.speakers = config.feature_channels, config.speakers
        context = config.context_channels if config.context_layers else 0
        self.channels = config.gate_inputs - context
        self.pieces = whole_pieces(TEACHER_PIECES, config.hop_samples)

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size
    ) -> Conditioning:
        """Return the network's condition of a segment, computed from its frames and neighbours."""
        del phase
        if frames is None:
            return Conditioning(self._network.condition(None, speaker, samples))
        hop = self.hop_samples
        every: Any = self._network.condition(frames, speaker, tf.shape(frames)[1] * hop)
        return Conditioning(every[:, skipped * hop :][:, :samples])

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """Return the noise of the network's likelihood."""
        return self._network.likelihood.noise(source.key, source.row, source.start, samples)

    def draw_next(
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Maybe, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """See `StreamingRows.draw_next`."""
        network, condition = self._network, only_timed(channels)
        draw = draw_by_passes if self._passes else cached_chunk
        levels, after = draw(
            self._symbols, network.likelihood, noise, condition, temperature, state
        )
        return network.codec.decode(tf.ensure_shape(levels, [1, noise.shape[1]])), after


# The streaming class for each type of network.
STREAMING: dict[type, Callable[[Any], StreamingModel]] = {
    ParallelWaveNet: lambda student: (
        StreamingStudent if student.residual is None else StreamingResidual
    )(student),
    WaveNet: StreamingTeacher,
    VocoderWaveNet: StreamingTeacher,
}


def streaming_model(network: Any) -> StreamingModel:
    """Return the streaming model of a network; raise UserError unless `STREAMING` has its type."""
    if type(network) not in STREAMING:
        known = ", ".join(kind.__name__ for kind in STREAMING)
        given = type(network).__name__
        raise UserError(f"A bundle streams the sound of {known}, and none of {given}.")
    return STREAMING[type(network)](network)


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
    found = drawing_functions(calls, sorted(set(batches)) or ANY_BATCHES)
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
