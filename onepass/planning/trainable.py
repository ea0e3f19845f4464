"""Training steps to plan, which can be exported for JAX or timed in TensorFlow."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.planning.measurement import needed_bytes, paired_seconds, time_rounds
from onepass.replicator.portable import export
from onepass.replicator.portable.manifest import manifest_of, write_manifest
from onepass.replicator.training.state import LossFn, TrainState, compile_step


@dataclasses.dataclass(frozen=True)
class Trainable:
    """A model with optimiser and batch size; `make` returns another one, to time two at once."""

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

    def export(self, folder: Path) -> None:
        """Write the step, without a checkpoint or data, for device_program.py."""
        slots = self.state.slots()
        step = export.training_step(self.state, self.loss)
        export.export_function(
            step, self.batch_spec, folder, export.STEP, variables={}, state=slots
        )
        training = {"step": export.STEP, "slots": export.describe_tensors(slots)}
        write_manifest(folder, manifest_of(folder) | {"training": training})

    def run(self, rounds: int, least_seconds: float) -> dict[str, Any]:
        """Time a step in TensorFlow on one device, and return the fields of a `measurement.Run`."""
        step, device = self._make_step(), "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        held = self.state_bytes + sum(_bytes(spec) for spec in self.batch_spec.values())
        found = time_rounds(step, rounds, least_seconds)
        found |= {"memory_bytes": needed_bytes(step, held), "operations": {}, "device": device}
        if self.make is not None and device == "CPU":
            rows = next(iter(self.batch_spec.values())).shape[0]
            other = self.make().resize_batches(rows, self.state.optimizer.accumulate)
            other = dataclasses.replace(other, jit_compile=self.jit_compile)
            found["paired_seconds"] = paired_seconds([step, other._make_step()], least_seconds)
        return found

    def _make_step(self) -> Callable[[], float]:
        compiled = compile_step(self.state, self.loss, self.jit_compile)
        batch = {  # constant, since the time of a step does not depend on the values
            name: tf.fill(spec.shape, tf.cast(0.01 if spec.dtype.is_floating else 0, spec.dtype))
            for name, spec in self.batch_spec.items()
        }

        def step() -> float:
            return float(compiled(batch)["loss"])

        step()
        return step


def _bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements()) * tensor.dtype.size
