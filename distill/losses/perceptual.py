"""Perceptual losses: distances between the features that a classifier of speech units computes.

It should compute the same features for the student's sound as for the recording, either frame by
frame or in their correlations (van den Oord et al. 2017, "Parallel WaveNet", arXiv 1711.10433): the
feature reconstruction loss and the style loss of Johnson et al. 2016, "Perceptual Losses for
Real-Time Style Transfer", equations 2 and 4; the style loss is due to Gatys et al.

The units replace the phones of the paper, because only features matter that distinguish speech
sounds. They are k-means clusters of cepstra and their deltas, and the network reads partly masked
frames, so that it must learn how sounds follow one another (both as in the first round of HuBERT,
Hsu et al. 2021). Transcripts do not give the time of each sound.
"""

import dataclasses
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.cluster.vq
import scipy.fft
import tensorflow as tf

from distill.losses.spectra import log_mel
from distill.losses.terms import Draw
from onepass.foundation.files import Arrays, read_npz, write_npz
from onepass.foundation.rules import Checked, Count, Range, UserError, require
from onepass.likelihoods.noise import Initial
from onepass.replicator import Replicator
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train_network
from wavenet.config import MelConvention
from wavenet.data.corpus import Corpus, frames_of, recordings_of

KIND = "speech units, format 1"
STATISTICS = ("centres", "mean", "scale", "band_mean", "frame_scale")
CEPSTRA = 13
DELTA_WEIGHT = 0.5  # weight of delta features relative to the cepstra
CLUSTERED_FRAMES = 40_000  # largest number of frames for k-means
KMEANS_ROUNDS = 30
GAIN = 0.05  # largest shift of a clip on the scale of `above_silence`: 5 dB, floor 1e-5
JITTER = 0.03  # standard deviation of the noise added to every value, on the same scale
MASKED_FRAMES, MASKED_SPANS = 6, 2
MASKED_BANDS = 0.2  # largest share of the bands that is masked
OPTIMIZER = OptimizerConfig(learning_rate=3e-3, warmup_steps=50, decay="cosine", average_decay=0.99)


@dataclasses.dataclass(frozen=True)
class UnitConfig(Checked):
    """Sizes of a `UnitClassifier`, and the mel settings of the frames that it reads."""

    convention: MelConvention
    num_units: Annotated[int, Range(2)] = 64
    channels: Count = 64
    widths: tuple[int, ...] = (5, 3, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.widths and min(self.widths) >= 1
        require(fits, "widths", "one or more of at least 1", self.widths)


class UnitClassifier(tf.Module):
    """A convolutional network that predicts the speech unit of each frame of `above_silence`.

    Attributes:
      band_mean, frame_scale: statistics of a corpus, float32 [bands] and a scalar, with which
        frames are standardised; one common scale does not amplify constant bands.
      mean, scale: statistics with which `cepstra` are standardised, each float32 [2 * cepstra].
      centres: centres of the units, float32 [units, 2 * cepstra].
    """

    def __init__(self, config: UnitConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        initial, inputs = Initial(seed), config.convention.bands
        self.kernels, self.biases = [], []
        for width in config.widths:
            self.kernels.append(initial.kernel([width, inputs, config.channels], "kernel", 2**0.5))
            self.biases.append(initial.zeros([config.channels], "bias"))
            inputs = config.channels
        self.head_kernel = initial.kernel([inputs, config.num_units], "head_kernel")
        self.head_bias = initial.zeros([config.num_units], "head_bias")
        columns = 2 * min(CEPSTRA, config.convention.bands)
        self.centres = np.zeros([config.num_units, columns], np.float32)
        self.mean, self.scale = np.zeros(columns, np.float32), np.ones(columns, np.float32)
        self.band_mean = np.zeros(config.convention.bands, np.float32)
        self.frame_scale = np.ones([], np.float32)

    def logits(self, mel: tf.Tensor) -> tf.Tensor:
        """Return the logits of the units for each frame, float32 [batch, frames, units]."""
        weights = [(tf.identity(k), tf.identity(b)) for k, b in self._layers()]
        return tf.matmul(self._hidden_layers(mel, weights)[-1], self.head_kernel) + self.head_bias

    def features(self, mel: tf.Tensor) -> list[tf.Tensor]:
        """Return each layer's activations [batch, frames, channels]; weights get no gradient."""
        weights = [(tf.stop_gradient(k), tf.stop_gradient(b)) for k, b in self._layers()]
        return self._hidden_layers(mel, weights)

    def units(self, mel: np.ndarray) -> np.ndarray:
        """Return the unit with the nearest centre for each frame of a recording, int32 [frames]."""
        points = (cepstra(mel) - self.mean) / self.scale
        return scipy.cluster.vq.vq(points, self.centres)[0].astype(np.int32)

    def name_variables(self) -> dict[str, tf.Variable]:
        """Return the variables by name, as they are stored in a file."""
        numbered = {"kernel": self.kernels, "bias": self.biases}
        named = {f"{kind}/{i}": v for kind, vs in numbered.items() for i, v in enumerate(vs)}
        return {**named, "head_kernel": self.head_kernel, "head_bias": self.head_bias}

    def _layers(self) -> Iterator[tuple[tf.Variable, tf.Variable]]:
        return zip(self.kernels, self.biases, strict=True)

    def _hidden_layers(
        self, mel: tf.Tensor, weights: Iterable[tuple[tf.Tensor, tf.Tensor]]
    ) -> list[tf.Tensor]:
        hidden, layers = (mel - self.band_mean) / self.frame_scale, []
        for kernel, bias in weights:
            hidden = tf.nn.relu(tf.nn.conv1d(hidden, kernel, stride=1, padding="SAME") + bias)
            layers.append(hidden)
        return layers


def cepstra(mel: np.ndarray) -> np.ndarray:
    """Return the lowest cepstra of each frame and their deltas, float32 [frames, 2 * cepstra].

    The 13 lowest coefficients of the orthonormal DCT over bands describe the spectral envelope
    without the harmonics of the voice. A delta is half the difference of the neighbouring frames.
    """
    values = scipy.fft.dct(mel, norm="ortho", axis=1)[:, :CEPSTRA]
    padded = np.pad(values, [(1, 1), (0, 0)], mode="edge")
    deltas = 0.5 * (padded[2:] - padded[:-2])
    return np.concatenate([values, deltas], axis=1).astype(np.float32)


def _cluster(classifier: UnitClassifier, points: np.ndarray, rng: np.random.Generator) -> None:
    """Set the statistics and the centres from cepstra [frames, columns], by k-means++ and Lloyd."""
    num_units, half = classifier.config.num_units, points.shape[1] // 2
    require(len(points) >= num_units, "num_units", f"at most the {len(points)} frames", num_units)
    if len(points) > CLUSTERED_FRAMES:
        points = points[np.sort(rng.choice(len(points), CLUSTERED_FRAMES, replace=False))]
    classifier.mean, scale = points.mean(axis=0), np.maximum(points.std(axis=0), 1e-3)
    scale[half:] /= DELTA_WEIGHT
    classifier.scale = scale
    with warnings.catch_warnings():
        # A cluster may be empty: a unit without frames does no harm.
        warnings.simplefilter("ignore", UserWarning)
        classifier.centres, _ = scipy.cluster.vq.kmeans2(
            (points - classifier.mean) / scale, num_units, KMEANS_ROUNDS, minit="++", rng=rng
        )


def augment_mel(mel: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return clips augmented for training by gains, noise and masked spans.

    Each clip gets a random gain and a little noise in every value; two spans of frames and one span
    of bands are silenced (SpecAugment, Park et al. 2019).
    """
    batch, frames, bands = mel.shape
    gain = rng.uniform(-GAIN, GAIN, [batch, 1, 1])
    result = np.maximum(mel + gain + JITTER * rng.standard_normal(mel.shape, np.float32), 0.0)
    for _ in range(MASKED_SPANS):
        result *= ~_spans(batch, frames, min(MASKED_FRAMES, frames // 2), rng)[:, :, None]
    result *= ~_spans(batch, bands, int(MASKED_BANDS * bands), rng)[:, None, :]
    return result.astype(np.float32)


def _spans(batch: int, length: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    spans = rng.integers(0, longest + 1, [batch, 1])
    starts = rng.integers(0, length - spans + 1)
    places = np.arange(length)
    return (places >= starts) & (places < starts + spans)


def _batch(
    mel: np.ndarray, units: np.ndarray, seed: int, step: int, shape: tuple[int, int]
) -> dict[str, tf.Tensor]:
    rng = np.random.default_rng([seed, step])
    clips, frames = shape[0], min(shape[1], len(mel))
    starts = rng.integers(0, len(mel) - frames + 1, clips)
    rows = starts[:, None] + np.arange(frames)
    return {"mel": tf.constant(augment_mel(mel[rows], rng)), "units": tf.constant(units[rows])}


def train_units(
    corpus: Corpus,
    split: str = "train",
    *,
    num_units: int = 64,
    channels: int = 64,
    steps: int = 1500,
    batch_size: int = 16,
    clip_frames: int = 96,
    seed: int = 0,
    log: Callable[[str], None] = print,
) -> UnitClassifier:
    """Find the units of a corpus, and train a `UnitClassifier` on them, in about a minute."""
    if corpus.mel is None:
        raise UserError("`corpus` must have mel frames, got none.")
    started = time.monotonic()
    classifier = UnitClassifier(UnitConfig(corpus.mel, num_units, channels), seed)
    recordings = [frames_of(corpus, r, ["mel"]) for r in recordings_of(corpus, split)]
    mel = np.concatenate(recordings)
    classifier.band_mean = mel.mean(axis=0)
    classifier.frame_scale = np.maximum((mel - classifier.band_mean).std(), np.float32(1e-3))
    points = np.concatenate([cepstra(recording) for recording in recordings])
    _cluster(classifier, points, np.random.default_rng(seed))
    units = np.concatenate([classifier.units(recording) for recording in recordings])
    log(f"speech units: {num_units} clusters of {len(mel):,} frames")
    shape = batch_size, clip_frames

    def loss(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=batch["units"], logits=classifier.logits(batch["mel"])
        )
        return tf.reduce_mean(losses), {}

    train_network(
        classifier,
        loss,
        OPTIMIZER,
        LoopConfig(steps),
        lambda start, *_: (_batch(mel, units, seed, n, shape) for n in itertools.count(start)),
        title="learning the speech units",
    )
    for other, members in corpus.splits.items():
        if members and other != split:
            seconds = time.monotonic() - started
            right, largest = accuracy(classifier, corpus, other)
            log(
                f"speech units: {100 * right:.1f} % of {other} frames recognised (the most "
                f"frequent unit has {100 * largest:.1f} %) after {seconds:.0f} s"
            )
    return classifier


def accuracy(classifier: UnitClassifier, corpus: Corpus, split: str) -> tuple[float, float]:
    """Return the share of frames recognised in a split, and the share of its most frequent unit."""
    found, right = np.zeros(classifier.config.num_units, np.int64), 0
    for recording in recordings_of(corpus, split):
        mel = frames_of(corpus, recording, ["mel"])
        units = classifier.units(mel)
        logits = classifier.logits(tf.constant(mel[None]))
        right += int(np.sum(tf.argmax(logits, -1)[0].numpy() == units))
        found += np.bincount(units, minlength=len(found))
    return right / int(found.sum()), int(found.max()) / int(found.sum())


def save_units(classifier: UnitClassifier, path: str | os.PathLike[str]) -> None:
    """Write the classifier to one npz file, atomically."""
    description = {"kind": KIND, **dataclasses.asdict(classifier.config)}
    arrays = {name: variable.numpy() for name, variable in classifier.name_variables().items()}
    arrays |= {name: getattr(classifier, name) for name in STATISTICS}
    write_npz(Path(path), {"description": np.array(json.dumps(description)), **arrays})


def load_units(path: str | os.PathLike[str]) -> UnitClassifier:
    """Load a classifier that `save_units` wrote."""
    arrays = read_npz(Path(path))
    classifier = UnitClassifier(_config(arrays, Path(path)))
    expected = {name: variable.shape for name, variable in classifier.name_variables().items()}
    expected |= {name: getattr(classifier, name).shape for name in STATISTICS}
    for name, shape in expected.items():
        array = arrays.get(name)
        if array is None or array.dtype != np.float32 or array.shape != tuple(shape):
            raise UserError(
                f"{path} is not a complete classifier of speech units: `{name}` must be float32 of "
                f"shape {tuple(shape)}."
            )
    for name, variable in classifier.name_variables().items():
        variable.assign(arrays[name])
    for name in STATISTICS:
        setattr(classifier, name, arrays[name])
    return classifier


def copy_classifier(classifier: UnitClassifier) -> UnitClassifier:
    """Return a copy of the classifier with variables that this call creates."""
    copy = UnitClassifier(classifier.config)
    for variable, original in zip(copy.variables, classifier.variables, strict=True):
        variable.assign(tf.convert_to_tensor(original))
    for name in STATISTICS:
        setattr(copy, name, getattr(classifier, name))
    return copy


def _config(arrays: Arrays, path: Path) -> UnitConfig:
    try:
        values = json.loads(str(arrays["description"]))
        if values.pop("kind") != KIND:
            raise KeyError("kind")
        convention = MelConvention(**values.pop("convention"))
        return UnitConfig(convention, **{**values, "widths": tuple(values["widths"])})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} holds no speech units of this version ({KIND}).") from error


LEAST = 1e-6  # lower bound of the mean square in a denominator


@dataclasses.dataclass(frozen=True)
class PerceptualLoss:
    """The mean squared difference between hidden features of sounds and recordings, a scalar.

    Each layer's difference is divided by the mean square of the recorded features, so that all
    layers have equal weight, and the layers are averaged. The loss is 0 for equal sounds; for
    unrelated features f it is 2 (1 - mean(f)^2 / mean(f^2)), which is below 2, since rectified
    features have a positive mean. The gradient reaches only the sound.

    Attributes:
      compared: function from a layer's features to what is compared: the features themselves, or
        their `gram`, for which sounds may differ in length.
    """

    classifier: UnitClassifier
    convention: MelConvention
    compared: Callable[[tf.Tensor], tf.Tensor] = tf.identity

    def __post_init__(self) -> None:
        expected = self.classifier.config.convention
        if self.convention.to_dict() != expected.to_dict():
            raise UserError(
                f"`convention` must be the classifier's, {expected}, got {self.convention}."
            )

    def __call__(
        self, sound: tf.Tensor, recorded: tf.Tensor, energies: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the loss of sounds float32 [batch, time] in [-1, 1], at the level of the corpus.

        `energies` are those of the whole batch, float32 [layers]; None: those of `recorded`.
        """
        targets = [tf.stop_gradient(target) for target in self._features(recorded)]
        each = tf.unstack(_energies(targets) if energies is None else energies)
        parts = [
            tf.reduce_mean(tf.square(values - target)) / tf.maximum(energy, LEAST)
            for values, target, energy in zip(self._features(sound), targets, each, strict=True)
        ]
        return tf.add_n(parts) / len(parts)

    def energies(self, recorded: tf.Tensor) -> tf.Tensor:
        """Return the mean square of each layer's compared features, float32 [layers].

        The energies of a batch are the mean of the energies of its equal shares.
        """
        return _energies(self._features(recorded))

    def _features(self, sound: tf.Tensor) -> list[tf.Tensor]:
        # The classifier reads `wavenet.features.frames.above_silence` of the log-mel frames.
        frames = 1.0 - log_mel(sound, self.convention) / self.convention.silence
        return [self.compared(layer) for layer in self.classifier.features(frames)]


@dataclasses.dataclass(frozen=True)
class Perceived:
    """A perceptual loss as a term, relative to the energies of the whole batch."""

    name: str
    loss: PerceptualLoss

    def __call__(self, draw: Draw) -> tf.Tensor:
        """Return the loss, a scalar."""
        energies = draw.batch.get(f"{self.name}_energies")
        return self.loss(draw.output.output, draw.recorded, energies)

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict[str, tf.Tensor]:
        """Return the energies of the whole batch."""
        means = {f"{self.name}_energies": self.loss.energies(batch["waveform"])}
        return dict(replicator.all_reduce(means, "mean"))


def gram(features: tf.Tensor) -> tf.Tensor:
    """Return the Gram matrix over frames, float32 [batch, channels, channels].

        G[i, j] = 1 / (channels frames) sum_f F[f, i] F[f, j]

    It does not depend on the time at which a sound occurs in the clip.
    """
    _, frames, channels = features.shape
    return tf.matmul(features, features, transpose_a=True) / (channels * frames)


def _energies(targets: list[tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.reduce_mean(tf.square(target)) for target in targets])
