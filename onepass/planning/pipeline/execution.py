"""Execute a network's exported stages on JAX devices according to a schedule.

The passes are dispatched in the order of their slots; each runs when its device and inputs are
ready.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from onepass.foundation.files import read_npz
from onepass.foundation.rules import UserError, require
from onepass.planning.pipeline.schedule import (
    GRADIENT,
    KEPT,
    KINDS,
    LOSS,
    WEIGHTS,
    Pass,
    Schedule,
    function_name,
)
from onepass.replicator.portable.manifest import read_manifest
from onepass.replicator.portable.run import load

Arrays = dict[str, jax.Array]
_add = jax.jit(lambda a, b: a + b)


class Pipeline:
    """Stages that `export.export_stages` wrote, each on the device that a schedule assigns.

    Attributes:
      peaks: largest amount of activations that were live at the same time on each device in the
        last step; 1 is a device's share of the stages for one microbatch.
      peak_bytes: largest number of bytes that each device kept between passes, including tensors
        that B keeps for W.

    Args:
      devices: JAX devices, one for each device of the schedule; None: the first ones.
    """

    def __init__(self, folder: Path, schedule: Schedule, devices: list | None = None):
        manifest = read_manifest(folder)
        stages, wanted = manifest.get("stages", 0), schedule.num_devices
        if stages != len(schedule.devices):
            raise UserError(f"`schedule` must have {stages} stages, got {len(schedule.devices)}.")
        devices = jax.devices() if devices is None else devices
        require(len(devices) >= wanted, "devices", f"at least {wanted}", len(devices))
        self.schedule = schedule
        self.peaks, self.peak_bytes = [0.0] * wanted, [0] * wanted
        weights = read_npz(Path(folder) / WEIGHTS)
        self.passes = {  # which transfer inputs from other devices
            (kind, stage): load(folder, function_name(stage, kind), weights, devices[number])
            for stage, number in enumerate(schedule.devices)
            for kind in KINDS
        }
        last = [manifest["functions"][function_name(stage, "W")] for stage in range(stages)]
        self.kept = [[spec["name"] for spec in described["inputs"]] for described in last]

    def gradients(self, batch: Mapping[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
        """Return a batch's loss and gradients by variable, as means over the microbatches.

        The rows of the arrays [rows, ...] of a batch are divided into the schedule's microbatches.
        """
        count = self.schedule.num_microbatches
        uneven = {name: len(array) for name, array in batch.items() if len(array) % count}
        if uneven:
            raise UserError(f"`batch` must have a multiple of {count} rows, got {uneven}.")
        cut = {name: np.split(array, count) for name, array in batch.items()}
        step = _Step(self, [{name: parts[n] for name, parts in cut.items()} for n in range(count)])
        for each in self.schedule.in_order():
            step.make(each)
        self.peaks = [peak / self.schedule.num_chunks for peak in step.peaks]
        self.peak_bytes = step.peak_bytes
        found = {n: np.asarray(v) for part in step.found.values() for n, v in part.items()}
        loss = float(np.mean([np.asarray(loss) for loss in step.losses]))
        return loss, {name.removeprefix(GRADIENT): v for name, v in found.items()}


class _Step:
    def __init__(self, pipeline: Pipeline, microbatches: list[dict[str, np.ndarray]]):
        self._passes, self._names_kept = pipeline.passes, pipeline.kept
        self._microbatches = microbatches
        self._schedule = pipeline.schedule
        self.peaks = [0] * self._schedule.num_devices
        self.peak_bytes = [0] * self._schedule.num_devices
        self.losses: list[jax.Array] = []
        self.found: dict[int, Arrays] = {}  # gradients of each stage's variables so far
        self._arrived: dict[Pass, dict] = {}  # from another stage, by the pass that reads them
        self._kept: dict[tuple[int, int], Arrays] = {}  # by stage and microbatch, from F to W

    def make(self, each: Pass) -> None:
        {"F": self._forward, "B": self._backward, "W": self._weights}[each.kind](each)
        device, devices = self._schedule.devices[each.stage], self._schedule.devices
        alive = [arrays for (stage, _), arrays in self._kept.items() if devices[stage] == device]
        held = sum(array.nbytes for arrays in alive for array in arrays.values())
        self.peaks[device] = max(self.peaks[device], len(alive))
        self.peak_bytes[device] = max(self.peak_bytes[device], held)

    def _forward(self, each: Pass) -> None:
        _, stage, number = each
        given = {**self._microbatches[number], **self._arrived.pop(each, {})}
        made = self._passes["F", stage](**given)
        self._kept[stage, number] = {n: v for n, v in made.items() if n.startswith(KEPT)}
        passed = {n: v for n, v in made.items() if not n.startswith(KEPT)}
        if stage + 1 < len(self._schedule.devices):
            self._arrived[Pass("F", stage + 1, number)] = passed
        else:
            self.losses.append(passed[LOSS])
            mean = np.full((), 1 / len(self._microbatches), passed[LOSS].dtype)
            self._arrived[Pass("B", stage, number)] = {f"{GRADIENT}{LOSS}": mean}

    def _backward(self, each: Pass) -> None:
        _, stage, number = each
        given = self._kept[stage, number] | self._arrived.pop(each)
        made = self._passes["B", stage](**given)
        self._kept[stage, number] = {n: (given | made)[n] for n in self._names_kept[stage]}
        if stage:
            passed = {n: v for n, v in made.items() if not n.startswith(KEPT)}
            self._arrived[Pass("B", stage - 1, number)] = passed

    def _weights(self, each: Pass) -> None:
        made = self._passes["W", each.stage](**self._kept.pop((each.stage, each.microbatch)))
        before = self.found.get(each.stage)
        self.found[each.stage] = made if before is None else jax.tree.map(_add, before, made)
