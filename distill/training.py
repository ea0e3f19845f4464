"""Distillation of a student: from a trained teacher and recordings to a run directory."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import tensorflow as tf

from distill.evaluation_callback import EvaluationCallback
from distill.frozen import digest, frozen_copy
from distill.losses.discriminators import Discriminators
from distill.losses.objective import Objective
from distill.losses.unit_classifier import (
    UnitClassifier,
    copy_classifier,
    load_units,
    save_units,
    train_units,
)
from distill.pipeline import planned_stages
from distill.presets import KIND, DistillConfig
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from onepass import shipped
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import assign_weights, stored_weights
from onepass.foundation.stored_config import defaults, to_json
from onepass.replicator.training.recipe import Recipe, Setup
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.step import is_single_device
from onepass.replicator.training.training_run import TrainingRun
from onepass.trained import Trained
from wavenet.conditioner import SIDE_FRAMES
from wavenet.data import Corpus
from wavenet.data.clip_batches import ClipBatches
from wavenet.data.pipeline import ClipContext
from wavenet.training import FEATURES, HEARD, prepare_corpus, scan_folder

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
        config = self.config.resolved(teacher, self.teacher_path)
        stored = self.describe_run(
            KIND,
            config,
            data=to_json(teacher.config.data),
            gain_db=teacher.front.gain_db,
            speakers=teacher.spec["speakers"],
            **{name: teacher.spec[name] for name in HEARD if name in teacher.spec},
            teacher_weights=digest(teacher.network),
        )
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
        drawn, past = batches(corpus, config, teacher), config.student.receptive_field
        return Setup(
            state,
            Objective(
                *(student, density, config.loss, config.seed, state.step),
                *(classifier, corpus.mel, opponent),
            ),
            drawn,
            lambda: EvaluationCallback(
                student, state, teacher, corpus, run.samples(), run.log, config.loss.kl
            ),
            drawn.portable(),
            lambda: state.start([*begun.trainable_variables, *others]),
            _frozen_variables(density, classifier),
            f"student: {state.size:,} weights, flows of "
            f"{', '.join(map(str, config.student.flows))} layers, receptive field {past} samples "
            f"({1000 * past / config.student.sample_rate_hz:.0f} ms)",
            not teacher.config.network.prediction_order,  # its sums need full precision
            lambda specs: planned_stages(student, density, specs["waveform"].shape[1]),
        )


def _frozen_variables(
    density: WaveNetDensity, classifier: UnitClassifier | None
) -> dict[str, tf.Variable]:
    """Return the variables that the loss reads and training does not change, by name."""
    frozen = {f"teacher/{i:03d}": v for i, v in enumerate(density.network.variables)}
    units = {} if classifier is None else classifier.name_variables()
    return frozen | {f"units/{name}": variable for name, variable in units.items()}


def discriminators(config: DistillConfig) -> Discriminators | None:
    """Return untrained discriminators if a term of the loss needs them, else None."""
    if not config.loss.has_discriminators:
        return None
    return Discriminators(config.discriminators, config.seed)


def new_student(config: DistillConfig, teacher: Trained) -> ParallelWaveNet:
    """Return a student before its first step.

    Its conditioner starts as a copy of the teacher's, which must not have more channels. With
    `config.start_from`, all weights but the statistics of the frames are copied from that student.

    Raises:
      UserError: the teacher's conditioner does not fit, or `config.start_from` cannot be read or
        does not fit.
    """
    student, conditioner = _new_network(config, teacher), teacher.network.conditioner
    if config.start_from is not None:
        folder = shipped.model_folder(Path(config.start_from))
        assign_weights(student, stored_weights(folder), folder)
        if student.residual is not None and conditioner is not None:
            student.keep_frames_of(conditioner)
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
    """Return the recordings at the teacher's sample rate and level, with the frames it reads.

    Args:
      config: the configuration of the distillation.
      teacher: the model whose data configuration is used.
      data: folder of recordings.
      workdir: folder in which computed features are stored; None: they are not stored.
      log: function called with a line of text for each finding about the recordings.

    Raises:
      UserError: the recordings have speakers that the teacher does not know.
    """
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
    """Return the training batches, each determined by the seed and the step.

    Args:
      corpus: the recordings.
      config: the length and number of clips, and the seed.
      teacher: the model whose features the batches have.
    """
    return ClipBatches(
        corpus,
        config.clips.clip_samples,
        config.clips.batch_size,
        config.seed,
        teacher.config.data.features,
        clip_context(config),
    )


def clip_context(config: DistillConfig) -> ClipContext:
    """Return the number of past samples and of neighbouring frames that a clip includes."""
    if config.student.domain == "wave":
        return ClipContext()
    return ClipContext(config.clips.left_samples, SIDE_FRAMES)


def _classifier(run: TrainingRun, config: DistillConfig, corpus: Corpus) -> UnitClassifier | None:
    """Return the run's classifier of speech units, trained if missing; None if not used."""
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
