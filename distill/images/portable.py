"""Export of a distilled image model's training step for machines with JAX and no TensorFlow."""

from collections.abc import Callable
from pathlib import Path

from distill.images.config import DistillConfig
from distill.images.training import (
    CHANGEABLE,
    dataset_for,
    defaults_of,
    features_for,
    loss_of,
    run_config,
    start,
    student_and_teacher,
)
from pixelcnn.model import ImageModel
from pixelcnn.portable import write_training
from replicator.portable.export import new_folder, next_command, restore
from replicator.training.state import TrainState


def export_run(
    preset: str,
    config: DistillConfig,
    teacher: ImageModel,
    teacher_path: Path,
    data: Path | str,
    folder: Path,
    workdir: Path | None = None,
    *,
    tensor_float_32: bool = True,
    log: Callable[[str], None] = print,
) -> Path:
    """Write a folder whose `python run.py` distils the teacher elsewhere, and return the folder.

    The teacher is stored as variables that never change.

    Args:
      preset: name of the preset, which is stored with the run.
      config: the configuration of the distillation.
      teacher: the model to learn from.
      teacher_path: location of the teacher, which is stored with the run.
      data: images with the teacher's conditions.
      folder: new, or without checkpoints.
      workdir: run directory whose newest checkpoint gives the weights; without one, or one without
        checkpoints, the student is before its first step.
      tensor_float_32: let an accelerator multiply in TensorFloat32.
      log: called with progress messages.

    Raises:
      UserError, DataError: with a line that explains what to do.
    """
    folder = new_folder(folder)
    dataset = dataset_for(config, teacher, data)
    student, frozen = student_and_teacher(dataset.config, teacher)
    state = TrainState(student, config.optimizer, config.loop.num_steps)
    stored = run_config(preset, config, teacher, teacher_path, dataset, data)
    restore(state, workdir, stored, CHANGEABLE, defaults_of(config, dataset))
    if not int(state.step.numpy()):
        start(state, student, teacher)
    write_training(
        folder,
        state,
        loss_of(config, student, frozen, features_for(config, dataset, folder)),
        dataset,
        config=stored,
        changeable=CHANGEABLE,
        frozen={f"teacher/{i:03d}": weight for i, weight in enumerate(frozen.variables)},
        tensor_float_32=tensor_float_32,
    )
    log(next_command(folder, state))
    return folder
