"""Export of the training step of any family for machines with JAX and no TensorFlow."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from foundation.run_directory import NO_DEFAULTS, Keys, RunDirectory
from replicator import Replicator, strategies
from replicator.portable.export import export_training, new_folder, next_command, specs_of
from replicator.portable.manifest import manifest_of, write_manifest
from replicator.training.recipe import Recipe


class ExportedRun:
    """A run whose step is exported.

    Args:
      folder: the folder to write; the run's files are kept in it.
      workdir: the run directory, which is only read; None, or one without a run: a new run.
      log: called with progress messages.
    """

    def __init__(self, folder: Path, workdir: Path | None, log: Callable[[str], None]) -> None:
        self.replicator: Replicator = strategies.single()
        self.folder, self._log = new_folder(folder), log
        known = workdir is not None and (Path(workdir) / "config.json").exists()
        self.directory = RunDirectory.open(Path(workdir)) if workdir and known else None
        self.config: dict = {}

    @property
    def stored(self) -> dict:
        """Content of the config.json of a run that is exported; {} for a new one."""
        return {} if self.directory is None else self.directory.config()

    def check(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Compare a configuration with that of the run directory, by `RunDirectory.check`."""
        if self.directory is not None:
            self.directory.check(config, changeable, defaults)

    def claim(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Make the configuration that of the folder, after `check`."""
        self.check(config, changeable, defaults)
        self.config = config

    def log(self, *lines: str) -> None:
        """Log messages for the user."""
        for line in lines:
            self._log(line)

    def sharing(self, name: str) -> Path | None:
        """Return the run directory, whose folder `name` may be used; None for a new run."""
        return None if self.directory is None else self.directory.path

    def kept(self, name: str) -> Path:
        """Return the path of a file in the folder, copied from the run directory if it has it."""
        path = self.folder / name
        if self.directory is not None and (self.directory.path / name).exists():
            shutil.copyfile(self.directory.path / name, path)
        return path


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
      recipe: everything that decides the outcome of training.
      folder: new, or without checkpoints.
      workdir: run directory whose newest checkpoint gives the weights; without one, or one without
        checkpoints, they are those of the first step.
      log: called with progress messages.
      tensor_float_32: let an accelerator multiply in TensorFloat32; None: if it suits the family.
        With linear prediction the loss was not finite after 20 steps on an H100.

    Raises:
      UserError, DataError, AudioError: the run cannot be exported; the message is one line that
        says what to do.
    """
    run = ExportedRun(folder, workdir, log)
    setup = recipe.set_up(run, recipe.prepare(run))
    arrays = None if run.directory is None else run.directory.checkpoints().newest()[0]
    if arrays is not None:
        setup.state.restore(arrays)
    elif setup.start is not None:
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
