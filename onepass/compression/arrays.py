"""Compressed files of arrays, coded with the exact conditionals of a user's model."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.compression import container
from onepass.compression.conditionals import Coding, Known, ModelOdds, check_table, ways_of
from onepass.compression.container import Container, Kind, digest_of
from onepass.compression.odds import narrowest_of, tolerances
from onepass.compression.stream import Decoder, Layout, alone, depth_of
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import variable_names
from onepass.likelihoods.distribution import pixel_channels
from onepass.model import Autoregressive
from onepass.networks.conditions import between, first_state, given_once, zeros_for
from onepass.networks.symbols import unusual_settings
from onepass.samplers.compiled import compiled_step

_NUMBERED = re.compile(r"(.*?)(?:_([0-9]{1,18}))?")


def digest_of_network(network: tf.Module) -> bytes:
    """Return a 16-byte digest of the trainable weights of one of this library's networks."""
    named = zip(variable_names(network), network.trainable_variables, strict=True)
    return digest_of({name: variable.numpy() for name, variable in named})


def digests_of_model(model: Autoregressive) -> tuple[bytes, bytes]:
    """Return two digests of the variables that a model's output depends on, 16 bytes each.

    The first one covers names, types, shapes and values, including those of frozen variables and
    statistics, and also `start` and `input_scale` unless they are the defaults. It does not change
    if the model is stored and loaded, or if Keras created other layers before the model's. The
    second one, for files of format version 1, covers the trainable variables without their names.
    """
    traced = model.compiled.once("digested", lambda: _trace_network(model))
    weights = [variable.numpy() for variable in traced.trainable_variables]
    old = sorted(f"{w.dtype} {w.shape}".encode() + w.tobytes() for w in weights)
    names = rank_names(variable.name for variable in traced.variables)
    parts = sorted(
        f"{names[variable.name]} {variable.dtype.name} {list(variable.shape)}\n".encode()
        + variable.numpy().tobytes()
        for variable in traced.variables
    )
    if settings := unusual_settings(model.symbol_network):  # absent from earlier digests
        parts.append(json.dumps(settings, sort_keys=True).encode())
    own, first = (hashlib.sha256(b"".join(each)).digest()[:16] for each in (parts, old))
    return own, first


def rank_names(names: Iterable[str]) -> dict[str, str]:
    """Return a new name for each name, with the number that ends a path part replaced by its rank.

    Keras numbers layers by how many of their kind it has created before: in both {dense_3, dense_5}
    and {dense, dense_1}, the first layer gets rank 0 and the second rank 1.
    """
    paths = {name: name.split("/") for name in names}
    found = {name: "" for name in paths}
    for depth in range(max(map(len, paths.values()), default=0)):
        kinds: dict[tuple[str, str], set[int]] = {}
        parts = {}
        for name, path in paths.items():
            if depth < len(path):
                match = _NUMBERED.fullmatch(path[depth])
                stem, number = match.groups() if match else (path[depth], None)
                parts[name] = (found[name], stem), -1 if number is None else int(number)
                kinds.setdefault(parts[name][0], set()).add(parts[name][1])
        for name, (kind, number) in parts.items():
            found[name] = f"{kind[0]}/{kind[1]}#{sorted(kinds[kind]).index(number)}"
    return found


def _trace_network(model: Autoregressive) -> Any:
    network = model.symbol_network
    shape = [1, 4] if model.order == "time" else [1, 3, 3, network.inputs.shape[-1]]
    condition = zeros_for(network, 1, [4] if model.order == "time" else [3, 3])
    function = tf.function(network.parameters, autograph=False)
    return function.get_concrete_function(tf.zeros(shape, tf.int32), condition)


MOST_LEVELS = 1 << 16
# Largest number of steps for which files are verified by default; this takes a few seconds.
CHEAP_STEPS = 20_000
TABLE_ELEMENTS = 1 << 22  # log probabilities in memory at once


class SymbolConditionals:
    """The `Conditionals` of an `Autoregressive`; every call uses the model's current weights.

    The rows of a batch are coded together, position by position. Encoding takes `window` time
    steps a pass (0: all), each pass with its own tolerances, and reads `past` more before them.
    """

    def __init__(self, model: Autoregressive, window: int = 0, past: int = 0):
        levels = model.distribution.levels
        if levels is None or levels > MOST_LEVELS:
            raise UserError(
                f"`model` must have 2 to {MOST_LEVELS} levels to compress, got"
                f" {'real numbers' if levels is None else levels}."
            )
        if model.layout.rank == 3:
            raise UserError(
                f"`model` must have one channel per time to compress, got {model.layout.channels}."
            )
        if pixel_channels(model.distribution) is not None:
            raise UserError(
                "`model` must have a distribution of single channels to compress, got one of whole"
                " pixels."
            )
        self.levels: int = levels
        self.ways: Sequence[str] = ways_of(model.distribution)
        self._network, self._window, self._past = model.symbol_network, window, past
        self._odds = ModelOdds(model.distribution, model.order)
        kept = {"reduce_retracing": True} if window else {}
        self._passed = model.compiled.function(
            "windows" if window else "conditionals", self._network.parameters, **kept
        )
        self._step = compiled_step(self._one_step)
        self._distribution = model.distribution

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """See `Conditionals.layout`."""
        return Layout(depth_of(self.levels), 1, 1, math.prod(shape), self.levels)

    def place(self, shape: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Return the index of an element of levels of this shape, given its number in coding."""
        axes = _axes(shape)
        order = [*range(1, 1 + len(axes)), 0, *range(1 + len(axes), len(shape))]
        found = np.unravel_index(number, [shape[axis] for axis in order])
        return tuple(int(found[order.index(axis)]) for axis in range(len(shape)))

    def iterate_elements(
        self, levels: np.ndarray, condition: Any, coding: Coding
    ) -> Iterator[Known]:
        """See `Conditionals.iterate_elements`."""
        window = self._window or levels.shape[1]
        for start in range(0, levels.shape[1], window):
            first, stop = max(0, start - self._past), start + window
            given = between(condition, first, stop) if self._window else condition
            found = self._passed(tf.constant(levels[:, first:stop], tf.int32), given)
            own = levels[:, start:stop]
            yield from self._iterate_window(own, found.numpy()[:, start - first :], coding)

    def _iterate_window(
        self, levels: np.ndarray, parameters: np.ndarray, coding: Coding
    ) -> Iterator[Known]:
        """Yield a window's elements in groups, whose tables have up to TABLE_ELEMENTS entries."""
        axes = _axes(levels.shape)
        own, count = np.moveaxis(levels, 0, len(axes)).ravel(), levels.size // math.prod(axes)
        rows = np.moveaxis(parameters, 0, len(axes)).reshape(len(own), -1).astype(np.float64)
        off = tolerances(rows, coding.tolerance or 0.0)
        size = max(1, TABLE_ELEMENTS // self._odds.table_levels(coding.way))
        for start in range(0, len(own), size):
            part = slice(start, start + size)
            distribution = self._odds(rows[part], off[part], coding)
            calls = range(-(-start // count), -(-min(start + size, len(own)) // count))
            yield Known(own[part, None], alone(distribution), 0, [count] * len(calls))

    def read(
        self, shape: tuple[int, ...], condition: Any, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """See `Conditionals.read`."""
        count = math.prod(shape) // math.prod(_axes(shape))

        def read(parameters: tf.Tensor) -> np.ndarray:
            rows = np.asarray(parameters, np.float64).reshape(count, -1)
            rows = rows if coding.moved is None else coding.moved(rows)
            return decoder.pixels(alone(self._odds(rows, None, coding)), count)[:, 0]

        return (self._decode_by_steps if self._has_step else self._decode_by_passes)(
            shape, condition, read
        )

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """See `Conditionals.is_cheap`."""
        return self._has_step and shape[1] <= CHEAP_STEPS

    @property
    def _has_step(self) -> bool:
        return self._network.has_step and self._network.block == 1

    def _decode_by_steps(
        self, shape: tuple[int, ...], condition: Any, read: Callable
    ) -> np.ndarray:
        symbols, network = np.zeros(shape, np.int32), self._network
        every = network.read(tf.range(self.levels)[tf.newaxis]).numpy()[0]  # input of every level
        machine = self._machine
        if machine is not None and machine.pays(shape[0], shape[1], condition):
            state: Any = machine.begin(shape[0], shape[1], condition)
            inputs, outputs = np.repeat(state.of_one["input"], shape[0], 0), machine.outputs
        else:
            first = first_state(network, shape[0], shape[1], condition)
            inputs, state, outputs = first["input"], first["network"], self._compiled_outputs
        for time in range(shape[1]):
            parameters, state = outputs(inputs, between(condition, time, time + 1), state)
            symbols[:, time] = read(parameters)
            inputs = every[symbols[:, time : time + 1]]
        return symbols

    @functools.cached_property
    def _machine(self) -> Any:
        from onepass.samplers.native import outputs_of  # a heavy import

        return outputs_of(self._network, self._distribution)

    def _compiled_outputs(self, inputs: Any, now: Any, state: Any) -> tuple[tf.Tensor, Any]:
        return self._step(state, tf.convert_to_tensor(inputs), now)

    def _one_step(self, state: Any, inputs: tf.Tensor, now: Any) -> tuple[tf.Tensor, Any]:
        return self._network.stepper(now)(0, 0, {"input": inputs, "network": state})

    def _decode_by_passes(
        self, shape: tuple[int, ...], condition: Any, read: Callable
    ) -> np.ndarray:
        symbols = np.zeros(shape, np.int32)
        for position in np.ndindex(*_axes(shape)):
            parameters, here = (
                self._passed(tf.constant(symbols), condition),
                (slice(None), *position),
            )
            symbols[here] = read(parameters[here]).reshape(symbols[here].shape)
        return symbols


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of the position axes; all elements at a position are decoded in one call."""
    return shape[1:3] if len(shape) == 4 else shape[1:2]


class Arrays(Kind):
    """Files of the elements of an `Autoregressive`; they do not store the condition."""

    name, way = "arrays", "table"

    def __init__(self, model: Autoregressive):
        model.follow()
        self.conditionals = model.compiled.once("codec", lambda: SymbolConditionals(model))
        self._model, self._is_in_time = model, model.order == "time"

    def digests(self) -> tuple[bytes, bytes | None]:
        """See `Kind.digests`."""
        return digests_of_model(self._model)

    def pack(self, elements: Any, condition: Any, tolerance: float, **options: Any) -> Any:
        """See `Kind.pack`; `elements` are as for `log_prob`."""
        model, way = self._model, self.conditionals.ways[0]
        if way == "table":
            check_table(model.distribution)
        symbols = model.symbols(elements).numpy()
        if not symbols.size:
            raise UserError(f"`elements` must not be empty, got {list(symbols.shape)}.")
        model.check_causal()
        described = {"odds": way, "narrowest": narrowest_of(tolerance)}
        return (*symbols.shape, 1, 1)[:4], described, [symbols]

    def check(self, found: Container) -> None:
        """See `Kind.check`."""
        channels = self._model.symbol_network.inputs.shape[-1]
        wanted = "[rows, elements, 1, 1]"
        wanted = wanted if self._is_in_time else f"[rows, height, width, {channels}]"
        rest = (1, 1) if self._is_in_time else (channels,)
        if not found.elements or found.shape[-len(rest) :] != rest:
            container.raise_damaged("shape", wanted)
        if len(found.streams) != 1:
            container.raise_damaged("streams", "one")

    def blocks(self, found: Container, condition: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """See `Kind.blocks`; there is one stream, and the condition is the caller's."""
        model, shape = self._model, found.shape[:2] if self._is_in_time else found.shape
        yield shape, given_once(model.symbol_network, condition, model.order, shape)

    def unpack(self, parts: list[np.ndarray]) -> np.ndarray:
        """See `Kind.unpack`."""
        return self._model.codec.decode(tf.constant(parts[0].astype(np.int32))).numpy()
