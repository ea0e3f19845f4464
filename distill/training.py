"""Train students of WaveNets: batches, losses, health of the samples."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from distill.config import KIND, DistillConfig, StudentConfig
from distill.evaluation import measure_closeness
from distill.losses.discriminators import Discriminators
from distill.losses.divergence import divergence
from distill.losses.objective import Objective, Parts
from distill.losses.perceptual import (
    UnitClassifier,
    copy_classifier,
    load_units,
    save_units,
    train_units,
)
from distill.model import generate
from distill.student import Flow, ParallelWaveNet
from distill.teacher import WaveNetDensity, digest, frozen_copy
from onepass.foundation import model_folders
from onepass.foundation.metrics import MetricsLog
from onepass.foundation.model_folders import assign_weights, read_stored_weights
from onepass.foundation.rules import UserError, defaults, to_json
from onepass.likelihoods.affine import FlowOutput, compose
from onepass.planning.pipeline.export import Stage
from onepass.replicator.portable.export import named_weights
from onepass.replicator.training.state import TrainState, is_single_device
from onepass.replicator.training.training_run import Recipe, Setup, TrainingRun
from onepass.trained import Trained
from wavenet.conditioner import SIDE_FRAMES
from wavenet.config import MelConvention, PitchConvention
from wavenet.data import audio
from wavenet.data.clips import ClipBatches, ClipContext
from wavenet.data.corpus import Corpus
from wavenet.density import Density
from wavenet.dev_recordings import condition_of, dev_recordings, up_to
from wavenet.features.frames import fundamental_frequency
from wavenet.front import request_of
from wavenet.measures import log_mel_distance_db, multi_resolution_stft_distance
from wavenet.optional_packages import available
from wavenet.training import FEATURES, HEARD, prepare_corpus, scan_folder, write_sounds

Tensors = dict[str, tf.Tensor]
Loss = Callable[[FlowOutput, Tensors], tf.Tensor]


def flow_stages(
    student: ParallelWaveNet,
    loss: Loss,
    loss_batch: tuple[str, ...] = (),
    frozen: dict[str, tf.Variable] | None = None,
) -> list[Stage]:
    """Return one stage per flow, for `export_stages`, of a student whose flows make the wave.

    The first stage reads `noise` float32 [batch, time] and the student's conditions, `frames`
    [batch, frames, channels] and `speaker` int32 [batch]. Each stage but the last passes on the
    current sound, its location and log scale, each [batch, time], and the condition [batch,
    bunches, channels], if there is one. The last stage computes the loss, from the entries
    `loss_batch` of a batch and from the variables `frozen`, by name, which training does not
    change.
    """
    if student.residual is not None:
        raise ValueError("`student` must make the wave, not a residual.")
    known = named_weights(student)
    names = {variable.ref(): name for name, variable in known.items()}
    of_flows = [{names[v.ref()]: v for v in flow.trainable_variables} for flow in student.flows]
    others = known.keys() - {name for variables in of_flows for name in variables}
    of_flows[0] |= {name: known[name] for name in known if name in others}
    last, stages = len(student.flows) - 1, []
    for number, (flow, variables) in enumerate(zip(student.flows, of_flows, strict=True)):
        read = condition_inputs(student.config) if number == 0 else ()
        read += loss_batch if number == last else ()
        run = _stage(student, flow, number == 0, loss if number == last else None)
        given = (frozen or {}) if number == last else {}
        stages.append(Stage(run, tuple(dict.fromkeys(read)), variables, given))
    return stages


def condition_inputs(config: StudentConfig) -> tuple[str, ...]:
    """Return the names of the entries of a batch that the first stage reads."""
    frames = ("frames",) if config.feature_channels else ()
    return ("noise", *frames, *(("speaker",) if config.speakers else ()))


def divergence_loss(student: ParallelWaveNet, teacher: WaveNetDensity) -> Loss:
    """Return KL(P_S || P_T), in nats per element, as a loss.

    Its batch has `frames` and `speaker` if the teacher needs them, and `draws` [batch, draws,
    time], which are standard noise.
    """

    def loss(drawn: FlowOutput, batch: Tensors) -> tf.Tensor:
        samples = drawn.output.shape[1]
        condition = teacher.condition(batch.get("frames"), batch.get("speaker"), samples)
        conditionals = teacher.conditionals(drawn.output, condition)
        draws = tf.transpose(batch["draws"], [1, 0, 2])
        return divergence(conditionals, drawn, draws, student.noise_kind).kl

    return loss


def planned_stages(
    student: ParallelWaveNet, teacher: WaveNetDensity, clip_samples: int
) -> dict[str, Any] | None:
    """Return the flows as stages for a plan (`onepass.planning.pipeline.schedule.Stages`), as JSON.

    Each weight of a stage is applied to every sample. The last stage also runs the teacher, with
    two thirds of the work per weight, as its weights need no gradient. A student of residuals
    cannot be divided.
    """
    if student.residual is not None:
        return None
    work = [float(_size(flow)) for flow in student.flows]
    work[-1] += 2.0 / 3.0 * _size(teacher.network)
    config = student.config
    passed = len(FlowOutput._fields)
    passed += config.condition_channels * bool(config.feature_channels)
    passed += config.speaker_channels * bool(config.speakers)
    return {"work": work, "passed_bytes": 4.0 * clip_samples * passed}


def _size(module: tf.Module) -> int:
    return sum(int(variable.shape.num_elements()) for variable in module.variables)


def _stage(
    student: ParallelWaveNet, flow: Flow, is_first: bool, loss: Loss | None
) -> Callable[[Tensors], Tensors]:

    def run(given: Tensors) -> Tensors:
        if is_first:
            noise = given["noise"]
            condition, _ = student.condition(
                given.get("frames"), given.get("speaker"), noise.shape[1]
            )
            channels = condition.channels
            drawn = flow.forward(noise, channels)
        else:
            before = FlowOutput(given["output"], given["location"], given["log_scale"])
            channels = given.get("channels")
            drawn = compose([before, flow.forward(before.output, channels)])
        if loss is not None:
            return {"loss": loss(drawn, given)}
        passed = drawn._asdict()
        return passed if channels is None else passed | {"channels": channels}

    return run


DEV_SECONDS = 20.0  # total length of the dev recordings used in training; `evaluate` uses all
SHOWN_SECONDS = 3.0
PITCH_HOP_SECONDS = 0.0125
QUIET_DB = -6.0  # a student below this level, relative to the recordings, counts as silent
TOO_SURE_NATS = 1.5  # entropy below the teacher's by more than this means that noise dies out
WHISPERED_SHARE = 0.5  # a student with less than this share of the recordings' voicing whispers
LEAST_VOICED = 0.1  # whispering is checked only if at least this share of frames is voiced


@dataclasses.dataclass(frozen=True)
class HealthMetrics:
    """Metrics on dev recordings that show whether a student has collapsed.

    The shares of voiced frames are NaN without pyworld.
    """

    level_db: float
    entropy_nats: float
    teacher_entropy_nats: float
    voiced: float
    recorded_voiced: float


def collapse_warnings(health: HealthMetrics) -> list[str]:
    """Return a line of text for each symptom of collapse; [] for a healthy student."""
    found = []
    if not math.isfinite(health.level_db) or health.level_db < QUIET_DB:
        found.append(
            f"the student falls silent: {-health.level_db:.1f} dB below the recordings. More draws "
            "(--loss.draws), a larger --loss.squared or a lower rate may help."
        )
    if health.entropy_nats < health.teacher_entropy_nats - TOO_SURE_NATS:
        found.append(
            f"the student's noise dies out: {health.entropy_nats:.1f} nats per sample, the "
            f"teacher's {health.teacher_entropy_nats:.1f}. A larger --loss.kl "
            "or more --loss.draws may help."
        )
    voiced = health.recorded_voiced > LEAST_VOICED
    if voiced and health.voiced < WHISPERED_SHARE * health.recorded_voiced:
        found.append(
            f"the student whispers: {100 * health.voiced:.0f} % of its frames are voiced, "
            f"{100 * health.recorded_voiced:.0f} % of the recordings'. More --loss.multi, a "
            "source (--student.source) may help."
        )
    return found


class EvaluationCallback:
    """Evaluation of the averaged weights; its score selects the best checkpoint."""

    def __init__(
        self,
        student: ParallelWaveNet,
        state: TrainState,
        teacher: Trained,
        corpus: Corpus,
        folder: Path,
        log: Callable[[str], None],
        kl_weight: float = 1.0,
    ) -> None:
        self.kl_weight, self._density = kl_weight, WaveNetDensity(teacher.network)
        self.student, self.state, self.teacher = student, state, teacher
        self.folder, self.log = folder, log
        self.rate_hz = corpus.sample_rate_hz
        self.mel = corpus.mel or MelConvention(self.rate_hz)
        recordings = dev_recordings(
            teacher.network, corpus, teacher.config.data.features, teacher.front.speakers, "choose"
        )
        self.recordings = up_to(recordings, DEV_SECONDS * self.rate_hz)
        self.teacher_entropy_nats = self._teacher_entropy()

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Log the metrics on dev; return the multi-resolution STFT error plus the weighted KL."""
        with self.state.swap_in_average():
            sounds = []
            for item in self.recordings:
                condition = condition_of(self.teacher.network, item)
                request = request_of(condition, len(item["waveform"]))
                sounds.append(generate(self.student, request)[0])
            kl, entropy = np.mean([self._closeness(row) for row in range(len(self.recordings))], 0)
        recorded = [item["waveform"] for item in self.recordings]
        pairs = list(zip(sounds, recorded, strict=True))
        distance = float(np.mean([multi_resolution_stft_distance(a, b) for a, b in pairs]))
        health = self._health(np.concatenate(sounds), np.concatenate(recorded), entropy)
        mel_db = float(np.mean([log_mel_distance_db(a, b, self.mel) for a, b in pairs]))
        figures = {"dev_stft_distance": distance, "dev_log_mel_distance_db": mel_db}
        figures |= {"dev_level_db": health.level_db, "dev_kl": kl, "dev_entropy": entropy}
        voiced = {} if math.isnan(health.voiced) else {"dev_voiced": health.voiced}
        log.scalars(step, figures | voiced)
        for line in collapse_warnings(health):
            self.log(f"step {step}: {line}")
        self._show(log, step, sounds[0], recorded[0])
        return distance + self.kl_weight * float(kl)

    def _closeness(self, row: int) -> tuple[float, float]:
        item = self.recordings[row]
        length = min(int(SHOWN_SECONDS * self.rate_hz), len(item["waveform"]))
        frames, speaker = condition_of(self.teacher.network, item)
        if frames is not None:
            frames = tf.constant(frames[None, : -(-length // self.student.config.hop_samples)])
        speaker = None if speaker is None else tf.constant([speaker])
        close = measure_closeness(self.student, self._density, frames, speaker, length, 0, row)
        return close.kl, close.entropy

    def _teacher_entropy(self) -> float:
        network, item = self.teacher.network, self.recordings[0]
        levels = network.codec.encode(item["waveform"]).numpy()
        frames, speaker = condition_of(network, item)
        log_prob = Density(network).log_prob(levels, frames, speaker)
        width = 2.0 / (network.config.levels - 1)
        return float(-np.mean(log_prob)) + float(np.log(width))

    def _health(self, sound: np.ndarray, recorded: np.ndarray, entropy: float) -> HealthMetrics:
        pitch = PitchConvention(self.rate_hz, round(PITCH_HOP_SECONDS * self.rate_hz))
        voiced = recorded_voiced = math.nan
        if available("voicing_error"):  # without it, a whispering student is not noticed
            voiced, recorded_voiced = (
                float(np.mean(fundamental_frequency(x, pitch)[1])) for x in (sound, recorded)
            )
        level_db = audio.rms_db(sound) - audio.rms_db(recorded)
        return HealthMetrics(level_db, entropy, self.teacher_entropy_nats, voiced, recorded_voiced)

    def _show(self, log: MetricsLog, step: int, sound: np.ndarray, recorded: np.ndarray) -> None:
        length = min(int(SHOWN_SECONDS * self.rate_hz), len(recorded))
        waveforms = {
            "student": sound[:length],
            "teacher": self._teacher_sound(length),
            "recorded": recorded[:length],
        }
        write_sounds(self.folder, log, step, waveforms, self.rate_hz)
        for name, waveform in waveforms.items():
            log.audio(step, name, waveform, self.rate_hz)

    def _teacher_sound(self, length: int) -> np.ndarray:
        path = self.folder / "teacher.wav"
        if not path.exists():
            item = self.recordings[0]
            frames, speaker = condition_of(self.teacher.network, item)
            names = self.teacher.front.speakers
            sound = self.teacher.sample(
                length=length, condition=frames, speaker=None if speaker is None else names[speaker]
            )[0]
            audio.write(path, sound, self.rate_hz)
            audio.write(self.folder / "recorded.wav", item["waveform"][:length], self.rate_hz)
        return audio.read(path, self.rate_hz)


CHANGEABLE = ("loop", "data_folder", "teacher", *HEARD)
UNITS = "units.npz"  # the classifier of the perceptual losses in a run directory


# The resolved configuration, the recordings, the classifier of the perceptual losses if used, and
# the student before its first step.
Prepared = tuple[DistillConfig, Corpus, UnitClassifier | None, ParallelWaveNet]


class StudentRecipe(Recipe):
    """Recipe for the distillation of a WaveNet into a student."""

    things: ClassVar = "recordings"
    changeable: ClassVar = CHANGEABLE
    keeps: ClassVar = (UNITS,)

    @property
    def rows(self) -> int:
        """Number of clips in a batch."""
        return self.config.clips.batch_size

    def prepare(self, run: TrainingRun) -> Prepared:
        """Read the recordings, claim the run, make the student, and get the classifier."""
        teacher = self.teacher
        config = self.config.resolve_settings(teacher, self.teacher_path)
        facts = {"data": to_json(teacher.config.data), "gain_db": teacher.front.gain_db}
        known = (name for name in ("speakers", *HEARD) if name in teacher.spec)
        facts |= {name: teacher.spec[name] for name in known}
        stored = self.describe_run(KIND, config, **facts, teacher_weights=digest(teacher.network))
        unsaid = {**defaults(config), "data": defaults(teacher.config.data)}
        run.check(stored, CHANGEABLE, unsaid)
        corpus = corpus_for(config, teacher, self.data, run.sharing(FEATURES), run.log)
        run.claim(stored, CHANGEABLE, unsaid)
        classifier = _classifier(run, config, corpus)
        # A student cannot be prepared in replicas, so this happens outside their scope.
        return config, corpus, classifier, new_student(config, teacher)

    def set_up(self, run: TrainingRun, prepared: Prepared) -> Setup:
        """Return the student's training state, loss, data and callbacks as a `Setup`."""
        config, corpus, classifier, begun = prepared
        teacher, student = self.teacher, begun
        density = WaveNetDensity(teacher.network)
        if not is_single_device(run.replicator):
            student = _new_network(config, teacher)
            density = WaveNetDensity(frozen_copy(teacher.network, teacher.network.copy_untrained))
            classifier = None if classifier is None else copy_classifier(classifier)
        opponent = discriminators(config)
        state = TrainState(student, config.optimizer, config.loop.num_steps, opponent=opponent)
        others = () if opponent is None else opponent.trainable_variables
        frozen = {f"teacher/{i:03d}": v for i, v in enumerate(density.network.variables)}
        units = {} if classifier is None else classifier.name_variables()
        frozen |= {f"units/{name}": variable for name, variable in units.items()}
        drawn, past = batches(corpus, config, teacher), config.student.receptive_field
        parts = Parts(state.step, classifier, corpus.mel, opponent)
        return Setup(
            state,
            Objective(student, density, config.loss, config.seed, parts),
            drawn,
            lambda: EvaluationCallback(
                student, state, teacher, corpus, run.samples(), run.log, config.loss.kl
            ),
            drawn.portable(),
            lambda: state.start([*begun.trainable_variables, *others]),
            frozen,
            f"student: {state.size:,} weights, flows of "
            f"{', '.join(map(str, config.student.flows))} layers, receptive field {past} samples "
            f"({1000 * past / config.student.sample_rate_hz:.0f} ms)",
            not teacher.config.network.prediction_order,  # its sums need full precision
            lambda specs: planned_stages(student, density, specs["waveform"].shape[1]),
        )


def discriminators(config: DistillConfig) -> Discriminators | None:
    """Return untrained discriminators if a term of the loss needs them, else None."""
    if not config.loss.has_discriminators:
        return None
    return Discriminators(config.discriminators, config.seed)


def new_student(config: DistillConfig, teacher: Trained) -> ParallelWaveNet:
    """Return a student before its first step; its conditioner starts as a copy of the teacher's.

    With `config.start_from`, all weights but the frames' statistics are copied from that student.
    """
    student, conditioner = _new_network(config, teacher), teacher.network.conditioner
    if config.start_from is not None:
        folder = model_folders.model_folder(Path(config.start_from))
        assign_weights(student, read_stored_weights(folder), folder)
        if student.residual is not None and conditioner is not None:
            student.start_from_conditioner(conditioner, only_frames=True)
        return student
    if student.residual is not None and conditioner is not None:
        student.start_from_conditioner(conditioner)
        return student
    upsampler = teacher.network.upsampler  # None for a vocoder, which has dense layers
    if student.upsampler is not None and upsampler is not None:
        try:
            student.start_from(upsampler)
        except ValueError as error:
            raise UserError(
                f"`student.condition-channels` must be at least the teacher's, "
                f"{teacher.config.network.condition_channels}, got "
                f"{config.student.condition_channels}."
            ) from error
    return student


def _new_network(config: DistillConfig, teacher: Trained) -> ParallelWaveNet:
    return ParallelWaveNet(
        config.student, config.seed, teacher.front.data.mel(config.student.hop_samples)
    )


def corpus_for(
    config: DistillConfig,
    teacher: Trained,
    data: Path,
    workdir: Path | None,
    log: Callable[[str], None],
) -> Corpus:
    """Return the recordings at the teacher's sample rate and level, with the frames it reads."""
    features = None if workdir is None else Path(workdir) / FEATURES
    report = scan_folder(data, teacher.config, features)
    for line in report.lines():
        log(line)
    corpus = prepare_corpus(report, teacher.config, workdir, gain_db=teacher.front.gain_db)
    known = teacher.front.speakers
    if known and corpus.speakers[: len(known)] != known:
        raise UserError(
            f"The recordings in {data} must be of the speakers that the teacher knows, "
            f"{', '.join(known)}."
        )
    return corpus


def batches(corpus: Corpus, config: DistillConfig, teacher: Trained) -> ClipBatches:
    """Return the training batches, each determined by the seed and the step."""
    clips, features = config.clips, teacher.config.data.features
    around = clip_context(config)
    return ClipBatches(corpus, clips.clip_samples, clips.batch_size, config.seed, features, around)


def clip_context(config: DistillConfig) -> ClipContext:
    """Return the number of past samples and of neighbouring frames that a clip includes."""
    if config.student.domain == "wave":
        return ClipContext()
    return ClipContext(config.clips.left_samples, SIDE_FRAMES)


def _classifier(run: TrainingRun, config: DistillConfig, corpus: Corpus) -> UnitClassifier | None:
    if not (config.loss.feature or config.loss.style):
        return None
    path = run.run_file(UNITS)
    if not path.exists():
        run.log("training a classifier of speech units for the perceptual loss")
        classifier = train_units(corpus, seed=config.seed, log=run.log)
        if not run.replicator.is_chief:  # its disk may not be shared with the chief
            return classifier
        save_units(classifier, path)
    return load_units(path)
