"""Lossless compression of arrays by the exact conditionals of a user's model."""

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.model import Autoregressive
from compression.container import Container, check_decoded, checksum_of, read_for
from compression.splits import Categorical
from compression.stream import Decoder, Encoder, Layout, Odds, depth_of, odds_of
from likelihoods.capabilities import pixel_channels
from replicator.runs.errors import UserError

MOST_LEVELS = 4096  # the probabilities of all levels are computed for every element
TABLE_ELEMENTS = 1 << 22  # log-probabilities in memory at once
TOLERANCE = 1e-5
# The tolerance applies to an output, or at least to this share of its root mean square.
LEAST_SHARE = 0.03
LEAST_LOG_PROB = -700.0


def compress(
    model: Any, elements: Any, condition: Any = None, *, tolerance: float = TOLERANCE
) -> bytes:
    """Compress elements losslessly, by the exact conditionals of a model.

    The file takes little more than the bits of `log_prob`. Integers are stored exactly, real
    elements as the nearest of the model's levels.

    Args:
      model: an `Autoregressive` with at most 4,096 levels; or a shipped or trained model with its
        own `compress`, which is then called.
      elements: [num, time] or [num, height, width, channels].
      condition: as for `log_prob`; it is not stored in the file, and `decompress` needs it.
      tolerance: relative difference of the network's outputs that is allowed on the decoding
        processor. Within it, decoding is exact; beyond it, decoding fails with an error.

    Returns:
      The bytes of the file.

    Raises:
      UserError: the model has no levels, too many, or a distribution of whole pixels; or the
        package constriction is missing.
    """
    own = _of_its_own(model, "compress")
    if own is not None:
        name = "condition" if model.makes == "images" else "speaker"
        given = {} if condition is None else {name: condition}
        return own(elements, **given, tolerance=tolerance)
    if not 0 <= tolerance <= 1e-3:
        raise UserError(f"`tolerance` must be 0 to 0.001, got {tolerance:g}.")
    codec = ArrayCodec(model)
    symbols = model.symbols(elements).numpy()
    parameters = model.conditionals(elements, condition).numpy()
    stream = codec.encode(symbols, parameters, tolerance)
    shape = (*symbols.shape, 1, 1)[:4]
    checksum = checksum_of(symbols.astype("<u2"))
    digest = digest_of_model(model)
    return Container("arrays", digest, codec.levels, checksum, shape, {}, (stream,)).to_bytes()


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
    codec = ArrayCodec(model)
    found = read_for(data, "arrays", digest_of_model(model), codec.levels)
    shape = found.shape[:2] if model.order == "time" else found.shape
    given = None if condition is None else tf.convert_to_tensor(condition)
    symbols = codec.decode(found.streams[0], shape, given)
    check_decoded(symbols.astype("<u2"), found)
    return model.codec.decode(tf.constant(symbols)).numpy()


def digest_of_model(model: Autoregressive) -> bytes:
    """Return the digest of a model's weights, 16 bytes; storing and loading does not change it."""
    weights = [variable.numpy() for variable in model.trainable_variables(*_example(model))]
    parts = sorted(f"{w.dtype} {w.shape}".encode() + w.tobytes() for w in weights)
    return hashlib.sha256(b"".join(parts)).digest()[:16]


def _example(model: Autoregressive) -> tuple[tf.Tensor, ...]:
    if model.order == "time":
        return ()
    channels = model.symbol_network.inputs.shape[-1]
    return (tf.zeros([1, 3, 3, channels], tf.int32),)


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

    Raises:
      UserError: the model has no levels, too many, or a distribution of whole pixels.
    """

    def __init__(self, model: Autoregressive):
        levels = model.distribution.levels
        if levels is None or levels > MOST_LEVELS:
            raise UserError(
                f"`model` must have 2 to {MOST_LEVELS} levels to compress, got"
                f" {'real numbers' if levels is None else levels}."
            )
        if pixel_channels(model.distribution) is not None:
            raise UserError(
                "`model` must have a distribution of single channels to compress, got one of whole"
                " pixels."
            )
        self.model, self.levels, self.depth = model, levels, depth_of(levels)
        self._logits = tf.function(self._log_probs, autograph=False, reduce_retracing=True)

    def encode(self, symbols: np.ndarray, parameters: np.ndarray, tolerance: float) -> bytes:
        """Return the stream of symbols.

        Args:
          symbols: int32 [num, time] or [num, height, width, channels].
          parameters: of their distributions, [..., num_parameters].
          tolerance: relative, of the parameters.
        """
        known, calls = _by_position(symbols), _calls(symbols.shape)
        rows = _by_position(parameters, 1).reshape(len(known), -1).astype(np.float64)
        like = np.sqrt(np.mean(np.square(rows), 0))
        off = tolerance * (np.abs(rows) + LEAST_SHARE * like)
        parts: list[Odds] = []
        size = max(1, TABLE_ELEMENTS // self.levels)
        for part in _slices(len(known), size):
            distribution = self._distribution(rows[part], off[part], tolerance)
            parts.append(odds_of(distribution, known[part], self.depth))
        encoder = Encoder(Layout(self.depth, 1, 1, len(known)))
        encoder.add([Odds(*map(np.concatenate, zip(*parts, strict=True)))], 0, calls)
        return encoder.finish()

    def decode(self, stream: bytes, shape: tuple[int, ...], condition: Any) -> np.ndarray:
        """Return the symbols, int32 of `shape`, from their stream.

        Args:
          stream: from `encode`.
          shape: [num, time] or [num, height, width, channels].
          condition: of the network, or None.
        """
        decoder = Decoder(stream, Layout(self.depth, 1, 1, math.prod(shape)))
        count = math.prod(shape) // _calls(shape)

        def read(parameters: tf.Tensor) -> np.ndarray:
            rows = np.asarray(parameters, np.float64).reshape(count, -1)
            return decoder.levels(self._distribution(rows, None, 0.0), count, 0, 0)

        network = self.model.symbol_network
        by_steps = network.has_step and network.block == 1
        return (self._stepped if by_steps else self._passed)(shape, condition, read)

    def _stepped(self, shape: tuple[int, ...], condition: Any, read: Callable) -> np.ndarray:
        """Decode with a step of the network per position."""
        network, symbols = self.model.symbol_network, np.zeros(shape, np.int32)

        def one(state: Any, now: Any) -> tuple[tf.Tensor, Any]:
            return network.stepper(now)(0, 0, state)

        step = tf.function(one, autograph=False, jit_compile=True)
        state = network.initial_state(shape[0])
        for time in range(shape[1]):
            now = None if condition is None else condition[:, time : time + 1]
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

    def _distribution(
        self, rows: np.ndarray, off: np.ndarray | None, tolerance: float
    ) -> Categorical:
        """Return the distributions of elements, from the logarithms of all probabilities.

        Args:
          rows: of parameters, float64 [elements, num_parameters].
          off: largest differences of the parameters; None: no margins are needed.
          tolerance: of the logarithms themselves.
        """
        table = self._table(rows)
        if off is None:
            return Categorical(table, np.zeros_like(table))
        margin = tolerance * (LEAST_SHARE + np.abs(table))
        for k in range(rows.shape[1]):
            moved = rows.copy()
            # Moved ten times as far, so that the difference exceeds rounding.
            moved[:, k] += 10.0 * off[:, k]
            margin += 0.1 * np.abs(self._table(moved) - table)
        return Categorical(table, margin)

    def _table(self, rows: np.ndarray) -> np.ndarray:
        """Return log-probabilities float64 [elements, levels]."""
        table = self._logits(tf.constant(rows, tf.float32)).numpy().astype(np.float64)
        return np.maximum(table, LEAST_LOG_PROB)

    def _log_probs(self, rows: tf.Tensor) -> tf.Tensor:
        count, width = tf.shape(rows)[0], rows.shape[1]
        parameters = tf.repeat(rows[:, tf.newaxis], self.levels, 1)
        every = tf.repeat(tf.range(self.levels)[tf.newaxis], count, 0)
        if self.model.order == "raster":  # as many axes as images have
            parameters = tf.reshape(parameters, [1, 1, count, self.levels, width])
            every = every[tf.newaxis, tf.newaxis]
        table = self.model.distribution.log_prob(parameters, every)
        return tf.reshape(table, [count, self.levels])


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
