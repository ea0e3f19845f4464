"""`load`: read a stored model without the code that defined it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.foundation.model_spec import read_spec
from onepass.foundation.tensorflow_state import named_for_tensorflow
from onepass.likelihoods import noise as counter_noise
from onepass.model import Autoregressive
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import ONLY, Frames, Memory
from onepass.networks.trainable import Listed
from onepass.storage.program import DENSITY_AXES


class StoredNetwork:
    """A network loaded from a SavedModel.

    `lengths`, ascending, are those that it is stored for, to which inputs are padded; (): any
    length. `no_step` is the reason why no step can be derived; "": there is none.
    """

    def __init__(self, program: Any, listed: Listed, lengths: Sequence[int] = ()) -> None:
        self._program, self._listed, self.lengths = program, listed, list(lengths)
        self.no_step = ""
        if lengths:
            self.no_step = "its graph depends on the length"
            self._calls = dict(zip(lengths, program.calls, strict=True))
            specs = program.calls[0].concrete_functions[0].structured_input_signature[0]
            self._grows = [spec.shape[1:2] == [lengths[0]] for spec in specs]

    def __call__(self, inputs: tf.Tensor, *conditions: tf.Tensor) -> tf.Tensor:
        """Return the parameters, [batch, time, ...] or [batch, height, width, ...]."""
        if not self.lengths:
            return self._program.call(inputs, *conditions)
        count, most = inputs.shape[1], self.lengths[-1]
        if count is not None and count > most:
            raise ValueError(
                f"`network` cannot take {count:,} time steps: {self.no_step}, and it was stored for"
                f" at most {most:,}."
            )
        length = next(each for each in self.lengths if each >= (most if count is None else count))
        given = zip((inputs, *conditions), self._grows, strict=False)
        outputs = self._calls[length](*(pad_time(x, length) if grows else x for x, grows in given))
        return outputs[:, : tf.shape(inputs)[1] if count is None else count]


class SteppedStoredNetwork(StoredNetwork):
    """A stored network with a step for some batch sizes; others are computed in groups of rows."""

    def __init__(
        self, program: Any, listed: Listed, lengths: Sequence[int], step_rows: list[int]
    ) -> None:
        super().__init__(program, listed, lengths)
        pairs = zip(program.initial_states, program.steps, strict=True)
        self._stored = dict(zip(step_rows, pairs, strict=True))
        self._most = max(step_rows)

    def initial_state(self, batch: int) -> Any:
        """See `SteppedNetwork.initial_state`."""
        if batch in self._stored:
            return self._stored[batch][0]()
        return [self._stored[self._most][0]() for _ in range(-(-batch // self._most))]

    def step(self, inputs: tf.Tensor, state: Any, *conditions: Any) -> tuple[tf.Tensor, Any]:
        """See `SteppedNetwork.step`."""
        outputs = []
        for time in range(inputs.shape[1]):
            now = [x[:, time : time + 1] for x in (inputs, *conditions) if x is not None]
            output, state = self._one(now, state)
            outputs.append(output)
        return tf.concat(outputs, 1), state

    def _one(self, arguments: list[tf.Tensor], state: Any) -> tuple[tf.Tensor, Any]:
        batch = arguments[0].shape[0]
        if batch in self._stored:
            inputs, *condition = arguments
            return tuple(self._stored[batch][1](inputs, state, *condition))
        outputs, after = [], []
        for group, before in enumerate(state):
            rows = slice(group * self._most, (group + 1) * self._most)
            output, later = self._one([_rows(x[rows], self._most) for x in arguments], before)
            outputs.append(output)
            after.append(later)
        return tf.concat(outputs, 0)[:batch], after


def _rows(values: tf.Tensor, count: int) -> tf.Tensor:
    return tf.pad(values, [[0, count - values.shape[0]], *[[0, 0]] * (values.shape.rank - 1)])


class StoredDistribution:
    """A stored distribution, with the methods of `likelihoods.distribution.Distribution`."""

    def __init__(self, program: Any, spec: dict[str, Any]) -> None:
        self._program = program
        self.name, self.levels = spec["name"], spec["levels"]
        self.num_parameters = spec["num_parameters"]
        self.noise_channels = spec["noise_channels"]
        self.channels = spec["channels"]
        self.tempers = spec["tempers"]
        self.cumulative = program.cumulative if spec.get("has_cumulative") else None
        self.table = program.table if spec.get("has_table") else None
        self.form = spec.get("form")
        self.sections = spec.get("sections")
        self.min_log_scale = spec.get("min_log_scale")

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        return self._program.log_prob(parameters, symbols)

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """See `Distribution.sample`."""
        heat = tf.cast(temperature, tf.float32)
        if not heat.shape.rank:
            return self._program.draw(parameters, noise, heat)
        each = tf.reshape(heat, [-1])  # one per row; the stored program takes a single one
        rows = [slice(row, row + 1) for row in range(heat.shape[0])]
        return tf.concat(
            [self._program.draw(parameters[n], noise[n], each[n.start]) for n in rows], 0
        )

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`; raise NotImplementedError if it is not stored."""
        mode = getattr(self._program, "mode", None)
        if mode is None:
            raise NotImplementedError(f"`mode` must be a method of {self.name} to be stored.")
        return mode(tf.cast(parameters, mode.concrete_functions[0].inputs[0].dtype))

    def noise(
        self,
        seed: int | tf.Tensor,
        rows: tf.Tensor,
        start: int | tf.Tensor,
        length: int | tf.Tensor,
    ) -> tf.Tensor:
        """See `Distribution.noise`."""
        noise = self._program.noise(counter_noise.as_key(seed), rows, start, length)
        count = length if isinstance(length, int) else None
        return tf.ensure_shape(noise, [rows.shape[0], count, self.noise_channels])


class StoredContinuous(StoredDistribution):
    """A stored distribution that also has a density over the reals, a `Continuous`."""

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """See `Continuous.log_density`, for values [batch, time] or [draws, batch, time]."""
        function = self._program.log_densities[DENSITY_AXES.index(values.shape.rank)]
        return function(parameters, values)


class StoredNormal(StoredContinuous):
    """A stored normal distribution, with mean and log-scale."""

    def normal(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Normal.normal`."""
        return tuple(self._program.normal(parameters))


DENSITIES = {"none": StoredDistribution, "any": StoredContinuous, "normal": StoredNormal}


class StoredCodec:
    """A stored codec, with the methods of `onepass.likelihoods.codec.Codec`."""

    def __init__(self, program: Any, levels: int | None, log_unit: float) -> None:
        self._program, self.levels, self.log_unit = program, levels, log_unit

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """See `Codec.encode`; raise ValueError for floats if it encodes integers."""
        elements = tf.convert_to_tensor(elements)
        stored = self._program.encode.concrete_functions[0].inputs[0].dtype
        if stored.is_integer and not elements.dtype.is_integer:
            raise ValueError(f"`elements` must be integers, got {elements.dtype.name}.")
        return self._call_at_rank(self._program.encode, elements)

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """See `Codec.decode`."""
        return self._call_at_rank(self._program.decode, symbols)

    def scale(self, symbols: tf.Tensor) -> tf.Tensor:
        """See `Codec.scale`."""
        return self._call_at_rank(self._program.scale, symbols)

    def _call_at_rank(self, function: Any, values: Any) -> tf.Tensor:
        spec = function.concrete_functions[0].inputs[0]
        values = tf.cast(values, spec.dtype)
        missing = spec.shape.rank - values.shape.rank
        if missing == 0:
            return function(values)
        sizes = tf.shape(values)
        result = function(tf.reshape(values, tf.concat([[1] * missing, sizes], 0)))
        return tf.ensure_shape(tf.reshape(result, sizes), values.shape)


def load(folder: str | Path) -> Autoregressive:
    """Load a model that `save` wrote; its program, not scanned, has the rights of this process."""
    return make_model(*read(Path(folder)))


def make_model(program: Any, spec: dict[str, Any]) -> Autoregressive:
    """Return the model of a program and the values in `autoregressive.json`."""
    named = spec.get("conditions") or ({ONLY: spec["condition"]} if spec["condition"] else {})
    network = network_of(program, spec)
    stored = spec["distribution"]
    distribution = DENSITIES[stored.get("density", "none")](program, stored)
    codec = StoredCodec(program, distribution.levels, spec["log_unit"])
    model = Autoregressive(
        network,
        distribution,
        codec=codec,
        order=spec["order"],
        inputs=_spec(spec["inputs"]),
        conditions={name: _spec(each) for name, each in named.items()},
        start=spec["start"],
        input_scale=spec["input_scale"],
    )
    model.sample_rate_hz = spec.get("sample_rate_hz")
    return model


def network_of(program: Any, spec: dict[str, Any]) -> StoredNetwork:
    """Return the network of a program."""
    rows, listed = spec["step_rows"], listed_weights(program, spec)
    lengths = spec.get("lengths", ())
    if rows:
        return SteppedStoredNetwork(program, listed, lengths, rows)
    return StoredNetwork(program, listed, lengths)


def listed_weights(program: Any, spec: dict[str, Any]) -> Listed:
    """Return all variables of a stored program, and those that were not frozen."""
    weights, frozen = list(program.weights), set(spec.get("frozen", ()))
    return Listed(weights, [each for n, each in enumerate(weights) if n not in frozen])


def read(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Read a folder that `save` wrote: its program, and the values in `autoregressive.json`."""
    spec = read_spec(folder)
    try:
        return program_in(folder / spec["program"]), spec
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} contains no model that `save` wrote: {error}.") from error


def program_in(place: Path) -> Any:
    """Load a SavedModel, with the rights of this process."""
    with named_for_tensorflow(place) as name:
        return tf.saved_model.load(name)


def _spec(described: dict[str, Any]) -> tf.TensorSpec:
    shape, dtype = described["shape"], tf.as_dtype(described["dtype"])
    if described.get("kind") == "frames":
        return Frames(shape, dtype, hop=described["hop"], extra=described["extra"])
    return (Memory if described.get("kind") == "memory" else tf.TensorSpec)(shape, dtype)
