"""The state of generation on a CPU: programs, rows with their queues, the threads' pace."""

import collections
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from autoregressive.machine.kernels import aligned
from foundation.cores import Apart
from wavenet.samplers.numba.layers import BLOCK, Chunk, run_aside
from wavenet.samplers.numba.weights import PackedWeights

Buffers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Program:
    """A network's weights with the compiled loop that reads them."""

    weights: PackedWeights
    lead: Callable[..., None]
    """The loop over a chunk's steps, `run_lead(plan, arrays, chunk, alone)`."""
    own_buffers: Callable[[np.void], Buffers]
    """Memory of the parts before and after the layers, by plan."""
    arrays: Callable[[PackedWeights, Buffers], Any]
    """The arrays that the loop does not read or write by address, from all buffers."""

    @property
    def bunch(self) -> int:
        """Samples that a step of the layers stands for."""
        return int(self.weights.plan["bunch"])

    def buffers(self, plan: np.void) -> Buffers:
        """Return the memory of a group of rows, empty."""
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
    buffers = {name: aligned(shape) for name, shape in shapes.items()}
    # Two cache lines each, as processors fetch them in pairs.
    return buffers | {name: aligned([16], np.int64) for name in ("lead_done", "aside_done")}


# Rows that pay for a thread's own reading of all the weights.
_ROWS_OF_A_THREAD = 4
_CHUNKS_BETWEEN_TRIALS = 32


class Conditions(NamedTuple):
    """The condition of every step of a chunk."""

    gates: np.ndarray
    """Input of the gates, float32 [batch, steps, channels]."""
    described: np.ndarray
    """Input of the rest of the network, float32 [batch, steps, channels]; none for a `WaveNet`."""


class Group:
    """Rows that pass through the network together: their queues, and the memory of their step."""

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
        """Start the chunk's one or two threads and return their futures."""
        program, buffers, plan = self.program, self.buffers, self.plan
        arrays = program.arrays(program.weights, buffers)
        buffers["lead_done"][:] = buffers["aside_done"][:] = 0
        futures = [workers.submit(apart.run, program.lead, plan, arrays, chunk, not paired)]
        if paired:
            futures.append(workers.submit(apart.run, run_aside, plan, arrays, chunk))
        return futures


class Pace:
    """The decision whether a second thread for the asides pays; results do not depend on it.

    A second thread pays on free cores, and not where other processes want them. The first chunks
    try both ways, `RUNS` times each; later the slower way gets a chunk from time to time, to find
    out whether it still is the slower one. The medians of the latest runs count, so that one
    interruption decides nothing. Generators of the same batch share the result.
    """

    RUNS = 5

    def __init__(self) -> None:
        self._chunks = 0
        self._seconds: dict[bool, collections.deque[float]] = {
            way: collections.deque(maxlen=self.RUNS) for way in (True, False)
        }

    @property
    def is_settled(self) -> bool:
        """Return whether both ways have been tried often enough."""
        return all(len(seconds) == self.RUNS for seconds in self._seconds.values())

    def pair(self) -> bool:
        """Return whether the next chunk should run in pairs of threads."""
        paired, alone = self._seconds[True], self._seconds[False]
        if not self.is_settled:
            return len(paired) <= len(alone)
        self._chunks += 1
        faster = statistics.median(paired) <= statistics.median(alone)
        return faster != (self._chunks % _CHUNKS_BETWEEN_TRIALS == 0)

    def record(self, paired: bool, seconds: float, steps: int) -> None:
        """Record the time of a chunk."""
        if steps:
            self._seconds[paired].append(seconds / steps)


@dataclasses.dataclass
class GenerationState:
    """All that the next sample depends on besides noise and condition; a chunk consumes it."""

    batch: int
    position: int
    """Samples so far."""
    blocks: np.ndarray
    """Past sound that the context stack reads, float32 [batch, blocks, block_samples]."""
    groups: list[Group]
    pace: Pace | None
    """None where there is no second thread for a group."""
    workers: ThreadPoolExecutor
    used_up: bool = False

    def copy(self) -> "GenerationState":
        """Return an independent copy.

        Raises:
          ValueError: this state is consumed.
        """
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
        """Run a chunk of whole steps and return its parameters, float32 [batch, time, parameters].

        It fills the levels int32 [batch, time], or follows them if `given`.

        Raises:
          ValueError: the state is consumed.
        """
        self._check_fresh()
        self.used_up = True
        program = self.groups[0].program
        count = program.weights.plan["num_parameters"]
        parameters = np.zeros([*levels.shape, count], np.float32)
        paired = self.pace is not None and self.pace.pair()
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
        """Return the state that so many more samples have led to."""
        return dataclasses.replace(
            self, position=self.position + samples, blocks=blocks, used_up=False
        )

    def _check_fresh(self) -> None:
        if self.used_up:
            raise ValueError("`state` must be the newest one or a copy() of it, got one used up.")


def first_state(program: Program, blocks: np.ndarray, threads: int, pace: Pace) -> GenerationState:
    """Return the state before the first sample: empty queues, and silent `blocks` [batch, ...]."""
    batch = len(blocks)
    groups = threads
    if batch < _ROWS_OF_A_THREAD * threads:
        groups = max(1, min(batch, threads // 2))
    edges = np.linspace(0, batch, groups + 1).round().astype(int).tolist()
    rows = [slice(*pair) for pair in itertools.pairwise(edges)]
    return GenerationState(
        batch=batch,
        position=0,
        blocks=blocks,
        groups=[Group(program, each) for each in rows],
        pace=pace if threads >= 2 * groups else None,
        workers=_workers(groups),
    )


def _workers(groups: int) -> ThreadPoolExecutor:
    # A thread for each lead and each aside: they wait for each other, and none may be kept out.
    return ThreadPoolExecutor(2 * groups)


def _by_time(condition: np.ndarray, group: Group) -> np.ndarray:
    return np.ascontiguousarray(condition[group.rows].transpose(1, 0, 2), np.float32)
