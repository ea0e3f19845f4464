"""Lossless compression of recordings with the conditional distributions of a WaveNet."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.compression import container
from onepass.compression.arrays import SymbolConditionals, digest_of_network
from onepass.compression.conditionals import check_table
from onepass.compression.container import Container, Kind
from onepass.compression.odds import narrowest_of
from onepass.foundation.errors import UserError
from onepass.networks.conditions import only_timed
from wavenet.density import Density
from wavenet.samplers.symbols import autoregressive

SIXTEEN_BIT = 1 << 16  # levels


class Recordings(Kind):
    """The format of compressed files of recordings and their speaker."""

    name = "sound"

    def __init__(self, network: Any, front: Any):
        config, likelihood = network.config, network.likelihood
        if config.conditioner_units or config.feature_channels or config.context_layers:
            raise UserError(
                "Only a WaveNet without frames and context stack compresses: frames are made of "
                "the sound itself, and would have to be in the file."
            )
        self._front, self._network, density = front, network, Density(network)
        own, past = autoregressive(network), density.past_samples
        self.conditionals = SymbolConditionals(own, density.window_samples, past)
        if self._odds == "table":
            check_table(likelihood)

    @property
    def _odds(self) -> str:
        return self.conditionals.ways[0]

    def digests(self) -> tuple[bytes, bytes | None]:
        """Return the network's digest, and None, since format version 1 has the same digest."""
        return digest_of_network(self._network), None

    def pack(self, elements: Any, condition: Any, tolerance: float, **options: Any) -> Any:
        """Return shape, description and levels to store; `condition` is the speaker's name."""
        parts = [self._levels(np.asarray(recording))[None] for recording in elements]
        speaker, lengths = self._front.speaker_number(condition), [part.size for part in parts]
        if not parts or not all(lengths):
            raise UserError("There must be a recording, and a sample in each.")
        described: dict[str, Any] = {"lengths": lengths, "narrowest": narrowest_of(tolerance)}
        described |= {} if speaker is None else {"speaker": speaker}
        described |= {} if self._odds == self.way else {"odds": self._odds}
        return (len(parts), sum(lengths), 1, 1), described, parts

    def check(self, found: Container) -> None:
        """Raise a UserError unless all fields of a file are in range."""
        count, samples, *rest = found.shape
        if rest != [1, 1] or not count or count != len(found.streams):
            container.raise_damaged("shape", "recordings, samples, 1, 1")
        lengths = container.check_list("lengths", found.description.get("lengths"), (count,))
        if sum(container.whole("lengths", length, 1, samples) for length in lengths) != samples:
            container.raise_damaged("lengths", f"{samples} in all")
        speaker, speakers = found.description.get("speaker"), self._network.config.speakers
        if speakers:
            container.whole("speaker", speaker, 0, speakers - 1)
        elif speaker is not None:
            container.raise_damaged("speaker", "absent")

    def blocks(self, found: Container, condition: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the shape (1, samples) and the condition of each recording in a file."""
        speaker, given = found.description.get("speaker"), None
        for samples in found.description["lengths"]:
            if speaker is not None:
                given = self._network.condition(None, tf.constant([speaker]), samples)
            yield (1, samples), only_timed(given)

    def unpack(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Return recordings [samples]: int16 for 65,536 levels, uint8 or uint16 for fewer."""
        levels = self.conditionals.levels
        if levels == SIXTEEN_BIT:
            return [
                (part[0].astype(np.int32) - SIXTEEN_BIT // 2).astype(np.int16) for part in parts
            ]
        return [part[0].astype(np.uint8 if levels <= 256 else np.uint16) for part in parts]

    def _levels(self, recording: np.ndarray) -> np.ndarray:
        levels = self.conditionals.levels
        top = int(recording.max(initial=0)) if recording.dtype.kind == "u" else -1
        whole = recording.dtype == np.int16 and levels == SIXTEEN_BIT
        if recording.ndim != 1 or not (whole or 0 <= top < levels):
            raise UserError(
                f"A recording must be int16 [samples] for {SIXTEEN_BIT} levels, or unsigned "
                f"levels below {levels}, got {recording.dtype} {list(recording.shape)}."
            )
        return recording.astype(np.int32) + (SIXTEEN_BIT // 2 if whole else 0)
