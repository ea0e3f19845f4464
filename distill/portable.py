"""Export of a student's training step and sampler for machines with JAX and no TensorFlow."""

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from distill.losses.discriminators import Discriminators
from distill.losses.objective import Objective
from distill.losses.unit_classifier import UnitClassifier, load, save, train_units
from distill.pipeline import planned_stages
from distill.presets import DistillConfig
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from distill.training import (
    CHANGEABLE,
    UNITS,
    clip_context,
    corpus_for,
    defaults_of,
    discriminators,
    new_student,
    run_config,
)
from replicator.portable.adopt import adopt
from replicator.portable.export import (
    export_function,
    export_training,
    named_weights,
    new_folder,
    next_command,
    restore,
    specs_of,
)
from replicator.portable.manifest import manifest_of, write_manifest
from replicator.training.state import TrainState
from wavenet.data import Corpus, batch_sampling, export_npz
from wavenet.model import SpeechModel
from wavenet.portable import rounding_allowed

CLIPS = "clips.npz"


def export_run(
    preset: str,
    config: DistillConfig,
    teacher: SpeechModel,
    teacher_path: Path,
    data: Path,
    folder: Path,
    workdir: Path | None = None,
    *,
    tensor_float_32: bool | None = None,
    log: Callable[[str], None] = print,
) -> Path:
    """Write a folder whose `python run.py` distils the teacher elsewhere, and return the folder.

    The teacher and the classifier of speech units, which is trained here, are stored as variables
    that never change.

    Args:
      preset: name of the preset, which is stored with the run.
      config: the configuration of the distillation.
      teacher: the model to learn from.
      teacher_path: location of the teacher, which is stored with the run.
      data: folder of recordings.
      folder: new, or without checkpoints.
      workdir: run directory whose newest checkpoint gives the weights; without one, or one without
        checkpoints, the student is before its first step.
      tensor_float_32: let an accelerator multiply in TensorFloat32; None: if the teacher predicts
        nothing linearly.
      log: called with progress messages.

    Raises:
      UserError, DataError, AudioError: with a line that explains what to do.
    """
    folder = new_folder(folder)
    config = config.resolved(teacher, teacher_path)
    stored = run_config(preset, config, teacher, teacher_path, data)
    student = new_student(config, teacher)
    opponent = discriminators(config)
    state = TrainState(student, config.optimizer, config.loop.num_steps, opponent=opponent)
    restore(state, workdir, stored, CHANGEABLE, defaults_of(config, teacher))
    corpus = corpus_for(config, teacher, data, workdir, log)
    classifier = _classifier(folder, workdir, config, corpus, log)
    if not int(state.step.numpy()):
        others = () if opponent is None else opponent.trainable_variables
        state.start([*student.trainable_variables, *others])
    _write(
        folder,
        student,
        opponent,
        state,
        config,
        teacher,
        corpus,
        classifier,
        stored,
        rounding_allowed(teacher.config.network.prediction_order, tensor_float_32),
    )
    log(next_command(folder, state))
    return folder


def _write(
    folder: Path,
    student: ParallelWaveNet,
    opponent: Discriminators | None,
    state: TrainState,
    config: DistillConfig,
    teacher: SpeechModel,
    corpus: Corpus,
    classifier: UnitClassifier | None,
    stored: dict,
    tensor_float_32: bool,
) -> None:
    density, mel, around = WaveNetDensity(teacher.network), corpus.mel, clip_context(config)
    settings = {
        "file": CLIPS,
        "split": "train",
        "clip_samples": config.clips.clip_samples,
        "batch_size": config.clips.batch_size,
        "seed": config.seed,
        "left_samples": around.left_samples,
        "side_frames": around.side_frames,
    }
    export_npz(corpus, folder / CLIPS, teacher.config.data.features)
    specs = specs_of(batch_sampling.open_batches(folder, settings)(0))
    export_training(
        folder,
        state,
        Objective(
            student, density, config.loss, config.seed, state.step, classifier, mel, opponent
        ),
        specs,
        batch_module=batch_sampling,
        batches=settings,
        config=stored,
        changeable=CHANGEABLE,
        frozen=_frozen(teacher, classifier),
        tensor_float_32=tensor_float_32,
    )
    stages = planned_stages(student, density, specs["waveform"].shape[1])
    write_manifest(folder, manifest_of(folder) | ({"pipeline": stages} if stages else {}))


def adopt_run(folder: Path, workdir: Path) -> int:
    """Return the result of `replicator.portable.adopt`; copy the classifier of speech units too."""
    step = adopt(folder, workdir)
    source, copy = Path(folder) / UNITS, Path(workdir) / UNITS
    if source.exists() and not copy.exists():
        save(load(source), copy)
    return step


def _classifier(
    folder: Path,
    workdir: Path | None,
    config: DistillConfig,
    corpus: Corpus,
    log: Callable[[str], None],
) -> UnitClassifier | None:
    if not (config.loss.feature or config.loss.style):
        return None
    if workdir is not None and (Path(workdir) / UNITS).exists():
        save(load(Path(workdir) / UNITS), folder / UNITS)
    else:
        log("training a classifier of speech units for the perceptual loss")
        save(train_units(corpus, seed=config.seed, log=log), folder / UNITS)
    return load(folder / UNITS)


def _frozen(teacher: SpeechModel, classifier: UnitClassifier | None) -> dict[str, tf.Variable]:
    """Return the variables that the loss reads and training does not change, by name."""
    frozen = {f"teacher/{i:03d}": v for i, v in enumerate(teacher.network.variables)}
    units = {} if classifier is None else classifier.named()
    return frozen | {f"units/{name}": variable for name, variable in units.items()}


def export_sampler(
    folder: Path,
    student: ParallelWaveNet,
    *,
    batch: int,
    num_frames: int,
    name: str = "speak",
    tensor_float_32: bool = True,
) -> None:
    """Write a function that draws whole sounds in one pass with the student's current weights.

    It takes `seed` uint32 [2] (high word, low word), `rows` int32 [batch] (indices of the sounds of
    that seed), `temperature` [], and, whichever the student has, `frames` float32 [batch,
    num_frames, channels] and `speaker` int32 [batch]; it returns `sound` float32 [batch, samples]
    in [-1, 1], that of `generation.generate`. Without frames a frame is a sample.

    Args:
      folder: folder to write to, created if missing; other functions in its manifest are kept.
      student: the network, with its current weights.
      batch: number of sounds of a call.
      num_frames: frames of each sound.
      name: name of the function in the manifest and of its files.
      tensor_float_32: let an accelerator multiply in TensorFloat32.
    """
    config, samples = student.config, num_frames * student.config.hop_samples
    inputs = {
        "seed": tf.TensorSpec([2], tf.uint32),
        "rows": tf.TensorSpec([batch], tf.int32),
        "temperature": tf.TensorSpec([], tf.float32),
    }
    if config.feature_channels:
        inputs["frames"] = tf.TensorSpec([batch, num_frames, config.feature_channels], tf.float32)
    if config.speakers:
        inputs["speaker"] = tf.TensorSpec([batch], tf.int32)

    def speak(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        noise = student.noise(given["seed"], given["rows"], 0, samples) * given["temperature"]
        condition, _ = student.condition(given.get("frames"), given.get("speaker"), samples)
        sound = tf.cast(student.draw(noise, condition).output, tf.float32)
        return {"sound": tf.clip_by_value(sound, -1.0, 1.0)}

    weights = named_weights(student)
    export_function(speak, inputs, folder, name, variables=weights, tensor_float_32=tensor_float_32)
