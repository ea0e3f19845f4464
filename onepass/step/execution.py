"""Execute a step: its operations in order, on a few rows and the state."""

from collections.abc import Sequence

import tensorflow as tf

from onepass.step import caches, rings
from onepass.step.analysis import Analysis
from onepass.step.horizon import POSITION, Horizon, State
from onepass.step.replay import captures_by_name
from onepass.step.streams import Call, Keys, Part


class Execution:
    """One execution of a step, in the current graph."""

    def __init__(
        self,
        analysis: Analysis,
        horizon: Horizon,
        arguments: Sequence[tf.Tensor],
        state: State,
    ) -> None:
        self._analysis, self._horizon, self._state = analysis, horizon, state
        self._output = analysis.graphs[0].outputs[0].name
        self._position = state[POSITION]
        self._rows = arguments[0].shape[1]
        timed = [analysis.inputs[index] for index in analysis.timed]
        self._values = captures_by_name(analysis.graphs[0]) | dict(
            zip(timed, arguments, strict=True)
        )
        self._values |= {name: state[f"fixed/{name}"] for name in analysis.fixed}
        self._call = Call(self._rows, state, keys=self._keys)
        self._known_keys: dict[str, Keys] = {}
        self._read_keys: dict[str, tf.Tensor] = {}

    def run(self) -> tuple[tf.Tensor, State]:
        """Return the parameters of the next n time steps and the state after them."""
        analysis, values = self._analysis, self._values
        for op, part in analysis.parts:
            inputs = [self._input(op, part, i) for i in range(len(analysis.sources(op)))]
            outputs = part.run(inputs, self._call) if part.run else []
            values.update(zip((x.name for x in op.outputs), outputs, strict=True))
        pushed = {
            name: rings.push_rows(
                self._state[name], values[name], self._position, analysis.stream(name).axis
            )
            for name in analysis.memory
        }
        result = self._delay_rows(self._output, (analysis.lag,))[0]
        changed = {**pushed, **self._call.changed, POSITION: self._position + self._rows}
        return result, {**self._state, **changed}

    def _input(self, op: tf.Operation, part: Part, index: int) -> list:
        name = self._analysis.sources(op)[index].name
        if index in part.tables:
            return [self._table(op, part, index)]
        if index in part.keys:
            return [self._whole(name, part.group, part.delays[index][0])]
        if name in self._values:
            return self._delay_rows(name, part.delays.get(index, (0,)))
        return [None]

    def _table(self, op: tf.Operation, part: Part, index: int) -> tf.Tensor:
        def keys() -> Keys:
            return self._keys(part.group)

        return self._horizon.read(op, index, self._state, keys, self._rows)

    def _keys(self, group: str) -> Keys:
        root = self._analysis.groups.root(group)
        if root not in self._known_keys:
            self._known_keys[root] = self._horizon.keys(group, self._rows, self._position)
        return self._known_keys[root]

    def _whole(self, name: str, group: str, delay: int) -> tf.Tensor:
        key = self._horizon.keys_name(name, self._analysis.groups.root(group))
        if key not in self._read_keys:
            axis = self._analysis.stream(name).axis
            rows = self._delay_rows(name, (delay,))[0]
            self._read_keys[key], self._call.changed[key] = caches.write_keyed(
                self._state[key], rows, self._position, self._keys(group), axis
            )
        return self._read_keys[key]

    def _delay_rows(self, name: str, delays: tuple[int, ...]) -> list[tf.Tensor]:
        if delays == (0,):
            return [self._values[name]]
        root = self._analysis.root(name)
        axis = self._analysis.stream(root).axis
        past = self._state.get(root)
        return rings.read_delays(past, self._values[root], self._position, delays, axis)
