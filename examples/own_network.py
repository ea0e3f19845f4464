"""A custom Keras network as a model of sound: `python -m examples.own_network --out mine`."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import tyro

import onepass
from onepass import likelihoods

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Settings:
    """Length of training and output folder."""

    out: Path
    """Folder for the model."""
    steps: int = 2000
    """Number of updates."""
    length: int = 16000
    """Elements of each sample."""


def network(num_parameters: int) -> keras.Model:
    """Return a causal network of dilated convolutions, [batch, time, 1] to the parameters."""
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(32, 2, padding="causal")(inputs)
    for dilation in (1, 2, 4, 8, 16):
        h = h + layers.Conv1D(32, 2, dilation_rate=dilation, padding="causal", activation="tanh")(h)
    return keras.Model(inputs, layers.Dense(num_parameters)(h))


def tones(num: int, length: int) -> np.ndarray:
    """Return decaying tones, float32 [num, length] in [-1, 1]."""
    generator = np.random.default_rng(0)
    pitch, time = generator.uniform(0.05, 0.3, [num, 1]), np.arange(length)
    return (0.8 * np.exp(-time / 800) * np.sin(pitch * time)).astype(np.float32)


def main(settings: Settings) -> None:
    """Train, sample, save and load."""
    waveforms = tones(64, 1600)
    distribution = likelihoods.LogisticMixture(levels=65536, components=10)
    model = onepass.Autoregressive(network(distribution.num_parameters), distribution)
    onepass.fit(model, waveforms, steps=settings.steps)
    print("nats per element:", -float(np.mean(model.log_prob(waveforms[:8]))))
    sounds = model.sample(num=2, length=settings.length, seed=1)
    onepass.save(model, settings.out)
    same = onepass.load(settings.out).sample(num=2, length=settings.length, seed=1)
    print(f"{len(sounds)} sounds; after loading the same: {np.array_equal(sounds, same)}")


if __name__ == "__main__":
    main(tyro.cli(Settings))
