"""Compressed files of arrays, coded with the exact conditionals of a user's model."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.compression import fields
from onepass.compression.container import Container
from onepass.compression.files import Kind
from onepass.compression.forms import narrowest_of
from onepass.compression.model_digest import digests_of_model
from onepass.compression.model_odds import check_table
from onepass.compression.symbols import SymbolConditionals
from onepass.foundation.errors import UserError
from onepass.model import Autoregressive
from onepass.networks.condition_values import given_once


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
            fields.raise_damaged("shape", wanted)
        if len(found.streams) != 1:
            fields.raise_damaged("streams", "one")

    def blocks(self, found: Container, condition: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """See `Kind.blocks`; there is one stream, and the condition is the caller's."""
        model, shape = self._model, found.shape[:2] if self._is_in_time else found.shape
        yield shape, given_once(model.symbol_network, condition, model.order, shape)

    def unpack(self, parts: list[np.ndarray]) -> np.ndarray:
        """See `Kind.unpack`."""
        return self._model.codec.decode(tf.constant(parts[0].astype(np.int32))).numpy()
