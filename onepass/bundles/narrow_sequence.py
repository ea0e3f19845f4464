"""The signatures of a user's sequences, computed by the step machine with narrow weights.

A bundle's program has float32 weights. With weights of another type, the network that the bundle
holds (`autoregressive/`) draws in its place: the same signatures, but for the state between the
segments of a row, which is this network's, and of each row what the live model draws with these
weights. All states are made for the longest row, so that one machine, which packs the weights,
serves rows of every length.
"""

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.errors import InvalidInput
from onepass.bundles.sequence_functions import storable
from onepass.bundles.signature import LENGTHS, STATE, Arrays, Signature, TensorInfo, names_of
from onepass.foundation.rules import require
from onepass.interface import LISTS, OPTIONS, Draw
from onepass.likelihoods.truncated import Choice
from onepass.model import Autoregressive
from onepass.networks.conditions import Condition, between, by_time, is_at_rate
from onepass.networks.symbols import Prompt
from onepass.samplers.compiled import row_bucket
from onepass.samplers.native import SYMBOLS_AT_ONCE, Drawing, First, Native, NativeState

COUNTS = f"{STATE}counts"  # of earlier symbols


@dataclasses.dataclass
class Drawn:
    """Rows of a call, drawn together."""

    symbols: np.ndarray  # [rows, longest], zeros beyond the length of a row
    nats: np.ndarray | None  # log-probabilities [rows, longest], if a row asks for them
    ended: np.ndarray  # whether a symbol has ended the row, bool [rows]
    state: list[np.ndarray]  # the network's, [rows, ...] each; empty if no one keeps it


class NarrowSequence:
    """The calls of a bundle's signatures with large weights of the type `weights`; thread-safe.

    Its `signatures` are the bundle's with the state of this network. Raises UserError if the model
    does not run on the step machine.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        signatures: Mapping[str, Signature],
        model: Autoregressive,
        weights: str,
    ) -> None:
        self._model, self._weights, self._longest = model, weights, int(spec["max_length"])
        self._names, specs = names_of(spec, signatures["chunk"].inputs), model.conditions.items()
        self._timed = [name for name, each in specs if is_at_rate(each)]
        self._lock = threading.Lock()  # samplers and machines are made once
        infos = {name: signatures["chunk"].inputs[each] for name, each in self._names.items()}
        zeros = {n: tf.zeros([size or 1 for size in x.shape], x.dtype) for n, x in infos.items()}
        given = by_time({n: tf.cast(zeros[n], each.dtype) for n, each in specs}, self._timed)
        _, first = self._begin(tf.constant(1.0), given, 1)
        state = _stored(tf.nest.flatten(first.of_one))
        self.signatures = {name: _with_state(each, state) for name, each in signatures.items()}

    def __call__(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for checked inputs; raise InvalidInput for others."""
        try:
            if signature == "log_prob":
                return {"log_prob": self._log_prob(inputs)}
            return self._draw_rows(signature, inputs)
        except ValueError as error:
            raise InvalidInput(str(error)) from error

    def _draw_rows(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        infos = self.signatures[signature].outputs
        counts = next(inputs[name] for name in LENGTHS if name in inputs)
        width = inputs["frames"].shape[1] if "frames" in inputs else int(counts.max())
        made: Arrays = {}
        for name, info in infos.items():
            shape = [len(counts), *(width if size is None else size for size in info.shape[1:])]
            made[name] = np.zeros(shape, info.dtype)
        made["num_samples"] = counts.astype(np.int32)
        (output,) = (n for n in infos if made[n].ndim == 2 and n != "log_prob" and STATE not in n)
        for rows in self._group_rows(inputs):
            drawn = self._draw({name: array[rows] for name, array in inputs.items()}, counts[rows])
            elements = self._model.codec.decode(tf.constant(drawn.symbols)).numpy()
            within = np.arange(elements.shape[1]) < counts[rows, np.newaxis]
            made[output][rows, : elements.shape[1]] = np.where(within, elements, 0)
            if drawn.nats is not None:
                made["log_prob"][rows, : elements.shape[1]] = np.where(within, drawn.nats, 0.0)
            if "ended" in made:
                made["ended"][rows] = drawn.ended
            for name, array in _stored(drawn.state).items():
                made[name][rows] = array
            if COUNTS in made:
                is_later = inputs["start"][rows, np.newaxis] > 0
                made[COUNTS][rows] = inputs[COUNTS][rows] * is_later
                for row, symbols, inside in zip(rows, drawn.symbols, within, strict=True):
                    np.add.at(made[COUNTS][row], symbols[inside], 1)
        return made

    def _group_rows(self, inputs: Mapping[str, np.ndarray]) -> Iterable[np.ndarray]:
        """Return the indices of rows that ask for the same options, and that begin or continue."""
        kinds = [name for name, kind in OPTIONS.items() if kind.is_prompted and name != "prefix"]
        lists = [n for n, count in LISTS.items() if count != "num_prefix"]
        names = {*kinds, *lists, *(LISTS[n] for n in lists)} & inputs.keys()
        begins = inputs["start"] == 0 if "start" in inputs else np.ones(len(inputs["seed"]), bool)
        groups: dict[Any, list[int]] = {}
        for row, is_new in enumerate(begins):
            asked = tuple(inputs[name][row].tobytes() for name in sorted(names))
            groups.setdefault((bool(is_new), asked), []).append(row)
        return map(np.array, groups.values())

    def _draw(self, inputs: Arrays, counts: np.ndarray) -> Drawn:
        """Draw rows that ask for the same options."""
        model, num, length = self._model, len(counts), int(counts.max())
        how = self._options_of(inputs, num, length)
        heat = how.choice(model.distribution, model.codec, num, model.layout.noise_axes)
        prompt, _ = how.prompt(model.codec, num, length, model.layout)
        condition = self._condition(inputs)
        with self._lock:
            sampler, first = self._begin(heat, condition, num)
        active = np.arange(num)
        lanes = _pad_rows(active, heat)
        state = self._first_state(first, inputs, heat, lanes)
        keeps = any(name.startswith(STATE) for name in inputs)
        symbols = np.zeros([num, length], np.float32 if model.codec.levels is None else np.int32)
        found = Drawn(symbols, None, np.zeros([num], bool), [])
        position = 0
        while active.size:
            size = int(counts[active].min()) - position
            if prompt is not None and prompt.stops:
                size = min(size, SYMBOLS_AT_ONCE)
            part = None if prompt is None else _take_prompt(prompt.after(position, size), lanes)
            given = _take(between(condition, position, position + size), lanes)
            noise = self._noise(inputs, lanes, position, size)
            made, state = sampler.advance(noise, given, _take_heat(heat, lanes), state, part)
            symbols[active, position : position + size] = made.numpy()[: len(active)]
            if part is not None:
                found.ended[active] |= part.ends(made).numpy()[: len(active)].any(1)
            position += size
            stays = (counts[active] > position) & ~found.ended[active]
            if stays.all():
                continue
            if keeps:
                _keep_state(found.state, num, active[~stays], _contents(state, ~stays))
            lanes = _pad_rows(np.flatnonzero(stays), heat)
            state, active = _take_state(state, lanes), active[stays]
            lanes = _pad_rows(active, heat)
        if prompt is not None:
            found.symbols = prompt.fill_ended(tf.constant(symbols)).numpy()
        if "return_log_prob" in inputs and inputs["return_log_prob"].any():
            found.nats = self._nats(tf.constant(found.symbols), condition)
            found.nats[inputs["return_log_prob"] == 0] = 0.0
            if prompt is not None:
                found.nats[prompt.find_ended(tf.constant(found.symbols)).numpy()] = 0.0
        return found

    def _options_of(self, inputs: Mapping[str, np.ndarray], num: int, length: int) -> Draw:
        """Return what rows ask for, checked; they differ in temperature and prefix alone."""
        asked = {
            name: kind.value_of(inputs, name)
            for name, kind in OPTIONS.items()
            if kind.is_prompted and name in inputs and name != "prefix"
        }
        heats = inputs["temperature"].astype(float)
        asked["temperature"] = heats[0] if (heats == heats[0]).all() else heats
        if "prefix" in inputs and inputs["num_prefix"].any():
            pairs = zip(inputs["prefix"], inputs["num_prefix"], strict=True)
            asked["prefix"] = [row[:count] for row, count in pairs]
        return Draw(num, length, **asked).checked(num, length, "time", self._model.layout.event)

    def _condition(self, inputs: Mapping[str, np.ndarray]) -> Condition:
        specs = self._model.conditions.items()
        values = {n: tf.cast(inputs[self._names[n]], spec.dtype) for n, spec in specs}
        return by_time(values, self._timed)

    def _begin(self, heat: Any, condition: Condition, num: int) -> tuple[Native, First]:
        samplers, longest = self._model.samplers, self._longest
        sampler = samplers.find_narrow(self._weights, "auto", heat, condition, longest)
        return sampler, sampler.begin(num, longest, condition)

    def _first_state(
        self, first: First, inputs: Mapping[str, np.ndarray], heat: Any, lanes: np.ndarray
    ) -> Any:
        """Return the state of lanes before the call: the first one, or that of the inputs."""
        if "start" not in inputs or not inputs["start"].any():
            has_fixed = len(self._timed) < len(self._names)  # otherwise all rows begin alike
            of_rows = [x[lanes] if has_fixed else x for x in first.of_rows]
            return First(len(lanes), first.of_one, of_rows)
        flat = tf.nest.flatten(first.of_one)
        given = {n: f"{STATE}{n}" for n, tensor in enumerate(flat) if 0 not in tensor.shape}
        of_rows = [inputs[given[n]][lanes] if n in given else x for n, x in enumerate(flat)]
        state = First(len(lanes), first.of_one, of_rows)
        if not isinstance(heat, Choice):
            return state
        one, named = first.of_one["input"], tf.nest.pack_sequence_as(first.of_one, of_rows)
        before = tf.cast(named["input"].reshape([len(lanes), *one.shape[1:]]), one.dtype)
        counts = tf.constant(inputs[COUNTS][lanes]) if heat.remembers else None
        return Drawing(state, before, counts)

    def _noise(
        self, inputs: Mapping[str, np.ndarray], lanes: np.ndarray, position: int, size: int
    ) -> tf.Tensor:
        """Return the noise of the next symbols, [lanes, size, noise channels]."""
        parts = []
        for row in lanes:
            start = position + (int(inputs["start"][row]) if "start" in inputs else 0)
            seed, number = int(inputs["seed"][row]) % 2**64, tf.constant(inputs["row"][row][None])
            parts.append(self._model.distribution.noise(seed, number, start, size))
        return tf.concat(parts, 0)

    def _log_prob(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        symbols = self._model.symbols(inputs["elements"])
        rule = f"at most {self._longest} long with such weights"
        require(symbols.shape[1] <= self._longest, "elements", rule, symbols.shape[1])
        return self._nats(symbols, self._condition(inputs)).astype(np.float32)

    def _nats(self, symbols: tf.Tensor, condition: Condition) -> np.ndarray:
        with self._lock:
            find = self._model.samplers.find_with_weights
            outputs = find("NativeOutputs", self._weights, condition, self._longest)
        nats = outputs.log_prob(symbols, condition, self._longest)
        return nats - self._model.codec.log_unit


def _stored(state: Iterable[Any]) -> Arrays:
    """Return the tensors of a state that are not empty by their inputs, in types that are sent."""
    arrays = {f"{STATE}{n}": np.asarray(each) for n, each in enumerate(state)}
    return {
        name: array.astype(storable(tf.as_dtype(array.dtype)).as_numpy_dtype)
        for name, array in arrays.items()
        if array.size
    }


def _with_state(signature: Signature, state: Mapping[str, np.ndarray]) -> Signature:
    """Return a signature whose state, if it has one, is like that of one row."""

    def side(infos: Mapping[str, TensorInfo], default: int | None) -> dict[str, TensorInfo]:
        others = {n: x for n, x in infos.items() if n == COUNTS or not n.startswith(STATE)}
        own = {n: TensorInfo(x.dtype, (None, *x.shape), default=default) for n, x in state.items()}
        return others | own if len(others) < len(infos) else others

    return Signature(side(signature.inputs, 0), side(signature.outputs, None))


def _pad_rows(rows: np.ndarray, heat: Any) -> np.ndarray:
    """Return rows, for options of tokens with copies of the last up to a size for XLA."""
    if not (rows.size and isinstance(heat, Choice)):
        return rows
    return np.pad(rows, [0, row_bucket(len(rows)) - len(rows)], "edge")


def _take(values: Any, rows: np.ndarray) -> Any:
    return tf.nest.map_structure(lambda x: tf.gather(x, rows), values)


def _take_prompt(prompt: Prompt, rows: np.ndarray) -> Prompt:
    symbols, known = _take((prompt.symbols, prompt.known), rows)
    return prompt._replace(symbols=symbols, known=known)


def _take_heat(heat: Any, rows: np.ndarray) -> Any:
    if isinstance(heat, Choice):
        return heat._replace(temperature=_take_heat(heat.temperature, rows))
    return tf.gather(heat, rows) if heat.shape.rank else heat


def _take_state(state: Any, rows: np.ndarray) -> Any:
    """Return the state of some rows after symbols."""
    if isinstance(state, NativeState):
        return state._replace(workspaces=state.workspaces[rows])
    counts = None if state.counts is None else tf.gather(state.counts, rows)
    return Drawing(_take_state(state.network, rows), tf.gather(state.inputs, rows), counts)


def _contents(state: Any, which: np.ndarray) -> list[np.ndarray]:
    """Return the state after symbols, of the rows in a mask, as the network's first one is."""
    network = state.network if isinstance(state, Drawing) else state
    rows = np.flatnonzero(which)
    machine = network.machine
    with np.errstate(invalid="ignore"):  # a client may send any state
        arrays = machine.contents(network.workspaces[rows])[len(machine.settings) :]
    if not isinstance(state, Drawing):
        return arrays
    named = tf.nest.pack_sequence_as(network.of_one, arrays)
    after = tf.gather(state.inputs, rows).numpy()[:, np.newaxis]
    return list(tf.nest.flatten({**named, "input": after}))


def _keep_state(
    state: list[np.ndarray], num: int, rows: np.ndarray, arrays: list[np.ndarray]
) -> None:
    """Set the state of some of `num` rows in place."""
    if not state:
        state.extend(np.zeros([num, *array.shape[1:]], array.dtype) for array in arrays)
    for whole, part in zip(state, arrays, strict=True):
        whole[rows] = part
