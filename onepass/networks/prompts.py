"""Prompts: known symbols at the start of sequences, and the symbols that end sequences."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from onepass.likelihoods.codec import Codec
from onepass.likelihoods.truncated import mask_of
from onepass.networks.elements import check_elements, encode_tokens
from onepass.networks.layout import Layout

NO_STOP = np.zeros([0], bool)


class Prompt(NamedTuple):
    """The known first symbols of sequences, and the symbols that end them."""

    symbols: tf.Tensor  # [batch, time, ...]; only the first `known` symbols of each row are used
    known: tf.Tensor  # int32 [batch], number of known symbols of each row
    stop: tf.Tensor  # bool [levels], which symbols end a row; `NO_STOP`: none

    @property
    def stops(self) -> bool:
        """True if symbols may end a row."""
        return bool(self.stop.shape[0])

    def after(self, start: int | tf.Tensor, count: int | None = None) -> "Prompt":
        """Return the prompt of the symbols from `start` on: all of them, or the first `count`."""
        symbols = self.symbols[:, start:] if count is None else self.symbols[:, start:][:, :count]
        return self._replace(symbols=symbols, known=tf.maximum(self.known - start, 0))

    def over(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the drawn symbols, replaced by the known symbols where there are any."""
        count = drawn.shape[1]
        positions = position + tf.range(count)
        given = tf.cast(tf.gather(self.symbols, positions, axis=1), drawn.dtype)
        is_known = positions < self.known[:, tf.newaxis]
        ones = [1] * (drawn.shape.rank - 2)
        return tf.where(tf.reshape(is_known, [*is_known.shape, *ones]), given, drawn)

    def ends(self, drawn: tf.Tensor, position: tf.Tensor | int = 0) -> tf.Tensor:
        """Return which symbols, after the known ones, are such that end a row, bool [batch, n]."""
        if not self.stops or not drawn.dtype.is_integer or drawn.shape.rank > 2:
            return tf.zeros(tf.shape(drawn)[:2], tf.bool)
        positions = position + tf.range(tf.shape(drawn)[1])
        return tf.gather(self.stop, drawn) & (positions >= self.known[:, tf.newaxis])

    def find_ended(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return which symbols come after the one that ends their row, bool [batch, n]."""
        is_end = tf.cast(self.ends(symbols), tf.int32)
        return tf.cumsum(is_end, 1) - is_end > 0

    def fill_ended(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return symbols [batch, n, ...] of which those after a row's end equal the one at it."""
        if not self.stops:
            return symbols
        first = tf.argmax(tf.cast(self.ends(symbols), tf.int32), 1, tf.int32)
        last = tf.gather(symbols, first, axis=1, batch_dims=1)[:, tf.newaxis]
        return tf.where(self.find_ended(symbols), last, symbols)


def prompt_of(
    prefix: Sequence[np.ndarray] | None,
    stop: np.ndarray | None,
    codec: Codec,
    num: int,
    length: int,
    layout: Layout,
) -> tuple[Prompt | None, int]:
    """Return the prompt, None without prefix and stop, and the number known in all rows."""
    if prefix is None and stop is None:
        return None, 0
    if stop is not None and layout.event:
        raise ValueError(f"`stop` needs one channel per time step, got {layout.channels}.")
    if stop is not None and codec.levels is None:
        raise ValueError("`stop` needs a model of integer symbols, got one of real numbers.")
    rows = [np.zeros([0, *layout.event])] * num
    if prefix is not None:
        rows = [_encode_row(row, codec, layout) for row in prefix]
    known = np.array([len(row) for row in rows], np.int32)
    symbols = np.zeros([num, *layout.shape([length])], np.int32 if codec.levels else np.float32)
    for symbol_row, row in zip(symbols, rows, strict=True):
        symbol_row[: len(row)] = row
    end = tf.constant(NO_STOP)
    if stop is not None:
        end = mask_of(encode_tokens(stop, codec, "stop"), len(stop), codec.levels or 0)
    return Prompt(tf.constant(symbols), tf.constant(known), end), int(known.min())


def _encode_row(row: np.ndarray, codec: Codec, layout: Layout) -> np.ndarray:
    if not row.size:
        return np.zeros([0, *layout.event], np.int32)
    check_elements(row[np.newaxis], codec, layout, "prefix")
    return codec.encode(tf.constant(row)).numpy()


class Following:
    """A record of which rows of a stream have ended."""

    def __init__(self, prompt: Prompt | None) -> None:
        self._prompt, self._position = prompt, 0
        self._ended = tf.zeros([0 if prompt is None else prompt.known.shape[0]], tf.bool)
        self._last: tf.Tensor | None = None

    @property
    def all_ended(self) -> bool:
        """True if every row has ended."""
        return self._prompt is not None and bool(tf.reduce_all(self._ended))

    def stop_rows(self, symbols: np.ndarray) -> tf.Tensor:
        """Record which rows end; return the symbols [num, n], filled up after each row's end."""
        found = tf.convert_to_tensor(symbols)
        if self._prompt is None or not self._prompt.stops:
            return found
        now = self._prompt.after(self._position)
        found = now.fill_ended(found)
        if self._last is not None:
            found = tf.where(self._ended[:, tf.newaxis], self._last, found)
        self._ended |= tf.reduce_any(now.ends(found), 1)
        self._last = found[:, -1:]
        self._position += symbols.shape[1]
        return found


def decode_chunks(
    parts: Iterator[np.ndarray], prompt: Prompt | None, codec: Codec
) -> Iterator[np.ndarray]:
    """Decode chunks of symbols and yield their elements until all rows have ended."""
    following = Following(prompt)
    for symbols in parts:
        yield codec.decode(following.stop_rows(symbols)).numpy()
        if following.all_ended:
            return
