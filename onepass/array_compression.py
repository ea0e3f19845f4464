"""Lossless compression of arrays by the exact conditionals of a user's model."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.condition_values import given_to
from autoregressive.given import between, first_state
from autoregressive.model import Autoregressive
from compression import fields, verification
from compression.container import VERSION, Container, check_decoded, checksum_of, read_for
from compression.forms import narrowest_of, tolerances
from compression.stream import Decoder, Encoder, Layout, Odds, depth_of, odds_of
from compression.verification import Moved
from likelihoods.capabilities import pixel_channels
from onepass.array_digest import digest_of_model, digests_of_model
from onepass.array_odds import ArrayOdds, check_table, ways_of
from replicator.runs.errors import UserError

MOST_LEVELS = 1 << 16
TABLE_ELEMENTS = 1 << 22  # log-probabilities in memory at once
TOLERANCE = 1e-5


def compress(
    model: Any,
    elements: Any,
    condition: Any = None,
    *,
    tolerance: float = TOLERANCE,
    verify: bool | None = None,
) -> bytes:
    """Compress elements losslessly, by the exact conditionals of a model.

    The file takes little more than the bits of `log_prob`. Integers are stored exactly, real
    elements as the nearest of the model's levels.

    Args:
      model: an `Autoregressive` with at most 65,536 levels; or a shipped or trained model with its
        own `compress`, which is then called. A distribution that has neither a closed form nor
        `cumulative` takes a table of all levels per element.
      elements: [num, time] or [num, height, width, channels].
      condition: as for `log_prob`; it is not stored in the file, and `decompress` needs it.
      tolerance: relative difference of the network's outputs that is allowed on the decoding
        processor. Within it, decoding is exact; beyond it, decoding fails with an error.
      verify: decode the file once more, with outputs off by half the tolerance, and refuse to
        return one that does not give the elements back; None: where it is cheap, for images of a
        model with its own `compress`, and for up to 20,000 steps of a network in time.

    Returns:
      The bytes of the file.

    Raises:
      UserError: the model has no levels, too many, or a distribution of whole pixels; the package
        constriction is missing; or the file failed `verify`.
    """
    own = _of_its_own(model, "compress")
    if own is not None:
        name = "condition" if model.makes == "images" else "speaker"
        given = {} if condition is None else {name: condition}
        given |= {} if verify is None else {"verify": verify}
        return own(elements, **given, tolerance=tolerance)
    if not 0 <= tolerance <= 1e-3:
        raise UserError(f"`tolerance` must be 0 to 0.001, got {tolerance:g}.")
    codec = ArrayCodec(model, narrowest=narrowest_of(tolerance))
    codec.check_encoding()
    symbols = model.symbols(elements).numpy()
    if not symbols.size:
        raise UserError(f"`elements` must not be empty, got {list(symbols.shape)}.")
    model.check_causal()
    parameters = model.conditionals(elements, condition).numpy()
    stream = codec.encode(symbols, parameters, tolerance)
    shape = (*symbols.shape, 1, 1)[:4]
    checksum = checksum_of(symbols.astype("<u2"))
    digest = digest_of_model(model)
    described = {"odds": codec.way, "narrowest": codec.narrowest}
    parts = (digest, codec.levels, checksum, shape, described, (stream,))
    data = Container("arrays", *parts, VERSION).to_bytes()
    if codec.is_cheap(symbols.shape) if verify is None else verify:
        moved = verification.moved_by(tolerance)
        verification.verify(lambda: _decoded(model, data, condition, moved), tolerance)
    return data


def decompress(model: Any, data: bytes, condition: Any = None) -> np.ndarray:
    """Decompress the elements in a file of `compress`.

    Args:
      model: the model that compressed the file, in memory or loaded.
      data: the file.
      condition: the condition that it was compressed with.

    Returns:
      [num, time] or [num, height, width, channels].

    Raises:
      UserError: the file is damaged, truncated, or of another model.
    """
    own = _of_its_own(model, "decompress")
    if own is not None:
        return own(data)
    return model.codec.decode(tf.constant(_decoded(model, data, condition, None))).numpy()


def _decoded(model: Autoregressive, data: bytes, condition: Any, moved: Moved | None) -> np.ndarray:
    """Return the symbols in a file; arguments and errors as for `decompress`.

    `moved`, if given, changes the network's outputs.
    """
    levels = ArrayCodec(model).levels
    digest, old = digests_of_model(model)
    found = read_for(data, "arrays", digest, levels, old)
    shape = _shape_of(model, found)
    narrowest = None
    if found.version > 1:
        narrowest = fields.share("narrowest", found.description.get("narrowest"))
    codec = ArrayCodec(model, found.description.get("odds", "table"), narrowest)
    given = given_to(model.symbol_network, condition, model.order, shape)
    symbols = codec.decode(found.streams[0], shape, given, moved)
    check_decoded(symbols.astype("<u2"), found)
    return symbols


def _shape_of(model: Autoregressive, found: Container) -> tuple[int, ...]:
    """Return the shape of a file's elements.

    Raises:
      UserError: it is no shape of the model's elements.
    """
    time, channels = model.order == "time", model.symbol_network.inputs.shape[-1]
    wanted = "[rows, elements, 1, 1]" if time else f"[rows, height, width, {channels}]"
    if not found.elements or found.shape[2 if time else 3 :] != ((1, 1) if time else (channels,)):
        fields.damaged("shape", wanted)
    if len(found.streams) != 1:
        fields.damaged("streams", "one")
    return found.shape[:2] if time else found.shape


def _of_its_own(model: Any, name: str) -> Callable[..., Any] | None:
    """Return the model's own method, or None for an `Autoregressive`.

    Raises:
      UserError: the model cannot compress.
    """
    if getattr(model, "kind", None) == Autoregressive.kind:
        return None
    if not getattr(model, "compresses", False):
        raise UserError(
            f"`model` must have exact conditionals to compress, got {type(model).__name__}."
        )
    return getattr(model, name)


class ArrayCodec:
    """An encoder and decoder of symbols, with the weights that the model has when it is called.

    The rows of a batch are coded together, position by position.

    Args:
      model: with levels and a distribution of single channels.
      way: of the odds, see `ways_of`; None: the best.
      narrowest: of `forms.closed`; None: as in files of format version 1.

    Raises:
      UserError: the model has no levels, too many, or a distribution of whole pixels; or its
        distribution lacks what the way needs.
    """

    def __init__(
        self, model: Autoregressive, way: str | None = None, narrowest: float | None = None
    ):
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
        ways = ways_of(model)
        self.way = ways[0] if way is None else way
        if self.way not in ways:
            raise UserError(
                f"The compressed file requires odds by {self.way!r:.20}, which"
                f" {type(model.distribution).__name__} cannot compute; save the model again."
            )
        self.model, self.levels, self.depth = model, levels, depth_of(levels)
        self.narrowest = narrowest
        self._odds = ArrayOdds(model, self.way, narrowest)

    def check_encoding(self) -> None:
        """Raise UserError if an element would take too large a table to encode."""
        if self.way == "table":
            check_table(self.model)

    def encode(self, symbols: np.ndarray, parameters: np.ndarray, tolerance: float) -> bytes:
        """Return the stream of symbols.

        Args:
          symbols: int32 [num, time] or [num, height, width, channels].
          parameters: of their distributions, [..., num_parameters].
          tolerance: relative, of the parameters.
        """
        known, calls = _by_position(symbols), _calls(symbols.shape)
        rows = _by_position(parameters, 1).reshape(len(known), -1).astype(np.float64)
        off = tolerances(rows, tolerance)
        parts: list[Odds] = []
        size = max(1, TABLE_ELEMENTS // self._odds.table_levels)
        for part in _slices(len(known), size):
            distribution = self._odds(rows[part], off[part], tolerance)
            parts.append(odds_of(distribution, known[part], self.depth))
        encoder = Encoder(Layout(self.depth, 1, 1, len(known)))
        encoder.add([Odds(*map(np.concatenate, zip(*parts, strict=True)))], 0, calls)
        return encoder.finish()

    def decode(
        self, stream: bytes, shape: tuple[int, ...], condition: Any, moved: Moved | None = None
    ) -> np.ndarray:
        """Return the symbols, int32 of `shape`, from their stream.

        Args:
          stream: from `encode`.
          shape: [num, time] or [num, height, width, channels].
          condition: of the network, or None.
          moved: changes the network's outputs; None: they are as they are.
        """
        decoder = Decoder(stream, Layout(self.depth, 1, 1, math.prod(shape), self.levels))
        count = math.prod(shape) // _calls(shape)

        def read(parameters: tf.Tensor) -> np.ndarray:
            rows = np.asarray(parameters, np.float64).reshape(count, -1)
            rows = rows if moved is None else moved(rows)
            return decoder.levels(self._odds(rows, None, 0.0), count, 0, 0)

        return (self._stepped if self._by_steps else self._passed)(shape, condition, read)

    @property
    def _by_steps(self) -> bool:
        network = self.model.symbol_network
        return network.has_step and network.block == 1

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return whether elements of this shape are decoded in a few seconds."""
        return self._by_steps and _calls(shape) <= verification.CHEAP_STEPS

    def _stepped(self, shape: tuple[int, ...], condition: Any, read: Callable) -> np.ndarray:
        """Decode with a step of the network per position."""
        network, symbols = self.model.symbol_network, np.zeros(shape, np.int32)

        def one(state: Any, now: Any) -> tuple[tf.Tensor, Any]:
            return network.stepper(now)(0, 0, state)

        step = tf.function(one, autograph=False, jit_compile=True)
        state = first_state(network, shape[0], shape[1], condition)
        for time in range(shape[1]):
            now = between(condition, time, time + 1)
            parameters, after = step(state, now)
            symbols[:, time] = read(parameters)
            inputs = network.read(tf.constant(symbols[:, time : time + 1]))
            state = {"input": inputs, "network": after}
        return symbols

    def _passed(self, shape: tuple[int, ...], condition: Any, read: Callable) -> np.ndarray:
        """Decode with a pass of the network over all positions per position."""
        symbols = np.zeros(shape, np.int32)
        passed = tf.function(self.model.symbol_network.parameters, autograph=False)
        for position in range(_calls(shape)):
            parameters = passed(tf.constant(symbols), condition)
            at = np.unravel_index(position, shape[1:3] if shape[2:] else shape[1:])
            here: Any = (slice(None), *(int(index) for index in at))
            symbols[here] = read(parameters[here]).reshape(symbols[here].shape)
        return symbols


def _calls(shape: tuple[int, ...]) -> int:
    """Return the number of positions, each of which is decoded in one call."""
    return math.prod(shape[1:3]) if len(shape) == 4 else shape[1]


def _by_position(array: np.ndarray, inner: int = 0) -> np.ndarray:
    """Return an array [num, positions, ...] as rows in the order of decoding.

    Args:
      array: of all rows.
      inner: number of last axes that belong to one element.
    """
    axes = list(range(array.ndim))
    first = axes[1:3] if array.ndim - inner == 4 else axes[1:2]
    rest = [axis for axis in axes if axis not in (0, *first)]
    turned = np.transpose(array, [*first, 0, *rest])
    return turned.reshape(-1, *array.shape[array.ndim - inner :]) if inner else turned.reshape(-1)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))
