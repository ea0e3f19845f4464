"""Export the training step of any family for machines with JAX and without TensorFlow."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from onepass.foundation.run_directory import NO_DEFAULTS, Keys, RunDirectory
from onepass.replicator.portable.export import export_training, new_folder, next_command, specs_of
from onepass.replicator.portable.manifest import manifest_of, write_manifest
from onepass.replicator.training.recipe import Recipe
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import TrainingRun


class ExportedRun(TrainingRun):
    """A run whose step is exported; its run directory, if any, is only read."""

    def __init__(self, folder: Path, workdir: Path | None, log: Callable[[str], None]) -> None:
        known = workdir is not None and (Path(workdir) / "config.json").exists()
        super().__init__(workdir if known else None, log=log)
        self.folder = new_folder(folder)
        self.config: dict = {}

    def check(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Compare a configuration with the run's by `RunDirectory.check`, if there is a run."""
        if self._workdir is not None:
            RunDirectory(self._workdir).check(config, changeable, defaults)

    def claim(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Check the configuration and store it as the folder's."""
        self.check(config, changeable, defaults)
        self.config = config

    def run_file(self, name: str) -> Path:
        """Return the path of a file in the folder, copied from the run directory if it exists."""
        path, known = self.folder / name, self._workdir and self._workdir / name
        if known and known.exists():
            shutil.copyfile(known, path)
        return path

    def restore(self, state: TrainState) -> bool:
        """Restore the newest readable checkpoint of the run, and return whether there is one."""
        run = self._workdir and RunDirectory(self._workdir)
        arrays = run.checkpoints().newest()[0] if run else None
        if arrays is not None:
            state.restore(arrays)
        return arrays is not None


def export_portable(
    recipe: Recipe,
    folder: Path,
    workdir: Path | None = None,
    log: Callable[[str], None] = print,
    *,
    tensor_float_32: bool | None = None,
) -> Path:
    """Write a folder whose `python run.py` trains the model elsewhere, and return the folder.

    Frozen models that the loss reads are stored as variables that never change.

    Args:
      workdir: run directory whose newest checkpoint provides the weights; if it is None or has no
        checkpoints, the weights are initial ones.
      tensor_float_32: whether an accelerator may multiply in TensorFloat32; None: the family's
        default. With linear prediction, the loss was not finite after 20 steps on an H100.
    """
    run = ExportedRun(folder, workdir, log)
    setup = recipe.set_up(run, recipe.prepare(run))
    if not run.restore(setup.state) and setup.start is not None:
        setup.start()
    batches, settings, write = setup.portable
    write(run.folder / settings["file"])
    specs = specs_of(batches.open_batches(run.folder, settings)(0))
    export_training(
        run.folder,
        setup.state,
        setup.loss,
        specs,
        batch_module=batches,
        batches=settings,
        config=run.config,
        changeable=recipe.changeable,
        frozen=setup.frozen,
        tensor_float_32=setup.tensor_float_32 if tensor_float_32 is None else tensor_float_32,
    )
    stages = setup.stages(specs)
    if stages:
        write_manifest(run.folder, manifest_of(run.folder) | {"pipeline": stages})
    log(next_command(run.folder, setup.state))
    return run.folder
