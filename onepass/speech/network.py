"""The networks from phonemes and durations to mel frames, for any array library.

Training runs them on `tensorflow.experimental.numpy`, while speaking needs only NumPy. With h[t]
the hidden state of phoneme or frame t, each block with dilation d computes

    a, b = split([h[t - d] | h[t] | h[t + d]] @ mix + mix_bias);   h += (tanh(a) sigmoid(b)) @ out

    encoder   phonemes -> hidden states and log-durations
    melody    hidden states repeated per frame, positions -> log2(F0 / 200 Hz) and logit of voicing
    mel       the same, F0 and voicing -> smooth + voiced * exp(depth) * harmonics(F0)

harmonics(F0) is the log-mel spectrum of a pulse train (`training.harmonics_table`), so the network
does not need to learn the positions of harmonics. FastSpeech 2 (Ren et al. 2021) also predicts
durations first, then F0, then mel frames.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepass.speech.phonemes import COMMA, PRIMARY, QUESTION, SECONDARY, US_ENGLISH, Phoneme

CONTEXT_CHANNELS = 10
POSITION_CHANNELS = 4
FAR = 20  # limit of distances, in phonemes or frames
UNKNOWN = 0  # reserved: no symbol has this number
NEAREST_SYMBOLS = US_ENGLISH["nearest_symbols"]
ANY_VOWEL = "@"


def numbers(spoken: Sequence[Phoneme], symbols: Mapping[str, int]) -> np.ndarray:
    """Return the number of each phoneme's symbol, or of the closest known symbol, int32 [phonemes].

    espeak-ng appends marks to the names of variants ("I2", "a#"): marks are removed until the name
    is known. A symbol with no known counterpart becomes the schwa, or UNKNOWN if `symbols` has no
    schwa.
    """
    return np.array([_number(p.symbol, symbols) for p in spoken], np.int32)


def _number(symbol: str, symbols: Mapping[str, int]) -> int:
    for length in range(len(symbol), 0, -1):
        if symbol[:length] in symbols:
            return symbols[symbol[:length]]
    return symbols.get(NEAREST_SYMBOLS.get(symbol[:1], ANY_VOWEL), symbols.get(ANY_VOWEL, UNKNOWN))


def contexts(spoken: Sequence[Phoneme]) -> np.ndarray:
    """Return stress, word bounds, clause and position, float32 [phonemes, CONTEXT_CHANNELS]."""
    rows = np.zeros((len(spoken), CONTEXT_CHANNELS), np.float32)
    start = 0
    for place, phoneme in enumerate(spoken):
        following = spoken[place + 1] if place + 1 < len(spoken) else None
        rows[place, :7] = (
            phoneme.stress == PRIMARY,
            phoneme.stress == SECONDARY,
            phoneme.starts_word,
            following is None or following.is_pause or following.starts_word,
            phoneme.is_pause,
            phoneme.clause == QUESTION,
            phoneme.clause == COMMA,
        )
        if phoneme.is_pause:
            _place(rows, start, place)
            start = place + 1
    _place(rows, start, len(spoken))
    return rows


def _place(rows: np.ndarray, start: int, end: int) -> None:
    length = end - start
    if length < 1:
        return
    place = np.arange(length)
    rows[start:end, 7] = place / length
    rows[start:end, 8] = np.minimum(place, FAR) / FAR
    rows[start:end, 9] = np.minimum(length - 1 - place, FAR) / FAR


def phoneme_of_frame(durations: np.ndarray) -> np.ndarray:
    """Return the index of the phoneme that each frame belongs to, int32 [frames]."""
    return np.repeat(np.arange(len(durations), dtype=np.int32), durations)


def positions(durations: np.ndarray) -> np.ndarray:
    """Return positions in phonemes and their lengths, float32 [frames, POSITION_CHANNELS]."""
    owner = phoneme_of_frame(durations)
    length = durations[owner]
    since = np.arange(len(owner)) - (np.cumsum(durations) - durations)[owner]
    near = [np.minimum(each, FAR) / FAR for each in (since, length - 1 - since)]
    columns = [(since + 0.5) / length, *near, np.minimum(length, 2 * FAR) / FAR]
    return np.stack(columns, axis=1).astype(np.float32)


Weights = Mapping[str, Any]
TYPICAL_FRAMES = 6.0  # length of a phoneme at the start of training


@dataclasses.dataclass(frozen=True)
class VoiceConfig:
    """The sizes of the networks.

    `symbols` is the number of phonemes and pauses, including the unknown one; `density_channels`,
    `density_layers` and `density_past` are the sizes of the network in `frame_density.py`.
    """

    symbols: int
    bands: int = 80
    encoder_channels: int = 96
    encoder_dilations: tuple[int, ...] = (1, 1, 2, 4)
    melody_channels: int = 48
    melody_dilations: tuple[int, ...] = (1, 2, 4, 8, 16)
    mel_channels: int = 96
    mel_dilations: tuple[int, ...] = (1, 2, 4, 1, 2, 4)
    density_channels: int = 0  # 0: no density; the expected frames are spoken
    density_layers: int = 3
    density_past: int = 4


def initial_weights(config: VoiceConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the initial float32 weights of the three networks, by name."""
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def dense(name: str, before: int, after: int, scale: float = 1.0) -> None:
        values = random.normal(0.0, scale / math.sqrt(before), (before, after))
        weights[name] = values.astype(np.float32)
        weights[f"{name}_bias"] = np.zeros(after, np.float32)

    def stack(name: str, channels: int, dilations: tuple[int, ...]) -> None:
        for layer in range(len(dilations)):
            dense(f"{name}_{layer}_mix", 3 * channels, 2 * channels)
            # Keeps the variance of the sum over the layers at that of one layer.
            dense(f"{name}_{layer}_out", channels, channels, 1.0 / math.sqrt(len(dilations)))

    encoder, melody, mel = config.encoder_channels, config.melody_channels, config.mel_channels
    embedding = random.normal(0.0, 0.5, (config.symbols, encoder))
    weights["embedding"] = embedding.astype(np.float32)
    dense("context", CONTEXT_CHANNELS, encoder)
    stack("encoder", encoder, config.encoder_dilations)
    dense("duration", encoder, 1, 0.1)
    weights["duration_bias"] += math.log(TYPICAL_FRAMES)
    dense("melody_in", encoder, melody)
    dense("melody_position", POSITION_CHANNELS, melody)
    stack("melody", melody, config.melody_dilations)
    dense("melody_head", melody, 2, 0.1)
    dense("mel_in", encoder, mel)
    dense("mel_position", POSITION_CHANNELS + 2, mel)
    stack("mel", mel, config.mel_dilations)
    dense("mel_head", mel, 2 * config.bands, 0.1)
    return weights


@dataclasses.dataclass(frozen=True)
class Networks:
    """The networks of a voice with their weights, whose arrays are of the library `xp`.

    A `mask` [..., time, 1] is 0 in padding; it is the scalar 1.0 if there is no padding.
    """

    xp: Any
    config: VoiceConfig
    weights: Weights

    def encoder(self, numbers: Any, contexts: Any, mask: Any) -> tuple[Any, Any]:
        """Return the hidden states [..., phonemes, channels] and the log-durations [..., phonemes].

        `numbers` is int [..., phonemes] and `contexts` [..., phonemes, CONTEXT_CHANNELS].
        """
        embedded = self.xp.take(self.weights["embedding"], numbers, axis=0)
        hidden = (embedded + self.dense("context", contexts)) * mask
        hidden = self._stack("encoder", self.config.encoder_dilations, hidden, mask)
        return hidden, self.dense("duration", hidden)[..., 0]

    def melody(self, spread: Any, positions: Any, mask: Any) -> Any:
        """Return log2(F0 / 200 Hz) and the logit of voicing, [..., frames, 2].

        `spread` is the hidden state of each frame's phoneme; `positions` is [..., frames,
        POSITION_CHANNELS].
        """
        hidden = self.dense("melody_in", spread) + self.dense("melody_position", positions)
        hidden = self._stack("melody", self.config.melody_dilations, hidden * mask, mask)
        return self.dense("melody_head", hidden)

    def mel(self, spread: Any, positions: Any, pitch: Any, harmonics: Any, mask: Any) -> Any:
        """Return mel frames, [..., frames, bands], in standard deviations from each band's mean.

        `spread` and `positions` are as in `melody`; `pitch` [..., frames, 2] is log2(F0 / 200 Hz)
        and voicing; `harmonics` [..., frames, bands] is harmonics(F0) in standard deviations.
        """
        where = self.xp.concatenate([positions, pitch], axis=-1)
        hidden = self.dense("mel_in", spread) + self.dense("mel_position", where)
        out = self.dense(
            "mel_head", self._stack("mel", self.config.mel_dilations, hidden * mask, mask)
        )
        depth = self.xp.exp(out[..., self.config.bands :])
        return out[..., : self.config.bands] + pitch[..., 1:] * depth * harmonics

    def dense(self, name: str, values: Any) -> Any:
        """Return `values @ weights[name]` plus the bias of that name."""
        return values @ self.weights[name] + self.weights[f"{name}_bias"]

    def neighbours(self, hidden: Any, distance: int) -> Any:
        """Concatenate the channels at t - distance, t and t + distance; zeros beyond the ends."""
        widths = [*[(0, 0)] * (hidden.ndim - 2), (distance, distance), (0, 0)]
        padded = self.xp.pad(hidden, widths, "constant")
        before, after = padded[..., : -2 * distance, :], padded[..., 2 * distance :, :]
        return self.xp.concatenate([before, hidden, after], axis=-1)

    def gate_halves(self, mixed: Any) -> Any:
        """Return tanh of the first half of the channels times the sigmoid of the second half."""
        first, second = self.xp.split(mixed, 2, axis=-1)
        return self.xp.tanh(first) * (0.5 + 0.5 * self.xp.tanh(0.5 * second))

    def _stack(self, name: str, dilations: tuple[int, ...], hidden: Any, mask: Any) -> Any:
        for layer, dilation in enumerate(dilations):
            mixed = self.dense(f"{name}_{layer}_mix", self.neighbours(hidden, dilation))
            out = self.dense(f"{name}_{layer}_out", self.gate_halves(mixed))
            hidden = (hidden + out) * mask
        return hidden
