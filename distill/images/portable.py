"""The training step of a distilled image model for machines that have JAX and no TensorFlow."""

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
    say: Callable[[str], None] = print,
) -> Path:
    """The folder, with all that `python run.py` in it needs to distil the teacher elsewhere.

    The teacher travels as variables that nothing changes. Arguments as for `training.distill` and
    `pixelcnn.portable.export_run`.

    Raises UserError or DataError with a line that explains what to do.
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
    say(next_command(folder, state))
    return folder
