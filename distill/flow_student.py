"""`FlowStudent`: draw a sequence in one pass of flows; and its folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from distill.drafts import NOISE, FlowDraft
from distill.losses.divergence import log_density
from onepass.foundation.rules import (
    check_draw_length,
    check_seed,
    check_temperature,
    must_be,
    whole_number,
)
from onepass.foundation.runtime import check_compiler
from onepass.interface import Draw, Model
from onepass.likelihoods.affine import FlowOutput, compose
from onepass.likelihoods.codec import Codec
from onepass.model import CHUNK, Autoregressive
from onepass.networks.any_length import any_length
from onepass.networks.conditions import Condition, as_specs, between, check_conditions, in_order
from onepass.networks.length_limits import Tables
from onepass.networks.trainable import Watch, Weights, weights_read
from onepass.samplers.compiled import compiled_step
from onepass.step import incremental
from onepass.storage.frozen import Frozen, FrozenProgram
from onepass.storage.models import (
    StoredCodec,
    StoredNetwork,
    add_codec,
    check_calls,
    listed_weights,
    rate_of,
    read,
    readable,
    write,
)


class FlowStudent(Model):
    """A student that draws a sequence in one pass of flows, x_t = z_t s(z_<t, c) + mu(z_<t, c).

    Args:
      networks: causal networks, one per flow. Each reads [batch, time, 1], and the condition if
        there is one, and returns mu and log s, [batch, time, 2]. The first network reads the noise,
        and each later one the output of the flow before it.
      codec: codec from elements to the numbers that the teacher reads, `scale(encode(elements))`.
      condition_channels: channels of the networks' second argument, the condition [batch, time,
        channels]; 0: no condition.
      noise: "logistic", or "normal" for a teacher with Gaussian conditionals.

    Raises:
      ValueError: a network does not return two channels, or the noise is unknown.

    Attributes:
      sample_rate_hz: sample rate of an audio student; None: unknown.
    """

    options = frozenset({"temperature"})
    kind = "flow-student"
    order = "time"
    sample_rate_hz: int | None = None

    def __init__(
        self,
        networks: Sequence[Any],
        codec: Codec,
        *,
        condition_channels: int = 0,
        noise: Literal["logistic", "normal"] = "logistic",
    ):
        if noise not in NOISE:
            raise ValueError(must_be("noise", "logistic or normal", repr(noise)))
        self.networks, self.codec, self.noise_kind = list(networks), codec, noise
        self.condition_channels = condition_channels
        self.conditions = as_specs(condition_channels)
        self.specs = [tf.TensorSpec([None, None, 1]), *self.conditions.values()]
        self._begin()

    def _begin(self) -> None:
        self.calls = [any_length(network, self.specs)[0] for network in self.networks]
        self._stepped: list[Any] = []
        self._tables = [
            Tables(network, call, self.specs, axes=1)
            for network, call in zip(self.networks, self.calls, strict=True)
        ]
        for call in self.calls:
            shape = call(*(tf.zeros([1, 4, *spec.shape[2:]]) for spec in self.specs)).shape
            if shape != [1, 4, 2]:
                raise ValueError(
                    f"a network of a student must return [batch, time, 2], got {shape} for [1, 4]."
                )
        self.compiled = tf.function(self._draw_elements, autograph=False, jit_compile=True)
        self._stepping = compiled_step(self._step_elements)
        self._watch = Watch(self.networks)

    def follow(self, by_trace: bool = False) -> None:
        """Make anew what was made of the networks, if these have changed or `by_trace` says so."""
        if tf.executing_eagerly() and (by_trace or self._watch.has_changed()):
            self._begin()

    def draw(self, noise: tf.Tensor, condition: tf.Tensor | None = None) -> FlowOutput:
        """Return the student's output for noise, float32 [batch, time].

        The output has values on the scale that networks read, and the location and log scale of
        each value given the preceding noise.

        Raises:
          ValueError: a network has a table with fewer rows than the noise has time steps.
        """
        steps, values = [], noise
        for tables in self._tables:
            tables.check([noise.shape[1]])
        for call in self.calls:
            before = tf.pad(values[:, :-1, tf.newaxis], [[0, 0], [1, 0], [0, 0]])
            outputs = call(before) if condition is None else call(before, condition)
            location, log_scale = tf.unstack(tf.cast(outputs, tf.float32), axis=-1)
            values = values * tf.exp(log_scale) + location
            steps.append(FlowOutput(values, location, log_scale))
        return compose(steps)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, length: int, start: int | tf.Tensor = 0
    ) -> tf.Tensor:
        """Return noise for `draw`, float32 [rows, length], of elements from `start`.

        The seed is an integer in [0, 2^64), or keys, uint32 [2] for all rows or [rows, 2]; `rows`
        are indices in its sequence of rows.
        """
        return NOISE[self.noise_kind](seed, rows, start, length)[..., 0]

    @property
    def stepped(self) -> list[Any]:
        """The networks with `initial_state` and `step`, derived on first access.

        Raises:
          NotCausalError, UnsupportedNetworkError: no step can be derived for a network.
        """
        if not self._stepped:
            given = dict(zip(("inputs", "condition"), self.specs, strict=False))
            with tf.init_scope():
                self._stepped = [incremental(network, **given) for network in self.networks]
        return self._stepped

    def initial_state(self, batch: int) -> list[Any]:
        """Return the state before the first element of `batch` rows."""
        return [
            {"last": tf.zeros([batch, 1]), "network": stepped.initial_state(batch)}
            for stepped in self.stepped
        ]

    def step(
        self, noise: tf.Tensor, state: list[Any], condition: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[Any]]:
        """Return the next values [batch, n] on the scale that networks read, and the next state.

        If the noise is passed in consecutive parts, the values are those of `draw` up to rounding.
        n must be static.
        """
        flowed, after = self.advance(noise, state, condition)
        return flowed.output, after

    def advance(
        self, noise: tf.Tensor, state: list[Any], condition: tf.Tensor | None
    ) -> tuple[FlowOutput, list[Any]]:
        """Return the output of `draw` for the next noise [batch, n], and the state after it."""
        rest, values = [] if condition is None else [condition], noise
        steps, after = [], []
        for stepped, before in zip(self.stepped, state, strict=True):
            inputs = tf.concat([before["last"], values[:, :-1]], 1)[..., tf.newaxis]
            outputs, network = stepped.step(inputs, before["network"], *rest)
            location, log_scale = tf.unstack(tf.cast(outputs, tf.float32), axis=-1)
            after.append({"last": values[:, -1:], "network": network})
            values = values * tf.exp(log_scale) + location
            steps.append(FlowOutput(values, location, log_scale))
        return compose(steps), after

    def _sample(self, draw: Draw) -> np.ndarray:
        self.follow()
        num, length = self._sizes(draw.num, draw.length)
        scale = self._scale(draw)
        noise = scale * self.noise(check_seed(draw.seed), tf.range(num), length)
        return self.compiled(noise, self._cast_condition(draw.condition, num, length)).numpy()

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        self.follow()
        num, length = self._sizes(draw.num, draw.length)
        part = whole_number(CHUNK if chunk is None else chunk, "chunk")
        seed, scale = check_seed(draw.seed), self._scale(draw)
        given, state = self._cast_condition(draw.condition, num, length), self.initial_state(num)

        def parts(state: Any) -> Iterator[np.ndarray]:
            for start in range(0, length, part):
                count = min(part, length - start)
                noise = scale * self.noise(seed, tf.range(num), count, start)
                values, state = self._stepping(state, noise, between(given, start, start + count))
                yield self.elements(values).numpy()

        return parts(state)

    def _scale(self, draw: Draw) -> tf.Tensor:
        temperature = 1.0 if draw.temperature is None else draw.temperature
        return tf.constant(check_temperature(temperature), tf.float32)

    def log_density(self, num: int, length: int, seed: int, condition: Any = None) -> np.ndarray:
        """Return the log density of the elements that `sample` draws at temperature 1.

        The result is float32 [num, length], in nats per unit of the scale that networks read.

        Args:
          num: number of sequences.
          length: number of elements of each sequence.
          seed: seed of the noise, an integer in [0, 2^64).
          condition: the condition of the sequences, or None.
        """
        self.follow()
        num, length = self._sizes(num, length)
        noise = self.noise(check_seed(seed), tf.range(num), length)
        given = self._cast_condition(condition, num, length)
        drawn = self.draw(noise, self._tensor(given))
        return log_density(drawn, self.noise_kind).numpy()

    def _sizes(self, num: Any, length: Any) -> tuple[int, int]:
        check_compiler()
        (checked,) = check_draw_length(length, self.order)
        return whole_number(num, "num"), checked

    def _cast_condition(self, condition: Any, num: int, length: int) -> Condition:
        return check_conditions(self, condition, self.order, (num, length))

    def _tensor(self, condition: Condition) -> tf.Tensor | None:
        return next(iter(in_order(condition.timed, self.conditions)), None)

    def _draw_elements(self, noise: tf.Tensor, condition: Condition) -> tf.Tensor:
        return self.elements(self.draw(noise, self._tensor(condition)).output)

    def _step_elements(self, state: Any, noise: tf.Tensor, condition: Condition) -> Any:
        return self.step(noise, state, self._tensor(condition))

    def elements(self, values: tf.Tensor) -> tf.Tensor:
        """Return the elements nearest to values on the scale that networks read."""
        if self.codec.levels is None:
            return self.codec.decode(values)
        top = self.codec.levels - 1
        symbols = tf.clip_by_value(tf.round((values + 1.0) * (0.5 * top)), 0.0, float(top))
        return self.codec.decode(tf.cast(symbols, tf.int32))

    def as_draft(self, model: Autoregressive) -> FlowDraft:
        """Return the student as a draft for a model's `sample(method="speculative")`.

        Raises:
          ValueError: the model has a different number of levels, or the student reads a condition
            that differs from the model's.
          NotCausalError, UnsupportedNetworkError: no step can be derived for a network.
        """
        if self.codec.levels != model.codec.levels:
            raise ValueError(
                f"`draft` must have {model.codec.levels} levels, got {self.codec.levels}."
            )
        if self.condition_channels not in (0, model.condition_channels):
            raise ValueError(
                f"`draft` must read no condition or one of {model.condition_channels} channels, "
                f"got {self.condition_channels}."
            )
        self.stepped  # noqa: B018  # raises if a network has no step
        return FlowDraft(self, self.codec, "model" if self.condition_channels else "nothing")

    def trainable_variables(self, elements: tf.Tensor, *condition: tf.Tensor) -> list[tf.Variable]:
        """Return the trainable variables that the networks read when called on the examples."""
        return self.weights_read(elements, *condition).trained

    def weights_read(self, elements: tf.Tensor, *condition: tf.Tensor) -> Weights:
        """Return the trained and frozen variables that the networks read for the examples."""
        zeros = tf.zeros(tf.shape(elements))
        return weights_read(lambda *given: self.draw(*given).output, zeros, *condition)


def freeze(student: FlowStudent) -> tuple[Frozen, dict[str, Any]]:
    """Return the networks and the codec of a student, and the names of the networks."""
    frozen, names = Frozen(), []
    for index, call in enumerate(student.calls):
        names.append(f"call_{index}")
        frozen.add(names[-1], call, student.specs)
    add_codec(frozen, student.codec, 2)
    return frozen, {"networks": names}


def save(student: FlowStudent, folder: str | Path, *, sample_rate_hz: int | None = None) -> Path:
    """Write a student as data that runs without the code that defined its networks.

    Args:
      sample_rate_hz: sample rate of an audio student; None: the one it was loaded with, if any.

    Returns:
      The folder, which `load` reads. Its `program` has a graph of the functions `call_0` and so on,
        one for each network, `encode`, `decode` and `scale`; and the weights.
    """
    spec = {
        "kind": student.kind,
        "condition_channels": student.condition_channels,
        "noise": student.noise_kind,
        "levels": student.codec.levels,
        "log_unit": student.codec.log_unit,
        "sample_rate_hz": rate_of(student, sample_rate_hz),
    }

    def check(program: FrozenProgram, spec: dict[str, Any]) -> None:
        check_calls(student.calls, [program[name] for name in spec["networks"]], student.specs)

    return write(lambda: freeze(student), student, spec, Path(folder), check)


def load(folder: str | Path) -> FlowStudent:
    """Load a student that `save` wrote; it draws the same sequences."""
    with readable(Path(folder)):
        program, spec = read(Path(folder))
        listed = listed_weights(program)
        networks = [StoredNetwork(program, listed, name=name) for name in spec["networks"]]
        codec = StoredCodec(program, spec["levels"], spec["log_unit"])
        settings = {"condition_channels": spec["condition_channels"], "noise": spec["noise"]}
        student = FlowStudent(networks, codec, **settings)
        student.sample_rate_hz = spec["sample_rate_hz"]
        return student
