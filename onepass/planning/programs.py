"""The training steps that a plan compares: one model's steps for several batch sizes."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.foundation.errors import UserError
from onepass.planning.measurement import (
    Run,
    Store,
    program_digest,
    step_of,
)
from onepass.planning.pipeline.steps import Stages
from onepass.replicator.portable.manifest import read_manifest

if TYPE_CHECKING:
    from onepass.planning.trainable import Trainable


class ModelPrograms:
    """The training step of a model, for batches and microbatches of any size.

    Attributes:
      batch, microbatches: numbers of rows and microbatches in the model's configuration.
      stages: stages for a pipeline; None: the network cannot be cut.
    """

    is_fixed = False
    stages: Stages | None = None

    def __init__(self, model: "Trainable", batch: int, microbatches: int, scratch: Path | str):
        self.batch, self.microbatches, self._model = batch, microbatches, model
        self._scratch = Path(scratch)

    def folder(self, rows: int, microbatches: int) -> Path:
        """Return a folder with the step for these sizes, which is exported on first use."""
        folder = self._scratch / f"{rows}x{microbatches}"
        if not folder.exists():
            self._model.resize_batches(rows, microbatches).export(folder)
        return folder

    def run(self, store: Store, rows: int, compiles: bool = True) -> Run:
        """Return the step's timings for `rows` on one device, with XLA if set and `compiles`."""
        digest = program_digest(self.folder(rows, self.microbatches))
        model = self._model.resize_batches(rows, self.microbatches)
        model = dataclasses.replace(model, jit_compile=model.jit_compile and compiles)
        engine = "xla" if model.jit_compile else "tensorflow"
        found = store.load_or_measure(
            f"{digest}-{engine}", lambda: model.run(store.rounds, store.seconds)
        )
        return Run(**found)

    def state_bytes(self) -> list[int]:
        """Return two sizes in bytes: all gradients, and all variables that a step updates."""
        return [self._model.reduced_bytes, self._model.state_bytes]

    def num_variables(self) -> int:
        """Return the number of variables that a step updates."""
        return self._model.num_variables


class FolderPrograms(ModelPrograms):
    """The single program of an exported folder, which cannot be timed in TensorFlow."""

    is_fixed, microbatches = True, 1

    def __init__(self, folder: Path):
        self._folder = Path(folder)
        self.batch = max(spec["shape"][0] for spec in step_of(folder)["inputs"] if spec["shape"])
        found = read_manifest(folder).get("pipeline")
        self.stages = found and Stages(tuple(found["work"]), found["passed_bytes"])

    def folder(self, rows: int, microbatches: int) -> Path:
        """Return the exported folder."""
        return self._folder

    def run(self, store: Store, rows: int, compiles: bool = True) -> Run:
        """Raise UserError, because TensorFlow cannot run an exported step."""
        raise UserError(f"{self._folder} is an exported step: `--strategy` must be portable.")
