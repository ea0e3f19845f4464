"""A student's flows on a CPU: every layer is a blocked matrix product, compiled by Numba.

The arithmetic is float32, whatever the flows' `compute_dtype`. A sample's bits do not depend on the
batch, the sizes of the chunks or the number of threads.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from distill.config import RECENT
from distill.cpu import kernels, noise, recursion
from distill.cpu.kernels import ROWS
from distill.cpu.tiles import Chunk, Scratch, TileSchedule, new_progress, run_tiles
from distill.cpu.weights import FLOW, LAYER, SIZES, TILE_ROWS, PackedFlows, pack
from distill.flows import Flow
from distill.residual import Prediction
from onepass.foundation.cores import cores
from onepass.likelihoods.affine import FlowOutput
from onepass.machine.kernels import LANES, aligned_zeros
from wavenet.samplers.numba import as_compiled, check_shape


@dataclasses.dataclass
class FlowState:
    """State between chunks, for one use: what later samples need apart from noise and condition."""

    fronts: np.ndarray
    """Past inputs of each flow's first convolution, float32 [batch, flows, front_width]."""
    windows: np.ndarray
    """Inputs of every layer, float32 [batch, rows, channels]."""
    used: np.ndarray
    """Number of filled rows in each layer's window, int64 [batch, layers]."""
    used_up: bool = False

    @property
    def batch(self) -> int:
        """Number of sounds."""
        return len(self.fronts)

    def copy(self) -> "FlowState":
        """Return an independent copy; raise ValueError if this state has been used."""
        self.check_fresh()
        windows = aligned_zeros(self.windows.shape)
        windows[:] = self.windows
        return FlowState(self.fronts.copy(), windows, self.used.copy())

    def check_fresh(self) -> None:
        """Raise ValueError if the state has been used."""
        if self.used_up:
            raise ValueError("`state` must be the newest one or a copy() of it, got one used up.")


class FlowEngine:
    """A CPU engine for flows, whose weights it copies when it is created.

    Several threads may call `run` at the same time, each with its own state. The engine's worker
    threads are reused by later runs and end with the engine. `narrow` computes large products in
    bfloat16 with float32 sums, which is faster, gives different bits, and needs AVX512-BF16.
    """

    def __init__(self, flows: list[Flow], threads: int | None = None, narrow: bool = False) -> None:
        if not flows:
            raise ValueError("`flows` must be at least one, got none.")
        self.threads = cores(threads)
        if narrow and not kernels.IS_AVAILABLE:
            raise ValueError("`narrow` needs a processor with bfloat16 instructions (AVX512-BF16).")
        self._narrow = narrow
        self._packed = pack(flows, narrow)
        self._idle: list[ThreadPoolExecutor] = []

    def initial_state(self, batch: int) -> FlowState:
        """Return the state of `batch` sounds before their first sample."""
        if batch < 1:
            raise ValueError(f"`batch` must be at least 1, got {batch}.")
        sizes, layers = self._packed.sizes, self._packed.layers
        channels = int(sizes["residual_vectors"]) * LANES
        return FlowState(
            fronts=np.zeros([batch, len(self._packed.flows), sizes["front_width"]], np.float32),
            windows=aligned_zeros([batch, int(layers["capacity"].sum()), channels]),
            used=np.repeat(layers["past"][None], batch, 0),
        )

    def run(
        self,
        state: FlowState,
        noise: np.ndarray,
        condition: np.ndarray | None = None,
        held: np.ndarray | None = None,
    ) -> tuple[FlowOutput, FlowState]:
        """Return the flows' output for the next noise, float32 [batch, time], and the next state.

        `state` cannot be used again.

        Args:
          noise: float32 [batch, time]; except in the last call, the time must be a multiple of
            `bunch_samples` and, if there are `held_inputs`, of `row_samples`.
        """
        state.check_fresh()
        noise = as_compiled(noise, np.float32)
        check_shape("noise", noise, (state.batch, None))
        channels = int(self._packed.sizes["condition_inputs"])
        front, time = state.fronts.shape[-1], noise.shape[1]
        bunch = int(self._packed.sizes["bunch"])
        bunches = -(-time // bunch)
        given = self._as_float32_array("condition", condition, state.batch, bunches, channels)
        rows = -(-time // int(self._packed.sizes["row_samples"]))
        held_inputs = int(self._packed.sizes["held_inputs"])
        held = self._as_float32_array("held", held, state.batch, rows, held_inputs)
        state.used_up = True
        whole = np.pad(noise, [(0, 0), (0, bunches * bunch - time)])
        held = np.pad(held, [(0, 0), (0, ROWS), (0, 0)])
        chunk = self._chunk(state, whole, given, held)
        self._run_tiles(chunk, bunches)
        fronts = chunk.noises[:, :-1, time : time + front].copy()
        output = np.ascontiguousarray(chunk.noises[:, -1, front : front + time])
        flowed = FlowOutput(output, chunk.location[:, :time], chunk.log_scale[:, :time])
        return flowed, FlowState(fronts, state.windows, state.used)

    def _as_float32_array(self, name: str, array: np.ndarray | None, *shape: int) -> np.ndarray:
        if array is None:
            array = np.zeros([*shape[:-1], 0])
        array = as_compiled(array, np.float32)
        check_shape(name, array, shape)
        return array

    def _chunk(
        self, state: FlowState, noise: np.ndarray, condition: np.ndarray, held: np.ndarray
    ) -> Chunk:
        batch, flows, front = state.fronts.shape
        beyond = ROWS * int(self._packed.sizes["bunch"])
        noises = np.zeros([batch, flows + 1, front + noise.shape[1] + beyond], np.float32)
        noises[:, :-1, :front] = state.fronts
        noises[:, 0, front : front + noise.shape[1]] = noise
        return Chunk(
            noises=noises,
            condition=condition,
            held=held,
            location=np.zeros_like(noise),
            log_scale=np.zeros_like(noise),
            windows=state.windows,
            used=state.used,
        )

    def _run_tiles(self, chunk: Chunk, bunches: int) -> None:
        schedule = _schedule(len(chunk.location), bunches, self.threads)
        # The threads of a run wait for each other, so two runs must not share a pool.
        workers = self._idle.pop() if self._idle else ThreadPoolExecutor(self.threads)
        futures = [
            workers.submit(run_tiles, self._packed, chunk, schedule, self._scratch(), thread)
            for thread in range(schedule.threads)
        ]
        for future in futures:
            future.result()
        self._idle.append(workers)

    def _scratch(self) -> Scratch:
        sizes = self._packed.sizes
        channels = int(sizes["residual_vectors"]) * LANES
        gates = int(sizes["gate_vectors"]) * LANES
        units = max(channels, gates)
        rows = TILE_ROWS * int(sizes["bunch"]) // int(sizes["row_samples"]) + 1 + ROWS
        return Scratch(
            condition=aligned_zeros([TILE_ROWS, int(sizes["condition_inputs"])]),
            held=aligned_zeros([rows if sizes["held_inputs"] else 0, 2 * gates]),
            units=aligned_zeros([ROWS, units]),
            hidden=aligned_zeros([TILE_ROWS, channels]),
            layered=aligned_zeros([TILE_ROWS, channels]),
            outputs=aligned_zeros([TILE_ROWS, LANES]),
            scales=aligned_zeros([-(-TILE_ROWS // LANES) * LANES]),
            zeros=aligned_zeros([max(channels, 2 * gates)]),
            offsets=np.zeros([2, TILE_ROWS], np.int64),
            pairs=aligned_zeros([ROWS * self._row_inputs()]) if self._narrow else None,
        )

    def _row_inputs(self) -> int:
        """Return an upper bound on the number of float32 words that the inputs of one row take."""
        sizes = self._packed.sizes
        channels = LANES * int(sizes["residual_vectors"] + sizes["gate_vectors"])
        return channels * int(sizes["width"]) + int(sizes["condition_inputs"]) + RECENT


def compile_kernels() -> None:
    """Compile the kernels, the same for every student, for this process and its later forks."""
    none = np.zeros([1, 1, 0], np.float32)
    flows, layers = np.zeros(0, FLOW), np.zeros(0, LAYER)
    packed = PackedFlows(aligned_zeros([0]), np.ones(1, SIZES)[0], flows, layers)
    chunk = Chunk(none, none, none, none[0], none[0], none, np.zeros([0, 0], np.int64))
    rows, row, offsets = none[0], none[0, 0], np.zeros([2, 0], np.int64)
    scratch = Scratch(rows, rows, rows, rows, rows, rows, row, row, offsets, None)
    run_tiles(packed, chunk, TileSchedule(ROWS, 0, 1, new_progress(1)), scratch, 0)
    recursion.wave(rows, Prediction(none, rows), rows, 1)
    noise.words(0, (), 0, 0)
    recursion.solve_rows(np.ones([1, 2]))


def _schedule(sounds: int, bunches: int, threads: int) -> TileSchedule:
    tiles = -(-bunches // TILE_ROWS)
    if sounds % threads:
        tiles = -(-tiles // threads) * threads
    rows = max(1, -(-bunches // max(1, tiles)))
    rows = -(-rows // ROWS) * ROWS
    tiles = -(-bunches // rows)
    threads = max(1, min(threads, sounds * tiles))
    return TileSchedule(rows, tiles, threads, new_progress(threads))
