"""Distillation of a student: from a trained teacher and recordings to a run directory."""

import functools
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from distill import shipped
from distill.evaluation_callback import EvaluationCallback
from distill.losses.discriminators import Discriminators
from distill.losses.objective import Objective
from distill.losses.unit_classifier import UnitClassifier, copied, load, save, train_units
from distill.presets import REMOVED, DistillConfig
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity, digest, frozen_copy
from foundation.errors import UserError
from foundation.model_folder import assign_weights, stored_weights
from foundation.stored_config import defaults, to_json
from replicator import Replicator
from replicator.training.loop import Outcome
from replicator.training.state import TrainState
from replicator.training.step import is_single_device
from replicator.training.training_run import TrainingRun
from wavenet.conditioner import SIDE_FRAMES
from wavenet.data import Corpus
from wavenet.data.pipeline import ClipContext, clips
from wavenet.model import SpeechModel
from wavenet.training import FEATURES, HEARD, prepare_corpus, scan_folder

KIND = "parallel-wavenet"
CHANGEABLE = ("loop", "data_folder", "teacher", *HEARD)
UNITS = "units.npz"  # the classifier of the perceptual losses in a run directory


def distill(
    preset: str,
    config: DistillConfig,
    teacher: SpeechModel,
    teacher_path: Path,
    data: Path,
    workdir: Path,
    log: Callable[[str], None] = print,
    replicator: Replicator | None = None,
) -> Outcome:
    """Distil or resume a run in `workdir` and return how it ended.

    Args:
      preset: name of the preset, which is stored with the run.
      config: the configuration of the distillation.
      teacher: the model to learn from, from `load_teacher`; it is read and never written.
      teacher_path: location of the teacher, which is stored with the run.
      data: folder of recordings.
      workdir: the run directory, created if missing; a run there must have the same configuration.
      log: called with progress messages.
      replicator: shares the work among devices, which changes nothing but the time; None: one
        device does it.

    Raises:
      UserError, DataError, AudioError: with a line that explains what to do.
    """
    config = config.resolved(teacher, teacher_path)
    with TrainingRun(workdir, replicator, log, config.clips.batch_size, config.optimizer) as run:
        with run.preparing():
            stored = run_config(preset, config, teacher, teacher_path, data)
            unsaid = defaults_of(config, teacher)
            run.directory.check(stored, CHANGEABLE, unsaid)
            corpus = corpus_for(config, teacher, data, run.sharing(FEATURES), run.log)
            run.claim(stored, CHANGEABLE, unsaid)
            classifier = _classifier(run, config, corpus)
        return _distill(run, config, teacher, corpus, classifier)


def _distill(
    run: TrainingRun,
    config: DistillConfig,
    teacher: SpeechModel,
    corpus: Corpus,
    classifier: UnitClassifier | None,
) -> Outcome:
    # Their preparation knows no replicas, so they are made outside them first.
    begun, density = new_student(config, teacher), WaveNetDensity(teacher.network)
    student, frozen = begun, ()
    with run.variables():
        if not is_single_device(run.replicator):
            student = _untrained(config, teacher)
            density = WaveNetDensity(frozen_copy(teacher.network, teacher.network.untrained))
            classifier = None if classifier is None else copied(classifier)
            frozen = (*density.network.variables, *(classifier.variables if classifier else ()))
        opponent = discriminators(config)
        state = TrainState(student, config.optimizer, config.loop.num_steps, opponent=opponent)
    objective = Objective(
        student, density, config.loss, config.seed, state.step, classifier, corpus.mel, opponent
    )

    def start() -> None:
        others = () if opponent is None else opponent.trainable_variables
        state.start([*begun.trainable_variables, *others])

    past = config.student.receptive_field
    return run.train(
        state,
        objective,
        config.loop,
        functools.partial(batches, corpus, config, teacher),
        lambda: EvaluationCallback(
            student, state, teacher, corpus, run.samples(), run.log, config.loss.kl
        ),
        start=start,
        reads=frozen,
        description=f"student: {state.size:,} weights, flows of "
        f"{', '.join(map(str, config.student.flows))} layers, receptive field {past} samples "
        f"({1000 * past / config.student.sample_rate_hz:.0f} ms)",
    )


def discriminators(config: DistillConfig) -> Discriminators | None:
    """Return untrained discriminators where a term of the loss needs them."""
    if not config.loss.has_discriminators:
        return None
    return Discriminators(config.discriminators, config.seed)


def new_student(config: DistillConfig, teacher: SpeechModel) -> ParallelWaveNet:
    """Return a student before its first step.

    Its conditioner starts as the teacher's where there is room for it; all its weights except the
    statistics of its frames start as those of `config.start_from` where that is given.
    """
    student, conditioner = _untrained(config, teacher), teacher.network.conditioner
    if config.start_from is not None:
        folder = shipped.model_folder(Path(config.start_from))
        assign_weights(student, stored_weights(folder), folder)
        if student.residual is not None and conditioner is not None:
            student.keep_frames_of(conditioner)
        return student
    if student.residual is not None and conditioner is not None:
        student.start_from_conditioner(conditioner)
        return student
    upsampler = teacher.network.upsampler  # None for a vocoder, which has dense layers instead
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


def _untrained(config: DistillConfig, teacher: SpeechModel) -> ParallelWaveNet:
    return ParallelWaveNet(
        config.student, config.seed, teacher.data.mel(config.student.hop_samples)
    )


def corpus_for(
    config: DistillConfig,
    teacher: SpeechModel,
    data: Path,
    workdir: Path | None,
    log: Callable[[str], None],
) -> Corpus:
    """Return the recordings at the teacher's rate and level, with frames of its convention.

    Args:
      config: the configuration of the distillation.
      teacher: the model whose data configuration counts.
      data: folder of recordings.
      workdir: folder in which computed features are kept; None: they are not.
      log: called with a line for each finding about the recordings.

    Raises:
      UserError: the recordings are of other speakers than the teacher knows.
    """
    features = None if workdir is None else Path(workdir) / FEATURES
    report = scan_folder(data, teacher.config, features)
    for line in report.lines():
        log(line)
    corpus = prepare_corpus(report, teacher.config, workdir, gain_db=teacher.gain_db)
    known = teacher.known_speakers
    if known and corpus.speakers[: len(known)] != known:
        raise UserError(
            f"The recordings in {data} must be of the speakers that the teacher knows, "
            f"{', '.join(known)}."
        )
    return corpus


def batches(
    corpus: Corpus,
    config: DistillConfig,
    teacher: SpeechModel,
    start_step: int,
    shard_index: int = 0,
    num_shards: int = 1,
) -> tf.data.Dataset:
    """Return the batches from `start_step` on, a function of the seed and the step alone.

    Args:
      corpus: the recordings.
      config: the length and number of clips, and the seed.
      teacher: the model whose features the batches have.
      start_step: number of the first batch.
      shard_index: index of this share of every batch.
      num_shards: number of shares of a batch.
    """
    return clips(
        corpus,
        "train",
        clip_samples=config.clips.clip_samples,
        batch_size=config.clips.batch_size,
        seed=config.seed,
        features=teacher.config.data.features,
        start_step=start_step,
        shard_index=shard_index,
        num_shards=num_shards,
        clip_context=clip_context(config),
    )


def clip_context(config: DistillConfig) -> ClipContext:
    """Return the past and neighbouring frames of a clip."""
    if config.student.domain == "wave":
        return ClipContext()
    return ClipContext(config.clips.left_samples, SIDE_FRAMES)


def run_config(
    preset: str, config: DistillConfig, teacher: SpeechModel, teacher_path: Path, data: Path
) -> dict:
    """Return the content of a run's config.json: all that the student needs without its teacher.

    Args:
      preset: name of the preset.
      config: the configuration of the distillation.
      teacher: the model to learn from.
      teacher_path: location of the teacher.
      data: folder of recordings.
    """
    return {
        "kind": KIND,
        "preset": preset,
        **to_json(config),
        "data": to_json(teacher.config.data),
        "gain_db": teacher.gain_db,
        "speakers": list(teacher.speakers),
        **{name: teacher.spec[name] for name in HEARD if name in teacher.spec},
        "data_folder": str(Path(data).absolute()),
        "teacher": str(teacher_path),
        "teacher_weights": digest(teacher.network),
    }


def defaults_of(config: DistillConfig, teacher: SpeechModel) -> dict:
    """Return the defaults of the settings in `run_config`, and those that were removed."""
    known = defaults(config)
    student = known["student"] | REMOVED["student"]
    return {**known, **REMOVED, "student": student, "data": defaults(teacher.config.data)}


def _classifier(run: TrainingRun, config: DistillConfig, corpus: Corpus) -> UnitClassifier | None:
    """Return the run's classifier of speech units, trained if missing; None if unused."""
    if not (config.loss.feature or config.loss.style):
        return None
    path = run.directory.path / UNITS
    if not path.exists():
        run.log("training a classifier of speech units for the perceptual loss")
        classifier = train_units(corpus, seed=config.seed, log=run.log)
        if not run.replicator.is_chief:  # and on a disk that the chief does not share
            return classifier
        save(classifier, path)
    return load(path)
