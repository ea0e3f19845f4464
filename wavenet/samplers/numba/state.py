"""The state of the Numba samplers: programs, groups of rows with queues, and thread scheduling."""

import dataclasses
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from onepass.foundation.runtime import Apart
from onepass.machine.kernels import aligned_zeros
from onepass.machine.machine import Pace
from wavenet.samplers.numba.layers import BLOCK, Chunk, run_aside
from wavenet.samplers.numba.weights import PackedWeights

Buffers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Program:
    """A network's weights and the compiled loop that reads them."""

    weights: PackedWeights
    lead: Callable[..., None]
    """The loop over a chunk's steps, called as `lead(plan, arrays, chunk, alone)`."""
    own_buffers: Callable[[np.void], Buffers]
    """Function from a plan to the buffers of the parts before and after the layers."""
    arrays: Callable[[PackedWeights, Buffers], Any]
    """Function from weights and buffers to the loop's `arrays` argument."""

    @property
    def bunch(self) -> int:
        """Number of samples per step."""
        return int(self.weights.plan["bunch"])

    def buffers(self, plan: np.void) -> Buffers:
        """Return new buffers for a group of rows."""
        return _layer_buffers(self.weights, plan) | self.own_buffers(plan)


def _layer_buffers(weights: PackedWeights, plan: np.void) -> Buffers:
    rows, layers, gate = int(plan["rows"]), int(plan["layers"]), int(plan["gate_bytes"]) // 4
    residual, skip = int(plan["residual_bytes"]) // 4, int(plan["skip_bytes"]) // 4
    output = int(plan["output_bytes"]) // 4
    shapes = {
        "rings": [weights.ring_steps, rows, residual],
        "sums": [layers, BLOCK, rows, 2 * gate],
        "conditions": [layers if plan["condition_inputs"] else 0, BLOCK, rows, 2 * gate],
        "units": [layers, rows, gate],
        "skips": [rows, skip],
        "outputs": [rows, output],
        "chances": [output],
    }
    buffers = {name: aligned_zeros(shape) for name, shape in shapes.items()}
    # Each counter gets two cache lines, since processors fetch them in pairs.
    return buffers | {name: aligned_zeros([16], np.int64) for name in ("lead_done", "aside_done")}


# Minimum number of rows for which a separate thread, which reads all the weights, pays off.
_ROWS_OF_A_THREAD = 4


class Conditions(NamedTuple):
    """The condition of every step of a chunk."""

    gates: np.ndarray
    """Condition that the gates read, float32 [batch, steps, channels]."""
    described: np.ndarray
    """Result of `bunches.described`, float32 [batch, steps, ...]; no channels in a `WaveNet`."""


class Group:
    """Batch rows that are processed together, with their queues and buffers."""

    def __init__(self, program: Program, rows: slice) -> None:
        self.program, self.rows = program, rows
        self.plan = program.weights.plan.copy()
        self.plan["rows"] = rows.stop - rows.start
        self.buffers = program.buffers(self.plan)
        for name, buffer in self.buffers.items():
            if name in (self.plan.dtype.names or ()):
                self.plan[name] = buffer.ctypes.data

    def copy(self) -> "Group":
        """Return an independent copy."""
        group = Group(self.program, self.rows)
        for name, buffer in self.buffers.items():
            group.buffers[name][:] = buffer
        return group

    def submit(self, workers: ThreadPoolExecutor, chunk: Chunk, paired: bool, apart: Apart) -> list:
        """Start the chunk on one thread, or on two if `paired`, and return the futures."""
        program, buffers, plan = self.program, self.buffers, self.plan
        arrays = program.arrays(program.weights, buffers)
        buffers["lead_done"][:] = buffers["aside_done"][:] = 0
        futures = [workers.submit(apart.run, program.lead, plan, arrays, chunk, not paired)]
        if paired:
            futures.append(workers.submit(apart.run, run_aside, plan, arrays, chunk))
        return futures


@dataclasses.dataclass
class GenerationState:
    """The state between two chunks; generating a chunk consumes it."""

    batch: int
    position: int
    """Number of samples so far."""
    blocks: np.ndarray
    """Past blocks that the context stack reads, float32 [batch, blocks, block_samples]."""
    groups: list[Group]
    pace: Pace | None
    """Decision about a second thread per group; None if there are too few threads."""
    workers: ThreadPoolExecutor
    used_up: bool = False

    def copy(self) -> "GenerationState":
        """Return an independent copy; raise ValueError if the state was consumed."""
        self._check_fresh()
        return dataclasses.replace(
            self,
            blocks=self.blocks.copy(),
            groups=[group.copy() for group in self.groups],
            workers=_workers(len(self.groups)),
        )

    def run(
        self,
        conditions: Conditions,
        noise: np.ndarray,
        levels: np.ndarray,
        given: bool,
        temperature: float,
    ) -> np.ndarray:
        """Run whole steps and return their parameters; read the `levels` if `given`, else write."""
        self._check_fresh()
        self.used_up = True
        program = self.groups[0].program
        count = program.weights.plan["num_parameters"]
        parameters = np.zeros([*levels.shape, count], np.float32)
        paired = self.pace is not None and self.pace.choose()
        apart = Apart()
        began, futures = time.perf_counter(), []
        by_time = [_by_time(conditions.gates, group) for group in self.groups]
        for group, here in zip(self.groups, by_time, strict=True):
            chunk = Chunk(
                start=self.position // program.bunch,
                condition=here.ctypes.data,
                described=conditions.described[group.rows],
                noise=noise[group.rows],
                temperature=np.float32(temperature),
                levels=levels[group.rows],
                given=given,
                parameters=parameters[group.rows],
            )
            futures += group.submit(self.workers, chunk, paired, apart)
        for future in futures:
            future.result()
        if self.pace is not None:
            self.pace.record(paired, time.perf_counter() - began, levels.shape[1])
        return parameters

    def after(self, samples: int, blocks: np.ndarray) -> "GenerationState":
        """Return the state after a chunk of `samples` samples, with the new past `blocks`."""
        return dataclasses.replace(
            self, position=self.position + samples, blocks=blocks, used_up=False
        )

    def _check_fresh(self) -> None:
        if self.used_up:
            raise ValueError("`state` must be the newest one or a copy() of it, got one used up.")


def first_state(program: Program, blocks: np.ndarray, threads: int, pace: Pace) -> GenerationState:
    """Return the state before the first sample: zeroed queues, and the given past `blocks`."""
    batch = len(blocks)
    groups = threads
    if batch < _ROWS_OF_A_THREAD * threads:
        groups = max(1, min(batch, threads // 2))
    edges = np.linspace(0, batch, groups + 1).round().astype(int).tolist()
    rows = [slice(first, last) for first, last in itertools.pairwise(edges)]
    return GenerationState(
        batch=batch,
        position=0,
        blocks=blocks,
        groups=[Group(program, each) for each in rows],
        pace=pace if threads >= 2 * groups else None,
        workers=_workers(groups),
    )


def _workers(groups: int) -> ThreadPoolExecutor:
    # One thread for each lead and each aside: they wait for each other, so all must be running.
    return ThreadPoolExecutor(2 * groups)


def _by_time(condition: np.ndarray, group: Group) -> np.ndarray:
    return np.ascontiguousarray(condition[group.rows].transpose(1, 0, 2), np.float32)
