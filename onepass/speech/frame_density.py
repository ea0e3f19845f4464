"""Density of mel frames around the acoustic model's expected frames.

The acoustic model is trained towards medians, which are smoother than any recording. Let d[t] be
the difference between frame t and its expected value, in standard deviations of the bands. Then

    e[t] = (d[t] - shift) @ whiten
    e[t] ~ Normal(past @ linear + mean(hidden), exp(log_scale(hidden)))
    hidden = gate(past @ W + context[t]) @ out, followed by further gated layers

where past = [e[t - 1] | ... | e[t - K]] and the context is computed from the expected frames around
t, F0, voicing and positions. The density is exact; frames are drawn from it one after another, with
noise scaled by a temperature.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onepass.speech.network import POSITION_CHANNELS, Networks, VoiceConfig

DISTANCES = (1, 3)  # in frames, from t to the context's frames before and after it
LOG_SCALES = (-4.0, 2.0)
PIECE_FRAMES = 256  # drawn in about 30 ms
STATISTICS = ("density_shift", "density_whiten", "density_colour")


def no_pause() -> None:
    """Do nothing; the default `pause`, for when there is no other work to yield to."""


def initial_density(config: VoiceConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the initial float32 weights by name; empty if the voice has no density."""
    channels, bands, past = config.density_channels, config.bands, config.density_past
    if not channels:
        return {}
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, before: int, after: int, scale: float = 1.0) -> None:
        values = random.normal(0.0, scale / math.sqrt(before), (before, after))
        weights[f"density_{name}"] = values.astype(np.float32)

    def dense(name: str, before: int, after: int, scale: float = 1.0) -> None:
        matrix(name, before, after, scale)
        weights[f"density_{name}_bias"] = np.zeros(after, np.float32)

    known = 3 * len(DISTANCES) * (bands + 2 + POSITION_CHANNELS)
    dense("context", known, 2 * channels)
    matrix("past", past * bands, 2 * channels)
    matrix("0_out", channels, channels)
    for layer in range(1, config.density_layers):
        dense(f"{layer}_mix", channels, 2 * channels)
        matrix(f"{layer}_out", channels, channels, 0.5)
    # At first the mean is half the newest frame's difference, and the networks add little.
    dense("head", channels, 2 * bands, 0.1)
    weights["density_linear"] = np.eye(past * bands, bands, dtype=np.float32) * 0.5
    return weights


def statistics(differences: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of STATISTICS of differences [frames, bands]: mean, whitening, inverse."""
    shift = differences.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov((differences - shift).T))
    deviations = np.sqrt(np.maximum(variances, 1e-8))
    found = zip(STATISTICS, (shift, axes / deviations, (axes * deviations).T), strict=True)
    return {name: values.astype(np.float32) for name, values in found}


def context(networks: Networks, expected: Any, pitch: Any, positions: Any) -> Any:
    """Return the input `known` of `conditional` for all frames, [..., frames, 2 * channels]."""
    known = networks.xp.concatenate([expected, pitch, positions], axis=-1)
    near = [networks.neighbours(known, distance) for distance in DISTANCES]
    return networks.dense("density_context", networks.xp.concatenate(near, axis=-1))


def conditional(networks: Networks, past: Any, known: Any) -> tuple[Any, Any]:
    """Return the means and log scales of whitened differences, each [..., bands].

    `past` are those of the preceding frames, newest first, [..., past * bands]; `known` is the
    result of `context` for the frame.
    """
    weights, bands = networks.weights, networks.config.bands
    gated = networks.gate_halves(past @ weights["density_past"] + known)
    hidden = gated @ weights["density_0_out"]
    for layer in range(1, networks.config.density_layers):
        mixed = networks.dense(f"density_{layer}_mix", hidden)
        hidden = hidden + networks.gate_halves(mixed) @ weights[f"density_{layer}_out"]
    outputs = networks.dense("density_head", hidden)
    means = outputs[..., :bands] + past @ weights["density_linear"]
    least, most = LOG_SCALES
    return means, networks.xp.clip(outputs[..., bands:], least, most)


def draw_differences(
    networks: Networks,
    expected: np.ndarray,
    pitch: np.ndarray,
    positions: np.ndarray,
    noise: np.ndarray,
    pause: Callable[[], None] = no_pause,
) -> np.ndarray:
    """Return random differences from the expected frames, float32 [frames, bands].

    `noise` is standard normal noise times the temperature, float32 [frames, bands]. `pause` is
    called every PIECE_FRAMES frames; an exception that it raises stops it.
    """
    known = context(networks, expected, pitch, positions)
    whitened, (_, bands) = np.empty_like(noise), noise.shape
    past = np.zeros(networks.config.density_past * bands, np.float32)
    for frame, row in enumerate(noise):
        if frame % PIECE_FRAMES == 0:
            pause()
        means, log_scales = conditional(networks, past, known[frame])
        whitened[frame] = means + np.exp(log_scales) * row
        past = np.concatenate([whitened[frame], past[:-bands]])
    return whitened @ networks.weights["density_colour"] + networks.weights["density_shift"]
