"""Compression with the exact conditionals of a model, and the files of arrays of a user's own."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.compression import container
from onepass.compression.conditionals import Coding, Known, ModelOdds, check_table, ways_of
from onepass.compression.container import Container, Kind, digest_of
from onepass.compression.odds import narrowest_of, tolerances
from onepass.compression.stream import Decoder, Layout, alone, depth_of
from onepass.foundation.model_folders import variable_names
from onepass.foundation.rules import UserError
from onepass.likelihoods.distribution import pixel_channels
from onepass.model import Autoregressive
from onepass.networks.conditions import (
    NOTHING,
    Condition,
    between,
    first_state,
    given_once,
    rows,
    zeros_for,
)
from onepass.networks.symbols import unusual_settings
from onepass.samplers.compiled import compiled_step, row_bucket

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


class Rows(NamedTuple):
    """Side information for coding rows of levels, known before the levels."""

    condition: Condition = NOTHING  # of the levels before the first ones, too
    lengths: Sequence[int] = ()  # of the rows in time order, the longest first; (): all are whole
    before: np.ndarray | None = None  # levels that are known before the first ones, int32 [rows, n]


class SymbolConditionals:
    """The `Conditionals` of an `Autoregressive`; every call uses the model's current weights.

    The rows of a batch are coded together, position by position. A pass of the encoder reads up to
    `most` elements, in whole rows (0: all rows).
    """

    def __init__(self, model: Autoregressive, most: int = 0):
        levels = model.distribution.levels
        if levels is None or levels > MOST_LEVELS:
            shown = "real numbers" if levels is None else levels
            raise UserError(
                f"`model` must have 2 to {MOST_LEVELS} levels to compress, got {shown}."
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
        self._network, self._most = model.symbol_network, most
        self._odds = ModelOdds(model.distribution, model.order)
        name, options = ("coded", {"reduce_retracing": True}) if most else ("conditionals", {})
        self._passed = model.compiled.function(name, self._network.parameters, **options)
        self._step = compiled_step(self._one_step)
        self._distribution = model.distribution

    def layout(self, shape: tuple[int, ...], condition: Rows) -> Layout:
        """See `Conditionals.layout`."""
        elements = sum(condition.lengths) or math.prod(shape)
        return Layout(depth_of(self.levels), 1, 1, elements, self.levels)

    def place(self, shape: tuple[int, ...], condition: Rows, number: int) -> tuple[int, ...]:
        """Return the index of an element of levels of this shape, given its number in coding."""
        if condition.lengths:
            is_there = np.arange(shape[1])[:, None] < np.array(condition.lengths)
            time, row = np.argwhere(is_there)[number].tolist()
            return row, time
        axes = _axes(shape)
        order = [*range(1, 1 + len(axes)), 0, *range(1 + len(axes), len(shape))]
        found = np.unravel_index(number, [shape[axis] for axis in order])
        return tuple(int(found[order.index(axis)]) for axis in range(len(shape)))

    def iterate_elements(
        self, levels: np.ndarray, condition: Rows, coding: Coding
    ) -> Iterator[Known]:
        """See `Conditionals.iterate_elements`; tables have up to TABLE_ELEMENTS entries."""
        axes = _axes(levels.shape)
        calls = np.full(math.prod(axes), levels.size // math.prod(axes))
        outputs = np.moveaxis(self._parameters(levels, condition), 0, len(axes))
        own = np.moveaxis(levels, 0, len(axes))
        if condition.lengths:
            is_there = np.arange(len(calls))[:, None] < np.array(condition.lengths)
            own, outputs, calls = own[is_there], outputs[is_there], is_there.sum(1)
        own = own.ravel()
        outputs = outputs.reshape(len(own), -1).astype(np.float64)
        off = tolerances(outputs, coding.tolerance or 0.0)
        size = max(1, TABLE_ELEMENTS // self._odds.table_levels(coding.way))
        firsts = np.cumsum(calls) - calls
        for start in range(0, len(own), size):
            part = slice(start, start + size)
            distribution = self._odds(outputs[part], off[part], coding)
            begun = calls[(start <= firsts) & (firsts < start + size)]
            yield Known(own[part, None], alone(distribution), 0, begun.tolist())

    def _parameters(self, levels: np.ndarray, given: Rows) -> np.ndarray:
        known = 0 if given.before is None else given.before.shape[1]
        if given.before is not None:
            levels = np.concatenate([given.before, levels], 1)
        count = max(1, self._most // levels.shape[1]) if self._most else len(levels)
        parts = []
        for first in range(0, len(levels), count):
            part = slice(first, first + count)
            condition = rows(given.condition, part) if self._most else given.condition
            found = self._passed(tf.constant(levels[part], tf.int32), condition)
            parts.append(found.numpy()[:, known:])
        return np.concatenate(parts)

    def read(
        self, shape: tuple[int, ...], condition: Rows, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """See `Conditionals.read`."""

        def read(parameters: np.ndarray) -> np.ndarray:
            outputs = parameters.reshape(-1, parameters.shape[-1]).astype(np.float64)
            outputs = outputs if coding.moved is None else coding.moved(outputs)
            return decoder.pixels(alone(self._odds(outputs, None, coding)), len(outputs))[:, 0]

        decode = self._decode_by_steps if self._has_step else self._decode_by_passes
        return decode(shape, condition, read)

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """See `Conditionals.is_cheap`."""
        return self._has_step and shape[1] <= CHEAP_STEPS

    @property
    def _has_step(self) -> bool:
        return self._network.has_step and self._network.block == 1

    def _decode_by_steps(
        self, shape: tuple[int, ...], given: Rows, read: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        network, condition = self._network, given.condition
        before = np.zeros([shape[0], 0], np.int32) if given.before is None else given.before
        known, length = before.shape[1], before.shape[1] + shape[1]
        symbols = np.concatenate([before, np.zeros(shape, np.int32)], 1)
        ends = known + np.array(given.lengths or [shape[1]] * shape[0])
        every = network.read(tf.range(self.levels)[tf.newaxis]).numpy()[0]  # input of every level
        machine, period = self._machine, 0
        if machine is not None and machine.pays(shape[0], length, condition):
            state: Any = machine.begin(shape[0], length, condition)
            first, period = state.of_one["input"], getattr(network, "period", 0)
        else:
            machine, begun = None, first_state(network, shape[0], length, condition)
            first, state = begun["input"][:1], begun["network"]
        # The network's inputs, those before the first symbol among them.
        past = network.renew_samples if period else 1
        count = row_bucket(shape[0]) if period else shape[0]  # `renew` is compiled for few counts
        inputs = np.tile(first, [count, past + length, *[1] * (first.shape.rank - 2)])
        for time in range(length):
            if period and time % period == 0:
                renewed = self._renew(inputs[:, time : time + past])
                state = machine.renew(state, {n: x[: shape[0]] for n, x in renewed.items()})
            now, active = between(condition, time, time + 1), int(np.count_nonzero(ends > time))
            if machine is not None:
                now = rows(now, slice(active)) if active < shape[0] else now
                newest = inputs[:active, time + past - 1 : time + past]
                parameters, state = machine.outputs(newest, now, state)
            else:
                newest = tf.constant(inputs[:, time : time + 1])
                parameters, state = self._step(state, newest, now)
            if time >= known:
                symbols[:active, time] = read(np.asarray(parameters)[:active])
            inputs[:active, past + time] = every[symbols[:active, time]]
        return symbols[:, known:]

    @functools.cached_property
    def _machine(self) -> Any:
        from onepass.samplers.native import NativeOutputs, on_machine  # a heavy import

        return on_machine(NativeOutputs, self._network, self._distribution)

    @functools.cached_property
    def _renew(self) -> Callable[[np.ndarray], dict[str, tf.Tensor]]:
        return tf.function(self._network.renew, autograph=False, jit_compile=True)

    def _one_step(self, state: Any, inputs: tf.Tensor, now: Any) -> tuple[tf.Tensor, Any]:
        return self._network.stepper(now)(0, 0, {"input": inputs, "network": state})

    def _decode_by_passes(
        self, shape: tuple[int, ...], given: Rows, read: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        symbols = np.zeros(shape, np.int32)
        for position in np.ndindex(*_axes(shape)):
            parameters = self._passed(tf.constant(symbols), given.condition).numpy()
            here = (slice(None), *position)
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
        yield shape, Rows(given_once(model.symbol_network, condition, model.order, shape))

    def unpack(self, found: Container, parts: list[np.ndarray]) -> np.ndarray:
        """See `Kind.unpack`."""
        return self._model.codec.decode(tf.constant(parts[0].astype(np.int32))).numpy()


def compress(
    model: Any,
    elements: Any,
    condition: Any = None,
    *,
    tolerance: float = container.TOLERANCE,
    verify: bool | None = None,
) -> bytes:
    """Compress elements losslessly with a model's exact conditional distributions.

    The file is slightly larger than the negative `log_prob` in bits. Integers are stored exactly,
    real elements as the nearest of the model's levels.

    Args:
      model: an `Autoregressive` with at most 65,536 levels, or a shipped or trained model that has
        a method `compress`. A distribution that has neither a closed form nor `cumulative` needs a
        table of all levels per element.
      elements: [num, time] or [num, height, width, channels].
      condition: the model's condition, as in its `log_prob`. For an `Autoregressive` it is not
        stored in the file, and `decompress` needs it.
      tolerance: relative difference allowed between the network's outputs in encoding and in
        decoding. Within it, decoding is exact; beyond it, decoding fails with an error.
      verify: whether to decode the file, with outputs perturbed by half the tolerance, and raise an
        error unless the elements are restored; None: only if that is cheap, as for images of a
        shipped or trained model, and for up to 20,000 steps of a network in time order.

    Returns:
      The bytes of the file.

    Raises:
      UserError: the model cannot compress, for example because it has no levels, too many, or a
        distribution over whole pixels; the package constriction is missing; or `verify` failed.
    """
    kind = kind_of(model)
    return container.compress(kind, elements, condition, tolerance=tolerance, verify=verify)


def decompress(
    model: Any, data: bytes, condition: Any = None, *, max_elements: int | None = None
) -> np.ndarray:
    """Decompress the elements in a file that `compress` made.

    Args:
      model: the model that compressed the file.
      data: the bytes of the file.
      condition: the condition that was passed to `compress`, if the file does not contain it.
      max_elements: largest number of elements to decode, each of which may take a step of the
        network; None: 1,024 for each byte of the file.

    Returns:
      The elements, [num, time] or [num, height, width, channels].

    Raises:
      UserError: the file is damaged or truncated, was made with a different model, holds more than
        `max_elements`, or cannot be decoded on this processor, whose network outputs differ by more
        than the file's tolerance.
      ValueError: `condition` is missing or does not fit the model.
    """
    return container.decompress(kind_of(model), data, condition, max_elements=max_elements)


def kind_of(model: Any, name: str = "`model`") -> container.Kind:
    """Return the kind of elements that a model, which errors call `name`, compresses."""
    if getattr(model, "kind", None) == Autoregressive.kind:
        return Arrays(model)
    kind: container.Kind | None = getattr(model, "compressed", None)
    if kind is None:
        own = getattr(model, "kind", type(model).__name__)
        raise UserError(f"{name} must have exact conditionals to compress, got {own}.")
    return kind
