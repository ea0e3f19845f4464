"""`load`: read a stored model without the code that defined it."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.model_folders import read_spec
from onepass.foundation.rules import UserError, must_be
from onepass.likelihoods.codec import Real
from onepass.likelihoods.noise import Int, as_key
from onepass.model import Autoregressive
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import Frames, Memory
from onepass.networks.trainable import Listed
from onepass.storage.frozen import FrozenFunction, FrozenProgram, read_program


class StoredNetwork:
    """A network of a stored program.

    `lengths`, ascending, are those that it is stored for, to which inputs are padded; (): any
    length, or multiples of `period`, for the function `name`.
    """

    def __init__(
        self,
        program: FrozenProgram,
        listed: Listed,
        lengths: Sequence[int] = (),
        period: int = 1,
        name: str = "call",
    ) -> None:
        self._listed, self.lengths, self.period = listed, list(lengths), period
        self.no_step = "its graph depends on the length" if lengths else ""
        self._calls = {length: program[f"call_{length}"] for length in lengths}
        self._call = None if lengths else program[name]

    def __call__(self, inputs: tf.Tensor, *conditions: tf.Tensor) -> tf.Tensor:
        """Return the parameters, [batch, time, ...] or [batch, height, width, ...]."""
        if self._call is not None:
            return self._call(inputs, *conditions)
        count, most = inputs.shape[1], self.lengths[-1]
        if count is not None and count > most:
            raise ValueError(
                f"`network` cannot take {count:,} time steps: {self.no_step}, and it was stored for"
                f" at most {most:,}."
            )
        length = next(each for each in self.lengths if each >= (most if count is None else count))
        call = self._calls[length]
        given = [
            pad_time(x, length) if spec.shape[1:2] == [length] else x
            for x, spec in zip((inputs, *conditions), call.specs, strict=True)
        ]
        outputs = call(*given)
        return outputs[:, : tf.shape(inputs)[1] if count is None else count]


class SteppedStoredNetwork(StoredNetwork):
    """A stored network with a step for some batch sizes; others are computed in groups of rows."""

    def __init__(
        self, program: FrozenProgram, listed: Listed, lengths: Sequence[int], step_rows: list[int]
    ) -> None:
        super().__init__(program, listed, lengths)
        names = ("initial_state", "step")
        self._stored = {n: tuple(program[f"{name}_{n}"] for name in names) for n in step_rows}
        self._most = max(step_rows)

    def initial_state(self, batch: int) -> Any:
        """See `SteppedNetwork.initial_state`."""
        if batch in self._stored:
            state = self._stored[batch][0]()
            return state if isinstance(state, list) else [state]
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
            output, *state = self._stored[batch][1](inputs, *state, *condition)
            return output, state
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

    def __init__(self, program: FrozenProgram, spec: dict[str, Any]) -> None:
        self.name, self.levels = spec["name"], spec["levels"]
        self.num_parameters = spec["num_parameters"]
        self.noise_channels = spec["noise_channels"]
        self.channels = spec["channels"]
        self.tempers = spec["tempers"]
        self.log_prob, self._draw = program["log_prob"], program["draw"]
        self._noise, self._mode = program["noise"], program.get("mode")
        self.cumulative, self.table = program.get("cumulative"), program.get("table")
        self.form = spec.get("form")
        self.sections = spec.get("sections")
        self.min_log_scale = spec.get("min_log_scale")
        # A repetition penalty depends on the logits before they are normalised.
        if (logits := program.get("logits")) is not None:
            self.logits = logits
        # Only a `Continuous` and a `Normal` have these methods.
        if (density := program.get("log_density_2")) is not None:
            by_rank = {2: density, 3: program["log_density_3"]}
            self.log_density = lambda rows, values: by_rank[values.shape.rank](rows, values)
        if (normal := program.get("normal")) is not None:
            self.normal = lambda rows: tuple(normal(rows))

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`."""
        heat = tf.cast(temperature, tf.float32)
        if not heat.shape.rank:
            return self._draw(parameters, noise, heat)
        each = tf.reshape(heat, [-1])  # one per row; the stored program takes a single one
        rows = [slice(row, row + 1) for row in range(heat.shape[0])]
        return tf.concat([self._draw(parameters[n], noise[n], each[n.start]) for n in rows], 0)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`; raise NotImplementedError if it is not stored."""
        if self._mode is None:
            raise NotImplementedError(f"`mode` must be a method of {self.name} to be stored.")
        return self._mode(tf.cast(parameters, self._mode.specs[0].dtype))

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: Int) -> tf.Tensor:
        """See `Distribution.noise`."""
        noise = self._noise(as_key(seed), rows, start, length)
        count = length if isinstance(length, int) else None
        return tf.ensure_shape(noise, [rows.shape[0], count, self.noise_channels])


class StoredCodec:
    """A stored codec, with the methods of `onepass.likelihoods.codec.Codec`."""

    def __init__(self, program: FrozenProgram, levels: int | None, log_unit: float) -> None:
        self.levels, self.log_unit = levels, log_unit
        self._encode = program["encode"]
        self.decode = functools.partial(_call_at_rank, program["decode"])
        self.scale = functools.partial(_call_at_rank, program["scale"])

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """See `Codec.encode`; raise ValueError for floats if it encodes integers."""
        elements = tf.convert_to_tensor(elements)
        if self._encode.specs[0].dtype.is_integer and not elements.dtype.is_integer:
            raise ValueError(must_be("elements", "integers", elements.dtype.name))
        return _call_at_rank(self._encode, elements)


def _call_at_rank(function: FrozenFunction, values: Any) -> tf.Tensor:
    spec = function.specs[0]
    values = tf.cast(values, spec.dtype)
    missing = spec.shape.rank - values.shape.rank
    if missing == 0:
        return function(values)
    sizes = tf.shape(values)
    result = function(tf.reshape(values, tf.concat([[1] * missing, sizes], 0)))
    return tf.ensure_shape(tf.reshape(result, sizes), values.shape)


def load(folder: str | Path) -> Autoregressive:
    """Load a model that `save` wrote; raise UserError unless its graph only computes."""
    with readable(Path(folder)):
        program, spec = read(Path(folder))
        distribution = StoredDistribution(program, spec["distribution"])
        model = Autoregressive(
            network_of(program, spec),
            distribution,
            codec=StoredCodec(program, distribution.levels, spec["log_unit"]),
            order=spec["order"],
            inputs=_spec(spec["inputs"]),
            conditions={name: _spec(each) for name, each in spec["conditions"].items()},
            start=spec["start"],
            input_scale=spec["input_scale"],
        )
        model.sample_rate_hz = spec.get("sample_rate_hz")
        return model


@contextlib.contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise UserError for whatever a damaged or hostile folder leads to inside the block."""
    try:
        yield
    except (MemoryError, UserError):
        raise
    except Exception as error:  # its type depends on the damaged byte
        line = " ".join((str(error) or type(error).__name__).split())[:200]
        raise UserError(f"{folder} contains no model that `save` wrote: {line}.") from error


def network_of(program: FrozenProgram, spec: dict[str, Any]) -> StoredNetwork:
    """Return the network of a program."""
    rows, listed = spec["step_rows"], listed_weights(program)
    lengths = spec.get("lengths", ())
    if rows:
        return SteppedStoredNetwork(program, listed, lengths, rows)
    return StoredNetwork(program, listed, lengths, spec.get("period", 1))


def listed_weights(program: FrozenProgram) -> Listed:
    """Return all variables of a stored program, and those that are trained."""
    return Listed(program.variables, [each for each in program.variables if each.trainable])


def read(folder: Path) -> tuple[FrozenProgram, dict[str, Any]]:
    """Read a folder that `save` wrote: its program, and the values in `autoregressive.json`."""
    spec = read_spec(folder)
    return read_program(folder / spec["program"], spec), spec


def _spec(described: dict[str, Any]) -> tf.TensorSpec:
    shape, dtype = described["shape"], tf.as_dtype(described["dtype"])
    if described.get("kind") == "frames":
        return Frames(shape, dtype, hop=described["hop"], extra=described["extra"])
    return (Memory if described.get("kind") == "memory" else tf.TensorSpec)(shape, dtype)
