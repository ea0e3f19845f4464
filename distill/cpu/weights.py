"""The flows' weights for the compiled kernels: one block of memory, and tables that index it."""

import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distill.config import StudentConfig
from distill.cpu import kernels as flow_kernels
from distill.cpu.kernels import ROWS, pack_gates, pack_outputs
from distill.flows import Flow, FlowLayer
from onepass.machine import kernels
from onepass.machine.kernels import LANES, aligned_zeros, pad_channels
from wavenet.samplers.numba.weights import wide

TILE_ROWS = 80 * ROWS
"""Largest number of bunches per tile: its activations and a layer's weights fit the cache."""

# Numba's cache checks only one file. As the name of this field is part of every compiled function's
# signature, the cache depends on the kernels' sources as well.
_MODULES = (kernels, flow_kernels)
_SOURCES = b"".join(Path(str(each.__file__)).read_bytes() for each in _MODULES)
_KERNELS = f"kernels_{zlib.crc32(_SOURCES):08x}"

SIZES = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("front_width", "width", "condition_inputs", "residual_inputs", "residual_vectors"),
            *("gate_inputs", "gate_vectors", "bunch", "held_inputs", "row_samples", _KERNELS),
        )
    ]
    + [("min_log_scale", np.float64)]
)
"""Record type of the sizes that all layers share."""

_FLOW_PARTS = (
    *("front", "front_bias", "bunch", "bunch_bias"),
    *("head1", "head1_bias", "head2", "head2_bias"),
)
_LAYER_PARTS = ("gate", "gate_bias", "held", "residual", "residual_bias")

FLOW = np.dtype([(name, np.int64) for name in _FLOW_PARTS])
"""Record type of a flow: the offset of each of its arrays in the memory, in bytes."""

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("flow", "first", "last", "dilation"),
            *("past", "window", "capacity"),  # the layer's window of inputs, in rows
            *_LAYER_PARTS,
        )
    ]
)
"""Record type of a layer: its position, its window, and the offset of each array in bytes."""


class PackedFlows(NamedTuple):
    """The weights and sizes that all sounds share."""

    memory: np.ndarray
    """float32, all weights concatenated."""
    sizes: Any
    """A record of type SIZES; its type is Any, since `np.void` declares no fields."""
    flows: np.ndarray
    """Array of type FLOW, [flows]."""
    layers: np.ndarray
    """Array of type LAYER, [layers of all flows]."""


def pack(flows: list[Flow], narrow: bool = False) -> PackedFlows:
    """Return a copy of the flows' weights, of large products as bfloat16 pairs if `narrow`."""
    config = flows[0].config
    parts: list[np.ndarray] = []
    flow_table = np.zeros(len(flows), FLOW)
    layer_table = np.zeros(sum(len(flow.layers) for flow in flows), LAYER)
    place = window = 0
    for number, flow in enumerate(flows):
        _enter(flow_table[number], _flow_parts(flow, narrow), parts)
        for i, layer in enumerate(flow.layers):
            entry = layer_table[place]
            _enter(entry, _layer_parts(layer, narrow), parts)
            past = layer.past_samples
            entry["flow"], entry["dilation"] = number, layer.dilation
            entry["first"], entry["last"] = i == 0, i == len(flow.layers) - 1
            # At least twice the past, so that moving the past copies each row at most once.
            entry["past"], entry["capacity"] = past, past + max(past, TILE_ROWS)
            entry["window"] = window
            window += entry["capacity"]
            place += 1
    memory = aligned_zeros([sum(part.size for part in parts)])
    np.concatenate(parts, out=memory)
    return PackedFlows(memory, _sizes(config), flow_table, layer_table)


def _enter(entry: np.void, named: dict[str, np.ndarray], parts: list[np.ndarray]) -> None:
    for name, array in named.items():
        entry[name] = sum(part.nbytes for part in parts)
        parts.append(np.pad(array.ravel(), (0, -array.size % 16)))


def _sizes(config: StudentConfig) -> np.void:
    sizes = np.zeros(1, SIZES)[0]
    sizes["front_width"], sizes["width"] = config.front_width, config.filter_width
    sizes["condition_inputs"] = config.gate_inputs - config.held_inputs
    sizes["held_inputs"] = config.held_inputs
    sizes["row_samples"] = config.row_samples if config.held_inputs else 1
    sizes["residual_inputs"] = config.residual_channels
    sizes["residual_vectors"] = pad_channels(config.residual_channels) // LANES
    sizes["gate_inputs"] = config.gate_channels
    sizes["gate_vectors"] = pad_channels(config.gate_channels) // LANES
    sizes["bunch"] = config.bunch_samples
    sizes["min_log_scale"] = config.min_log_scale
    return sizes


def _layer_parts(layer: FlowLayer, narrow: bool) -> dict[str, np.ndarray]:
    kernels = [np.asarray(tap) for tap in np.asarray(layer.gate_kernel)]
    held = np.zeros([0, kernels[0].shape[1]], np.float32)
    if layer.condition_kernel is not None:
        held, each = np.split(np.asarray(layer.condition_kernel), [layer.held_inputs])
        kernels.append(each)
    half_power = math.sqrt(0.5)
    return {
        "gate": pack_gates(_concatenate_kernels(kernels, narrow), narrow),
        "gate_bias": pack_gates(np.asarray(layer.gate_bias)[None]),
        "held": pack_gates(held),
        "residual": pack_outputs(
            _concatenate_kernels([np.asarray(layer.residual_kernel) * half_power], narrow), narrow
        ),
        "residual_bias": wide(np.asarray(layer.residual_bias) * half_power),
    }


def _flow_parts(flow: Flow, narrow: bool) -> dict[str, np.ndarray]:
    return {
        "front": pack_outputs(np.asarray(flow.front_kernel)),
        "front_bias": wide(flow.front_bias),
        **_bunch_parts(flow, narrow),
        "head1": pack_outputs(
            _concatenate_kernels([np.asarray(flow.head1_kernel)], narrow), narrow
        ),
        "head1_bias": wide(flow.head1_bias),
        "head2": pack_outputs(np.asarray(flow.head2_kernel)),
        "head2_bias": wide(flow.head2_bias),
    }


def _concatenate_kernels(parts: list[np.ndarray], narrow: bool) -> np.ndarray:
    return np.concatenate([flow_kernels.even(each) if narrow else each for each in parts])


def _bunch_parts(flow: Flow, narrow: bool) -> dict[str, np.ndarray]:
    if flow.config.bunch_samples == 1:
        return {"bunch": np.zeros(0, np.float32), "bunch_bias": np.zeros(0, np.float32)}
    bias, recent = np.asarray(flow.bunch_bias), np.asarray(flow.recent_kernel)
    layered = np.asarray(flow.bunch_kernel).reshape(-1, *bias.shape)
    padding = np.zeros([pad_channels(len(layered)) - len(layered), bias.shape[1]], np.float32)
    each = [[recent, np.concatenate([layered[:, j], padding])] for j in range(len(bias))]
    kernels = [_concatenate_kernels(parts, narrow) for parts in each]
    return {
        "bunch": np.concatenate([pack_gates(kernel, narrow).ravel() for kernel in kernels]),
        "bunch_bias": np.concatenate([pack_gates(each[None]).ravel() for each in bias]),
    }
