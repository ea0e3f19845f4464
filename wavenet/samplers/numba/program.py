"""The weights, loop and memory of a network, as the state of generation uses them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from wavenet.samplers.numba.kernels import aligned
from wavenet.samplers.numba.layers import BLOCK
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

    def buffers(self, plan) -> Buffers:
        """Return the memory of a group of rows, empty."""
        return _layer_buffers(self.weights, plan) | self.own_buffers(plan)


def _layer_buffers(weights: PackedWeights, plan) -> Buffers:
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
