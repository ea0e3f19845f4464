"""Preparation of a vocoder before training: mel statistics, and training of its pitch reader."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from onepass import shipped
from onepass.foundation.atomic_files import Arrays
from onepass.foundation.model_folder import assign_weights, read_stored_model, variable_names
from onepass.foundation.stored_config import stored_config
from wavenet.conditioner import Conditioner, PitchReader, train_pitch_reader
from wavenet.data.corpus import Corpus, frames_of, recordings_of
from wavenet.data.pipeline import source_of
from wavenet.features.conventions import MelConvention
from wavenet.presets import TrainConfig
from wavenet.sound_network import Network

READER = "conditioner/reader/"  # name prefix of the pitch reader's variables


READER_FRAMES = 80  # length of the pitch reader's training clips


LEAST_DEVIATION = 0.02  # lower bound of a band's standard deviation, in units of `above_silence`


CENTS_PER_OCTAVE = 1200.0


def prepare_network(
    network: Network, config: TrainConfig, corpus: Corpus, log: Callable[[str], None] = print
) -> None:
    """Set the network's mel statistics, and train its pitch reader if it has one.

    Both are stored with the weights and stay fixed. With `start_from` they come from that model,
    unless its mel convention or its reader's size differs; its reader is trained further.
    """
    same_frames = False
    if config.start_from is not None:
        folder = shipped.model_folder(Path(config.start_from))
        stored, weights, _ = read_stored_model(folder, lambda stored, path: {})
        same_frames = _mel_of(stored) == config.data.mel(config.network.hop_samples)
        own = _unlike(_reader_variables(network), weights)
        assign_weights(network, weights | own, folder)
    conditioner = network.conditioner
    if conditioner is None:
        return
    if not same_frames:
        mean, deviation = mel_statistics(corpus)
        conditioner.mean.assign(mean)
        conditioner.deviation.assign(deviation)
    reader = conditioner.reader
    if reader is None or not config.pitch_steps:
        return
    train_reader(conditioner, reader, corpus, config)
    cents, voicing = reader_error(conditioner, reader, corpus)
    log(
        f"F0 read off the mel on dev: half of the voiced frames within {cents:.0f} cents, "
        f"voicing wrong in {100 * voicing:.1f} % of the frames"
    )


def _mel_of(stored: dict) -> MelConvention | None:
    config = stored_config(TrainConfig, stored)
    return config.data.mel(config.network.hop_samples)


def _reader_variables(network: Network) -> dict[str, tf.Variable]:
    names = zip(variable_names(network), network.trainable_variables, strict=True)
    return {name: variable for name, variable in names if name.startswith(READER)}


def _unlike(variables: dict[str, tf.Variable], weights: Arrays) -> Arrays:
    shapes = {name: weights[name].shape for name in variables if name in weights}
    if shapes == {name: tuple(variable.shape) for name, variable in variables.items()}:
        return {}
    return {name: variable.numpy() for name, variable in variables.items()}


def mel_statistics(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation (LEAST_DEVIATION or more) of train's mel bands."""
    frames = np.concatenate(
        [frames_of(corpus, p, ("mel",)) for p in recordings_of(corpus, "train")]
    )
    deviation = np.maximum(frames.std(0, dtype=np.float64), LEAST_DEVIATION)
    return frames.mean(0, dtype=np.float64).astype(np.float32), deviation.astype(np.float32)


def train_reader(
    conditioner: Conditioner, reader: PitchReader, corpus: Corpus, config: TrainConfig
) -> None:
    """Train the conditioner's pitch reader on the F0 and voicing of the corpus."""
    bands = conditioner.mel.bands
    clip_samples = READER_FRAMES * config.network.hop_samples
    source = source_of(corpus, "train", clip_samples, ("mel", "f0"))
    train_pitch_reader(
        reader,
        source,
        config.pitch_steps,
        config.seed,
        lambda frames: conditioner.standardise_mel(frames[..., :bands]),
    )


def reader_error(
    conditioner: Conditioner, reader: PitchReader, corpus: Corpus
) -> tuple[float, float]:
    """Return the median F0 error in cents where both are voiced, and the voicing error rate."""
    bands, side, cents, wrong = conditioner.mel.bands, reader.side_frames, [], []
    for prepared in recordings_of(corpus, "dev"):
        frames = frames_of(corpus, prepared, ("mel", "f0"))
        padded = np.pad(frames[None, :, :bands], ((0, 0), (side, side), (0, 0)))
        read = reader(conditioner.standardise_mel(tf.constant(padded)))
        octaves, logit = (x.numpy()[0] for x in read)
        voiced = frames[:, -1] > 0.5
        both = voiced & (logit > 0.0)
        cents.append(CENTS_PER_OCTAVE * np.abs(octaves - frames[:, -2])[both])
        wrong.append(voiced != (logit > 0.0))
    every = np.concatenate(cents)
    error = float(np.median(every)) if every.size else math.nan
    return error, float(np.concatenate(wrong).mean())
