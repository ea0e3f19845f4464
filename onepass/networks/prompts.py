"""Prompts: known symbols at the start of sequences, and the symbol that ends sequences."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.arguments import checked_prefix, checked_stop
from onepass.likelihoods.codec import Codec
from onepass.networks.elements import check_elements
from onepass.networks.layout import Layout

NEVER = -1


class Prompt(NamedTuple):
    """The known first symbols of sequences, and the symbol that ends them.

    Attributes:
      symbols: [batch, time, ...]; only the first `known` symbols of each row are used.
      known: int32 [batch], number of known symbols of each row.
      stop: int32 [], the symbol that ends a row; `NEVER` if there is none.
    """

    symbols: tf.Tensor
    known: tf.Tensor
    stop: tf.Tensor

    def over(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the drawn symbols, replaced by the known symbols where there are any.

        Args:
          drawn: [batch, n, ...].
          position: position of the first drawn symbol, int32 scalar.
        """
        count = drawn.shape[1]
        positions = position + tf.range(count)
        given = tf.cast(tf.gather(self.symbols, positions, axis=1), drawn.dtype)
        is_known = positions < self.known[:, tf.newaxis]
        ones = [1] * (drawn.shape.rank - 2)
        return tf.where(tf.reshape(is_known, [*is_known.shape, *ones]), given, drawn)

    def ends(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return which rows end with the symbols [batch, 1] drawn at a position, bool [batch]."""
        if not drawn.dtype.is_integer or drawn.shape.rank > 2:  # these have no `stop`
            return tf.zeros([drawn.shape[0]], tf.bool)
        return (drawn[:, 0] == self.stop) & (position >= self.known)


def prompt_of(
    prefix: Any, stop: Any, codec: Codec, num: int, length: int, layout: Layout
) -> tuple[Prompt | None, int]:
    """Return the prompt of sequences, and the number of first symbols known in all of them.

    Args:
      prefix: elements [num, n], [n] for all rows, a list of `num` rows of different lengths, or
        None.
      stop: the element that ends a row, or None.
      codec: converts elements to symbols.
      num: number of rows.
      length: number of elements of each row.
      layout: the axes of the elements.

    Returns:
      The prompt (None if neither prefix nor stop is given) and the smallest number of known
        symbols in any row.

    Raises:
      ValueError: the model generates images; the prefix has a wrong number of rows, is longer than
        `length`, or has elements outside the codec; or `stop` is outside the codec, or elements
        have several channels or are real.
    """
    if prefix is None and stop is None:
        return None, 0
    if layout.order != "time":
        raise ValueError("`prefix` and `stop` need a model in time order, got raster.")
    if stop is not None and layout.event:
        raise ValueError(f"`stop` needs one channel per time step, got {layout.channels}.")
    rows = [np.zeros([0, *layout.event])] * num
    if prefix is not None:
        given = checked_prefix(prefix, num, length, layout.event)
        rows = [_encoded(row, codec, layout, "prefix") for row in given]
    known = np.array([len(row) for row in rows], np.int32)
    symbols = np.zeros([num, *layout.shape([length])], np.int32 if codec.levels else np.float32)
    for symbol_row, row in zip(symbols, rows, strict=True):
        symbol_row[: len(row)] = row
    end = NEVER if stop is None else _end(stop, codec, layout)
    prompt = Prompt(tf.constant(symbols), tf.constant(known), tf.constant(end, tf.int32))
    return prompt, int(known.min())


def _encoded(row: np.ndarray, codec: Codec, layout: Layout, name: str) -> np.ndarray:
    if not row.size:
        return np.zeros([0, *layout.event], np.int32)
    check_elements(row[np.newaxis], codec, layout, name)
    return codec.encode(tf.constant(row)).numpy()


def _end(stop: Any, codec: Codec, layout: Layout) -> int:
    """Return the symbol of the element that ends a sequence; raise ValueError if it is invalid."""
    if codec.levels is None:
        raise ValueError("`stop` needs a model of integer symbols, got one of real numbers.")
    return int(_encoded(checked_stop(stop)[np.newaxis], codec, layout, "stop")[0])


def stopped(symbols: np.ndarray, prompt: Prompt) -> np.ndarray:
    """Return the symbols [batch, time] with `stop` in every position after a row's end.

    Args:
      symbols: the drawn symbols, [batch, time].
      prompt: the prompt that the rows were drawn with.
    """
    after = ended(symbols, prompt)
    return np.where(after, np.int32(prompt.stop), symbols).astype(symbols.dtype)


def ended(symbols: np.ndarray, prompt: Prompt) -> np.ndarray:
    """Return which symbols come after the one that ends their row, bool [batch, time]."""
    if int(prompt.stop) == NEVER:
        return np.zeros(symbols.shape, bool)
    positions = np.arange(symbols.shape[1])
    is_end = (symbols == np.int32(prompt.stop)) & (positions >= prompt.known.numpy()[:, None])
    return np.cumsum(is_end, 1) - is_end > 0


class Following:
    """A record of which rows of a stream have ended.

    Args:
      prompt: the prompt with which rows are drawn; None: no row ends.
    """

    def __init__(self, prompt: Prompt | None) -> None:
        self._prompt, self._position = prompt, 0
        self._ended = np.zeros(0 if prompt is None else prompt.known.shape[0], bool)

    @property
    def all_ended(self) -> bool:
        """True if every row has ended."""
        return self._prompt is not None and bool(self._ended.all())

    def kept(self, symbols: np.ndarray) -> np.ndarray:
        """Record which rows end, and return the symbols with `stop` after each row's end, [num, n].

        Args:
          symbols: the next drawn symbols, [num, n].
        """
        if self._prompt is None or int(self._prompt.stop) == NEVER:
            return symbols
        known = tf.maximum(self._prompt.known - self._position, 0)
        now = self._prompt._replace(known=known)
        after = ended(symbols, now) | self._ended[:, np.newaxis]
        kept = np.where(after, np.int32(now.stop), symbols).astype(symbols.dtype)
        positions = np.arange(symbols.shape[1])
        is_end = (kept == np.int32(now.stop)) & (positions >= known.numpy()[:, np.newaxis])
        self._ended |= is_end.any(1)
        self._position += symbols.shape[1]
        return kept


def decoded(
    parts: Iterator[np.ndarray], prompt: Prompt | None, codec: Codec
) -> Iterator[np.ndarray]:
    """Decode chunks of symbols and yield their elements until all rows have ended."""
    following = Following(prompt)
    for symbols in parts:
        kept = following.kept(symbols)
        yield codec.decode(tf.constant(kept)).numpy()
        if following.all_ended:
            return
