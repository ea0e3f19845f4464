"""The few sizes to which rows and times are padded, so that a function is compiled once for each.

Rows are independent, so drawing additional rows does not change the others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.likelihoods.truncated import Choice
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import Condition, over_time
from onepass.networks.symbols import Prompt
from onepass.step.derive import bucket

DOUBLED = 16  # buckets of rows are powers of two up to this number, multiples of it beyond


def row_bucket(rows: int) -> int:
    """Return the number of rows to compute for a batch of `rows` rows."""
    return 1 << (rows - 1).bit_length() if rows <= DOUBLED else -(-rows // DOUBLED) * DOUBLED


def time_bucket(count: int) -> int:
    """Return the number of time steps for which to compile a sampler that stops after `count`.

    In a loop of unknown length, an accelerator synchronises with its host before every step, so the
    exact count is compiled there.
    """
    return count if tf.config.list_logical_devices("GPU") else bucket(count)


class Call(NamedTuple):
    """The arguments of a sampler that have a batch axis."""

    noise: tf.Tensor
    condition: Condition
    temperature: Any
    prompt: Prompt | None

    def of_rows(self, rows: int) -> "Call":
        """Return the arguments for `rows` rows; additional rows repeat the last one."""
        heat = self.temperature
        if isinstance(heat, Choice):
            heat = heat._replace(temperature=_heat_of_rows(heat.temperature, rows))
        else:
            heat = _heat_of_rows(heat, rows)
        prompt = self.prompt
        if prompt is not None:
            symbols, known = (_of_rows(x, rows) for x in (prompt.symbols, prompt.known))
            prompt = prompt._replace(symbols=symbols, known=known)
        condition = tf.nest.map_structure(lambda x: _of_rows(x, rows), self.condition)
        return Call(_of_rows(self.noise, rows), condition, heat, prompt)

    def of_times(self, times: int) -> "Call":
        """Return the arguments for `times` time steps; additional steps are zero."""
        prompt = self.prompt
        if prompt is not None:
            prompt = prompt._replace(symbols=pad_time(prompt.symbols, times))
        condition = over_time(lambda x: pad_time(x, times), self.condition)
        return self._replace(noise=pad_time(self.noise, times), condition=condition, prompt=prompt)


def _heat_of_rows(heat: tf.Tensor, rows: int) -> tf.Tensor:
    return _of_rows(heat, rows) if heat.shape.rank else heat


def _of_rows(values: tf.Tensor, rows: int) -> tf.Tensor:
    more = rows - values.shape[0]
    return tf.concat([values, tf.repeat(values[-1:], more, axis=0)], 0) if more else values


def compiled_step(step: Callable[..., tuple[tf.Tensor, Any]]) -> Callable[..., Any]:
    """Return a step that XLA compiles once, whatever the position in its state.

    XLA compiles a program anew for every value of an argument at which a slice starts, as for the
    position of a ring, but not for that of what a loop changes: the step is a loop's only pass.
    """

    def run(state: Any, *given: Any) -> tuple[tf.Tensor, Any]:
        traced = tf.function(step, autograph=False).get_concrete_function(state, *given)
        result = traced.structured_outputs[0]
        before = tf.constant(0), tf.zeros(result.shape, result.dtype), state

        def body(passes: tf.Tensor, result: tf.Tensor, state: Any) -> tuple[Any, ...]:
            return passes + 1, *step(state, *given)

        return tf.while_loop(lambda passes, *_: passes < 1, body, before)[1:]

    return tf.function(run, autograph=False, jit_compile=True)
