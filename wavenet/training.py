"""Train WaveNets: preparation of recordings, batches and losses."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow as tf
from PIL import Image

from onepass.foundation import model_folders
from onepass.foundation.files import Arrays, show_path
from onepass.foundation.metrics import MetricsLog
from onepass.foundation.model_folders import assign_weights, read_stored_model, variable_names
from onepass.foundation.rules import defaults
from onepass.planning.trainable import Trainable
from onepass.replicator import Replicator
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import Recipe, Setup, TrainingRun
from wavenet.conditioner import SIDE_FRAMES, Conditioner, PitchReader, train_pitch_reader
from wavenet.config import KIND, PitchConvention, TrainConfig, config_from
from wavenet.data import audio
from wavenet.data.clips import ClipBatches, ClipContext, source_of
from wavenet.data.corpus import Corpus, frames_of, prepare, recordings_of
from wavenet.data.recordings import SPLITS, DataError, ScanReport, ScanRules, scan
from wavenet.density import Density
from wavenet.dev_recordings import condition_of, dev_recordings, up_to
from wavenet.features.frames import FrameStatistics
from wavenet.front import request_of
from wavenet.model import make_network
from wavenet.network import Network, WaveNet
from wavenet.plots import spectrogram_png
from wavenet.samplers.generation import generate

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
        folder = model_folders.model_folder(Path(config.start_from))
        stored, weights, _ = read_stored_model(folder, lambda stored, path: {})
        begun, hop = config_from(stored), config.network.hop_samples
        same_frames = begun.data.mel(begun.network.hop_samples) == config.data.mel(hop)
        assign_weights(network, weights | _reader_unlike(network, weights), folder)
    conditioner = network.conditioner
    if conditioner is None:
        return
    if not same_frames:
        members = recordings_of(corpus, "train")
        frames = np.concatenate([frames_of(corpus, member, ("mel",)) for member in members])
        deviation = np.maximum(frames.std(0, dtype=np.float64), LEAST_DEVIATION)
        conditioner.mean.assign(frames.mean(0, dtype=np.float64).astype(np.float32))
        conditioner.deviation.assign(deviation.astype(np.float32))
    reader = conditioner.reader
    if reader is None or not config.pitch_steps:
        return
    train_reader(conditioner, reader, corpus, config)
    cents, voicing = reader_error(conditioner, reader, corpus)
    log(
        f"F0 read off the mel on dev: half of the voiced frames within {cents:.0f} cents, "
        f"voicing wrong in {100 * voicing:.1f} % of the frames"
    )


def _reader_unlike(network: Network, weights: Arrays) -> Arrays:
    """Return the weights of a network's pitch reader if its size differs from that in `weights`."""
    names = zip(variable_names(network), network.trainable_variables, strict=True)
    variables = {name: variable for name, variable in names if name.startswith(READER)}
    shapes = {name: weights[name].shape for name in variables if name in weights}
    if shapes == {name: tuple(variable.shape) for name, variable in variables.items()}:
        return {}
    return {name: variable.numpy() for name, variable in variables.items()}


def train_reader(
    conditioner: Conditioner, reader: PitchReader, corpus: Corpus, config: TrainConfig
) -> None:
    """Train the conditioner's pitch reader on the F0 and voicing of the corpus."""
    bands = conditioner.mel.bands
    clip_samples = READER_FRAMES * config.network.hop_samples
    source = source_of(corpus, "train", clip_samples, ("mel", "f0"))

    def read(frames: tf.Tensor) -> tf.Tensor:
        return conditioner.standardise_mel(frames[..., :bands])

    train_pitch_reader(reader, source, config.pitch_steps, config.seed, read)


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


SAMPLE_SECONDS = 2.0
DEV_SECONDS = 30.0  # total length of the dev recordings on which checkpoints are selected


class EvaluationCallback:
    """A callback that scores averaged weights on the half "choose" of dev, up to `DEV_SECONDS`."""

    def __init__(
        self, network: WaveNet, state: TrainState, corpus: Corpus, config: TrainConfig, folder: Path
    ) -> None:
        self.network, self.state, self.config, self.folder = network, state, config, folder
        self.density = Density(network)
        known = corpus.speakers[: config.network.speakers]
        recordings = dev_recordings(network, corpus, config.data.features, known, "choose")
        self.recordings = up_to(recordings, DEV_SECONDS * config.data.sample_rate_hz)

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Return the bits per dev sample; log them, generated audio and its spectrogram."""
        with self.state.swap_in_average():
            bits = self.density.code_lengths(self.recordings).mean_bits
            log.scalars(step, {"dev_bits_per_sample": bits})
            rate_hz, item = self.config.data.sample_rate_hz, self.recordings[0]
            recorded = item["waveform"][: int(SAMPLE_SECONDS * rate_hz)]
            request = request_of(condition_of(self.network, item), len(recorded))
            levels = generate(self.network, request)[0]
        waveform = self.network.codec.decode(levels).numpy()
        pair = {"sampled": waveform, "recorded": recorded}
        write_sounds(self.folder, log, step, pair, rate_hz)
        log.audio(step, "sample", waveform, rate_hz)
        return bits


def write_sounds(
    folder: Path, log: MetricsLog, step: int, waveforms: dict[str, np.ndarray], rate_hz: int
) -> None:
    """Write the first of titled waveforms, and log and write the spectrograms of all of them."""
    path = folder / f"step_{step:08d}"
    audio.write(path.with_suffix(".wav"), next(iter(waveforms.values())), rate_hz)
    spectrogram_png(path.with_suffix(".png"), waveforms, rate_hz)
    with Image.open(path.with_suffix(".png")) as image:
        log.image(step, "spectrogram", np.asarray(image.convert("RGB")))


HEARD = ("level_db", "frames")  # measured properties of the recordings, kept in config.json
CHANGEABLE = ("loop", "data_folder", "dev_digest", *HEARD)
FEATURES = "features"  # sub-folder of a run with cached features


class SpeechRecipe(Recipe):
    """Training of a WaveNet on recordings."""

    things: ClassVar = "recordings"
    changeable: ClassVar = CHANGEABLE

    def prepare(self, run: TrainingRun) -> tuple[TrainConfig, Corpus]:
        """Claim the run, and return the resolved configuration and the prepared recordings."""
        features = run.sharing(FEATURES)
        report = scan_folder(self.data, self.config, features and features / FEATURES)
        config = self.config.resolve_settings(len({r.speaker for r in report.of("train")}))
        run.check(self.describe_run(KIND, config), CHANGEABLE, defaults(config))
        run.log_lines(report.lines())
        gain_db = run.stored.get("gain_db")  # a resumed run keeps its gain
        gain_db = float(gain_db) if isinstance(gain_db, int | float) else None
        corpus = prepare_corpus(report, config, run.sharing(FEATURES), gain_db)
        run.log_lines(corpus.notes)
        facts = {**describe_corpus(corpus), "dev_digest": report.dev_digest}
        run.claim(self.describe_run(KIND, config, **facts), CHANGEABLE, defaults(config))
        return config, corpus

    def set_up(self, run: TrainingRun, prepared: tuple[TrainConfig, Corpus]) -> Setup:
        """Return a `Setup` with the network's training state, loss, batches and evaluation."""
        config, corpus = prepared
        network = make_network(config)
        state = TrainState(network, config.optimizer, config.loop.num_steps)
        drawn, past = batches(corpus, config), config.network.receptive_field

        def start() -> None:
            prepare_network(network, config, corpus, run.log)
            state.start(network.trainable_variables)

        return Setup(
            state,
            ClipLoss(network),
            drawn,
            lambda: EvaluationCallback(network, state, corpus, config, run.samples()),
            drawn.portable(),
            start,
            description=f"{state.size:,} weights, receptive field {past} samples "
            f"({1000 * past / config.data.sample_rate_hz:.0f} ms)",
            tensor_float_32=not config.network.prediction_order,  # needs full float32 precision
        )


class ClipLoss:
    """The loss of a batch of clips: negative log-likelihood in nats per sample."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def __call__(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the mean over unmasked samples (or `counted`), and metric "bits_per_sample"."""
        network = self.network
        levels = batch["levels"] if "levels" in batch else network.codec.encode(batch["waveform"])
        inputs, speaker = network.inputs(levels), None
        if network.config.speakers:
            speaker = batch["speaker"]
        parameters = network.training_parameters(inputs, batch.get("frames"), speaker)
        log_prob = network.likelihood.log_prob(parameters, levels)
        counted = batch.get("counted")
        counted = tf.reduce_sum(batch["mask"]) if counted is None else counted
        value = -tf.reduce_sum(log_prob * batch["mask"]) / counted
        return value, {"bits_per_sample": value / math.log(2.0)}

    def global_inputs(
        self, batch: dict[str, tf.Tensor], replicator: Replicator
    ) -> dict[str, tf.Tensor]:
        """Return the replicas' mean number of unmasked samples, which may differ, as "counted"."""
        return {"counted": replicator.all_reduce(tf.reduce_sum(batch["mask"]), "mean")}


def batches(corpus: Corpus, config: TrainConfig) -> ClipBatches:
    """Return the training batches; each depends only on the corpus, the seed and the step."""
    data, around, encode = config.data, clip_context(config), config.network.make_codec().encode
    return ClipBatches(
        corpus, data.clip_samples, data.batch_size, config.seed, data.features, around, encode
    )


def clip_context(config: TrainConfig) -> ClipContext:
    """Return the settings for the past, neighbouring frames and augmentation of clips."""
    data, side = config.data, SIDE_FRAMES if config.network.conditioner_units else 0
    return ClipContext(data.left_samples, side, data.augment_gain_db, data.augment_polarity)


def scan_folder(data: Path, config: TrainConfig, cache_folder: Path | None = None) -> ScanReport:
    """Return the usable recordings by the rules of a configuration; no cache folder is created."""
    least, share, by_folder = config.data.min_seconds, config.data.dev_share, config.data.by_speaker
    rules = ScanRules(min_seconds=least, dev_share=share, speaker_folders=by_folder)
    existing = cache_folder if cache_folder is not None and cache_folder.is_dir() else None
    report = scan(data, config.data.sample_rate_hz, rules, cache_folder=existing)
    for split in SPLITS:
        if not report.of(split):
            raise DataError(
                f"{show_path(data)}: no recording for {split}; train and dev need at least "
                f"one each (`dev_share` is {config.data.dev_share:g})."
            )
    return report


def prepare_corpus(
    report: ScanReport, config: TrainConfig, workdir: Path | None, gain_db: float | None = None
) -> Corpus:
    """Return the recordings with frames, cached in `workdir`, at `gain_db` or at `level_db`."""
    hop = config.network.hop_samples
    pitch = config.data.pitch(hop)
    if pitch is None and config.network.pitch_taps and config.pitch_steps:  # the reader learns
        pitch = PitchConvention(config.data.sample_rate_hz, hop)
    return prepare(
        report,
        mel=config.data.mel(hop),
        pitch=pitch,
        level_db=config.data.level_db,
        gain_db=gain_db,
        speeds=config.data.augment_speeds,
        cache_folder=None if workdir is None else Path(workdir) / FEATURES,
    )


def describe_corpus(corpus: Corpus) -> dict:
    """Return what config.json records about the data: gain, speakers, and the entries in `HEARD`.

    `level_db` is the median RMS of the training recordings after the gain; `frames` contains the
    `FrameStatistics` of their mel frames, if there are any.
    """
    members = recordings_of(corpus, "train")
    levels_db = [audio.rms_db(audio.from_int16(member.waveform)) for member in members]
    known: dict = {"gain_db": corpus.gain_db, "level_db": round(float(np.median(levels_db)), 2)}
    if corpus.mel:
        frames = (frames_of(corpus, member, ("mel",)) for member in members)
        known["frames"] = dataclasses.asdict(FrameStatistics.of(frames))
    return known | {"speakers": list(corpus.speakers)}


def batch_spec(config: TrainConfig) -> dict[str, tf.TensorSpec]:
    """Return the shapes and types of a training batch from `batch_sampling.batch`."""
    rows, samples = config.data.batch_size, config.data.left_samples + config.data.clip_samples
    sound = tf.TensorSpec([rows, samples], tf.float32)
    spec = {"waveform": sound, "mask": sound}
    if config.network.speakers:
        spec["speaker"] = tf.TensorSpec([rows], tf.int32)
    if config.network.feature_channels:
        frames = samples // config.network.hop_samples + 2 * clip_context(config).side_frames
        spec["frames"] = tf.TensorSpec([rows, frames, config.network.feature_channels], tf.float32)
    return spec


def trainable(config: TrainConfig) -> Trainable:
    """Return the training step for planning; its batches contain levels instead of waveforms."""
    make = functools.partial(trainable, config)
    config = config.resolve_settings(max(config.network.speakers, 1))
    network = make_network(config)
    state = TrainState(network, config.optimizer, config.loop.num_steps)
    spec = batch_spec(config)
    spec["levels"] = tf.TensorSpec(spec.pop("waveform").shape, tf.int32)
    return Trainable(state, ClipLoss(network), spec, config.loop.jit_compile, make)
