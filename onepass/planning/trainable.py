"""Training steps to plan, which can be exported for JAX or timed in TensorFlow."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.planning.measurement import (
    Run,
    Store,
    needed_bytes,
    paired_seconds,
    program_digest,
    step_of,
    time_rounds,
)
from onepass.planning.pipeline.steps import Stages
from onepass.replicator.portable.export import (
    STEP,
    describe_tensors,
    export_function,
    training_step,
)
from onepass.replicator.portable.manifest import manifest_of, read_manifest, write_manifest
from onepass.replicator.training.accumulation import Batch
from onepass.replicator.training.state import LossFn, TrainState
from onepass.replicator.training.step import compile_step


@dataclasses.dataclass(frozen=True)
class Trainable:
    """A model with its optimiser and a fixed batch size.

    Attributes:
      make: function that returns an identical `Trainable` with a separate state, for timing two
        steps at the same time; None: that is not timed.
    """

    state: TrainState
    loss: LossFn
    batch_spec: Mapping[str, tf.TensorSpec]
    jit_compile: bool = False
    make: Callable[[], "Trainable"] | None = None

    def resize_batches(self, rows: int, microbatches: int) -> "Trainable":
        """Return the same model with batches of `rows` rows in `microbatches` microbatches."""
        state = copy.copy(self.state)
        state.optimizer = dataclasses.replace(state.optimizer, accumulate=microbatches)
        spec = {
            name: tf.TensorSpec([rows, *each.shape[1:]], each.dtype)
            for name, each in self.batch_spec.items()
        }
        return dataclasses.replace(self, state=state, batch_spec=spec)

    @property
    def state_bytes(self) -> int:
        """Size in bytes of all variables that a step updates."""
        return sum(_bytes(variable) for variable in self.state.slots().values())

    @property
    def num_variables(self) -> int:
        """Number of variables that a step updates."""
        return len(self.state.slots())

    @property
    def reduced_bytes(self) -> int:
        """Size in bytes of the gradients."""
        return sum(_bytes(weight) for weight in self.state.weights)

    @property
    def batch_bytes(self) -> int:
        """Size in bytes of a batch."""
        return sum(_bytes(spec) for spec in self.batch_spec.values())

    def batch(self) -> Batch:
        """Return a constant batch; the time of a step does not depend on the values."""
        return {
            name: tf.fill(spec.shape, tf.cast(0.01 if spec.dtype.is_floating else 0, spec.dtype))
            for name, spec in self.batch_spec.items()
        }

    def export(self, folder: Path) -> None:
        """Write the step, without a checkpoint or data, for device_program.py."""
        slots = self.state.slots()
        step = training_step(self.state, self.loss)
        export_function(step, self.batch_spec, folder, STEP, variables={}, state=slots)
        training = {"step": STEP, "slots": describe_tensors(slots)}
        write_manifest(folder, manifest_of(folder) | {"training": training})

    def run(self, rounds: int, least_seconds: float) -> dict[str, Any]:
        """Time a step in TensorFlow on one device, and return the fields of a `measurement.Run`."""
        step, device = self._make_step(), "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        held = self.state_bytes + self.batch_bytes
        found = time_rounds(step, rounds, least_seconds)
        found |= {"memory_bytes": needed_bytes(step, held), "operations": {}, "device": device}
        if self.make is not None and device == "CPU":
            rows = next(iter(self.batch_spec.values())).shape[0]
            other = self.make().resize_batches(rows, self.state.optimizer.accumulate)
            other = dataclasses.replace(other, jit_compile=self.jit_compile)
            found["paired_seconds"] = paired_seconds([step, other._make_step()], least_seconds)
        return found

    def _make_step(self) -> Callable[[], float]:
        compiled, batch = compile_step(self.state, self.loss, self.jit_compile), self.batch()

        def step() -> float:
            return float(compiled(batch)["loss"])

        step()
        return step


def _bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements()) * tensor.dtype.size


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
