"""The networks from phonemes and durations to mel frames, for any array library.

Training runs them on TensorFlow (`acoustic.py`); speaking needs only NumPy. With h[t] the hidden
state of phoneme or frame t, each block with dilation d computes

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
from typing import Any, Protocol

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
    left = length - 1 - since
    columns = (
        (since + 0.5) / length,
        np.minimum(since, FAR) / FAR,
        np.minimum(left, FAR) / FAR,
        np.minimum(length, 2 * FAR) / FAR,
    )
    return np.stack(columns, axis=1).astype(np.float32)


Weights = Mapping[str, Any]
TYPICAL_FRAMES = 6.0  # length of a phoneme at the start of training


class Backend(Protocol):
    """Operations of the networks on arrays [..., time, channels] besides `+`, `*` and `@`."""

    def neighbours(self, hidden: Any, distance: int) -> Any:
        """Concatenate the channels at t - distance, t and t + distance; zeros beyond the ends."""

    def gate_halves(self, mixed: Any) -> Any:
        """Return tanh(a) * sigmoid(b), where a and b are the two halves of the channels."""

    def gather(self, rows: Any, index: Any) -> Any:
        """Return the rows of [..., time, channels] at the indices [..., frames]."""

    def exp(self, values: Any) -> Any:
        """Return the exponential of each value."""

    def join(self, parts: list[Any]) -> Any:
        """Return the arrays concatenated along the channels."""

    def clip_values(self, values: Any, low: float, high: float) -> Any:
        """Return the values, clipped to the range from `low` to `high`."""


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


def _dense(weights: Weights, name: str, values: Any) -> Any:
    return values @ weights[name] + weights[f"{name}_bias"]


def _stack(
    backend: Backend,
    weights: Weights,
    name: str,
    dilations: tuple[int, ...],
    hidden: Any,
    mask: Any,
) -> Any:
    for layer, dilation in enumerate(dilations):
        mixed = _dense(weights, f"{name}_{layer}_mix", backend.neighbours(hidden, dilation))
        hidden = (
            hidden + _dense(weights, f"{name}_{layer}_out", backend.gate_halves(mixed))
        ) * mask
    return hidden


def encoder(
    backend: Backend, config: VoiceConfig, weights: Weights, numbers: Any, contexts: Any, mask: Any
) -> tuple[Any, Any]:
    """Return the hidden states [..., phonemes, channels] and the log-durations [..., phonemes].

    `numbers` is int [..., phonemes] and `contexts` [..., phonemes, CONTEXT_CHANNELS]; `mask` [...,
    phonemes, 1] is 0 in padding, or the scalar 1.0 if there is no padding.
    """
    hidden = backend.gather(weights["embedding"], numbers) + _dense(weights, "context", contexts)
    hidden = _stack(backend, weights, "encoder", config.encoder_dilations, hidden * mask, mask)
    return hidden, _dense(weights, "duration", hidden)[..., 0]


def melody(
    backend: Backend, config: VoiceConfig, weights: Weights, spread: Any, positions: Any, mask: Any
) -> Any:
    """Return log2(F0 / 200 Hz) and the logit of voicing, [..., frames, 2].

    `spread` is the hidden state of each frame's phoneme; `positions` is [..., frames,
    POSITION_CHANNELS]; `mask` [..., frames, 1] is 0 in padding, or the scalar 1.0.
    """
    hidden = _dense(weights, "melody_in", spread) + _dense(weights, "melody_position", positions)
    hidden = _stack(backend, weights, "melody", config.melody_dilations, hidden * mask, mask)
    return _dense(weights, "melody_head", hidden)


def mel(
    backend: Backend,
    config: VoiceConfig,
    weights: Weights,
    spread: Any,
    positions: Any,
    pitch: Any,
    harmonics: Any,
    mask: Any,
) -> Any:
    """Return mel frames, [..., frames, bands], in standard deviations from the mean of each band.

    `spread`, `positions` and `mask` are as in `melody`; `pitch` [..., frames, 2] is log2(F0 / 200
    Hz) and voicing; `harmonics` [..., frames, bands] is harmonics(F0) in standard deviations.
    """
    where = backend.join([positions, pitch])
    hidden = _dense(weights, "mel_in", spread) + _dense(weights, "mel_position", where)
    hidden = _stack(backend, weights, "mel", config.mel_dilations, hidden * mask, mask)
    out = _dense(weights, "mel_head", hidden)
    depth = backend.exp(out[..., config.bands :])
    return out[..., : config.bands] + pitch[..., 1:] * depth * harmonics


class NumpyBackend:
    """The `Backend` for NumPy arrays [time, channels]."""

    def neighbours(self, hidden: np.ndarray, distance: int) -> np.ndarray:
        """Concatenate the channels at t - distance, t and t + distance; zeros beyond the ends."""
        padded = np.pad(hidden, ((distance, distance), (0, 0)))
        return np.concatenate([padded[: len(hidden)], hidden, padded[2 * distance :]], axis=1)

    def gate_halves(self, mixed: np.ndarray) -> np.ndarray:
        """Return tanh of the first half of the channels times sigmoid of the second half."""
        first, second = np.split(mixed, 2, axis=-1)
        return np.tanh(first) * (0.5 + 0.5 * np.tanh(0.5 * second))

    def gather(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return the rows at the indices."""
        return rows[index]

    def exp(self, values: np.ndarray) -> np.ndarray:
        """Return the exponential of each value."""
        return np.exp(values)

    def join(self, parts: list[np.ndarray]) -> np.ndarray:
        """Return the arrays concatenated along the channels."""
        return np.concatenate(parts, axis=-1)

    def clip_values(self, values: np.ndarray, low: float, high: float) -> np.ndarray:
        """Return the values, clipped to the range from `low` to `high`."""
        return np.clip(values, low, high)
