"""Packing of a WaveNet's weights for the Numba code: one block of memory, and a plan of addresses.

Constants are folded into the weights: the input gain, the factor sqrt(1/2) of the residuals and the
factor sqrt(1/layers) of the skips.
"""

import dataclasses
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onepass.likelihoods import Categorical, Gaussian, LogisticMixture
from onepass.likelihoods.distribution import with_scales
from onepass.machine import kernels
from onepass.machine.kernels import LANES, aligned_zeros, pack_matrix, pad_channels

MIXTURE, GAUSSIAN, CATEGORICAL = range(3)
LOOPS: dict[type, int] = {
    LogisticMixture: MIXTURE,
    Gaussian: GAUSSIAN,
    Categorical: CATEGORICAL,
}
"""The number that identifies each distribution in `draw`."""

_SIZES = (  # `*_inputs` are channel counts; `*_vectors` and `*_bytes` are padded sizes
    *("rows", "layers", "width", "bunch", "front_width", "condition_inputs", "residual_inputs"),
    *("residual_vectors", "residual_bytes", "gate_inputs", "gate_vectors", "gate_bytes"),
    *("skip_inputs", "skip_vectors", "skip_bytes", "output_vectors", "output_bytes"),
    *("likelihood", "levels", "components", "num_parameters"),
)
_WEIGHTS = (  # addresses of weights; `*_bytes` are sizes per layer
    *("front", "front_bias", "past", "present", "present_bytes", "gate_bias", "condition"),
    *("condition_bytes", "residual_bias", "skip", "skip_bias", "head1", "head1_bias", "head2"),
    "head2_bias",
)
_BUFFERS = (  # addresses of the buffers of a group of rows
    *("rings", "sums", "conditions", "units", "skips", "hidden", "outputs", "history"),
    *("chances", "lead_done", "aside_done"),
)


def _sources() -> str:
    """Return a name that changes with any source file in the folder of the kernels.

    Numba's cache only checks the file of the compiled function. As a field of the plan, this name
    is part of every signature, so that the cache depends on all these files.
    """
    files = sorted(Path(kernels.__file__).parent.glob("*.py"))
    return f"sources_{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def plan_type(names: tuple[str, ...] = ()) -> np.dtype:
    """Return the NumPy type of a plan: a record of sizes and addresses for a group of rows."""
    numbers = (*_SIZES, *_WEIGHTS, *_BUFFERS, *names, _sources())
    return np.dtype(
        [(name, np.int64) for name in numbers]
        + [("min_log_scale", np.float32), ("padding", np.float32)]
    )


PLAN = plan_type()
"""The type of the plan of a `WaveNet`."""


@dataclasses.dataclass(frozen=True)
class PackedWeights:
    """The weights in the order in which a step reads them, and the plan with their addresses."""

    memory: np.ndarray
    plan: np.void
    """A record of type `plan_type`, complete except for the number of rows and the buffers."""
    dilations: np.ndarray
    """Dilation of each layer, int64 [layers]."""
    ring_starts: np.ndarray
    """Start of each layer's queue, in steps, int64 [layers]."""
    ring_steps: int
    """Total length of all queues, in steps."""

    @property
    def rings(self) -> dict[str, np.ndarray]:
        """The dilations and the starts of the queues, by field name of a step's `arrays`."""
        return {"dilations": self.dilations, "ring_starts": self.ring_starts}


def pack(network: Any) -> PackedWeights:
    """Return a packed copy of the current weights of a `WaveNet`."""
    config = network.config
    parts = _front_parts(network) | layer_parts(network) | _head_parts(network)
    sizes = layer_sizes(network) | {"condition_inputs": config.gate_inputs}
    return pack_weights(network, PLAN, sizes, parts)


def pack_weights(network: Any, plan_type: np.dtype, sizes: dict, parts: dict) -> PackedWeights:
    """Copy the `parts` to one block of memory and return it with its plan."""
    config = network.config
    plan = np.zeros(1, plan_type)[0]
    for name, value in sizes.items():
        plan[name] = value
    memory = aligned_zeros([sum(_whole_lines(part.size) for part in parts.values())])
    start = 0
    for name, part in parts.items():
        memory[start : start + part.size] = part.ravel()
        plan[name] = memory[start:].ctypes.data
        start += _whole_lines(part.size)
    for name in ("present", "condition"):
        plan[f"{name}_bytes"] = parts[name].nbytes // config.layers
    dilations = np.array(config.dilations, np.int64)
    spans = (config.filter_width - 1) * dilations
    return PackedWeights(
        memory=memory,
        plan=plan,
        dilations=dilations,
        ring_starts=np.cumsum(spans) - spans,
        ring_steps=int(spans.sum()),
    )


def _whole_lines(size: int) -> int:
    return -(-size // 16) * 16


def layer_sizes(network: Any) -> dict[str, float]:
    """Return the sizes of a network's layers and distribution, by field name of the plan."""
    config, likelihood = network.config, network.likelihood
    located = with_scales(likelihood)
    channels = {
        "residual": config.residual_channels,
        "gate": config.gate_channels,
        "skip": config.skip_channels,
        "output": likelihood.num_parameters,
    }
    sizes: dict[str, float] = {
        "layers": config.layers,
        "width": config.filter_width,
        "bunch": config.bunch_samples,
        "front_width": config.front_width,
        "residual_inputs": config.residual_channels,
        "gate_inputs": config.gate_channels,
        "skip_inputs": config.skip_channels,
        "likelihood": LOOPS[type(likelihood)],
        "levels": likelihood.levels,
        "components": 0 if located is None else located.sections[0],
        "num_parameters": likelihood.num_parameters,
        "min_log_scale": 0.0 if located is None else likelihood.min_log_scale,
    }
    return sizes | in_vectors(channels)


def in_vectors(channels: dict[str, int]) -> dict[str, int]:
    """Return the padded sizes NAME_vectors and NAME_bytes for each number of channels."""
    vectors = {f"{name}_vectors": pad_channels(count) // LANES for name, count in channels.items()}
    return vectors | {f"{name}_bytes": pad_channels(count) * 4 for name, count in channels.items()}


def _front_parts(network: Any) -> dict[str, np.ndarray]:
    kernel = np.asarray(network.front_kernel)
    if network.config.reads_levels:
        front = wide(kernel)
    else:
        front = pack_matrix(kernel * network.config.input_gain)
    return {"front": front, "front_bias": wide(network.front_bias)}


def layer_parts(network: Any) -> dict[str, np.ndarray]:
    """Return the packed weights of all layers, by field name of the plan."""
    layers = network.stack.layers
    half_power, skip_scale = math.sqrt(0.5), math.sqrt(1 / len(layers))
    parts: dict[str, list[np.ndarray]] = {
        name: [] for name in ("past", "present", "gate_bias", "condition", "residual_bias", "skip")
    }
    for layer in layers:
        *past, present = wide_halves(layer.gate_kernel)
        parts["past"] += [pack_matrix(tap) for tap in past]
        residual, bias = _residual(network, layer)
        parts["present"] += [pack_matrix(present), pack_matrix(residual * half_power)]
        parts["residual_bias"].append(wide(bias * half_power))
        parts["gate_bias"].append(wide_halves(layer.gate_bias))
        if layer.condition_kernel is not None:
            parts["condition"].append(pack_matrix(wide_halves(layer.condition_kernel)))
        parts["skip"].append(pack_matrix(np.asarray(layer.skip_kernel) * skip_scale))
    none = np.zeros(0, np.float32)
    return {name: np.concatenate([none, *each]) for name, each in parts.items()}


def _residual(network: Any, layer: Any) -> tuple[np.ndarray, np.ndarray]:
    if layer.residual_kernel is None:
        config = network.config
        channels = config.residual_channels
        return np.zeros([config.gate_channels, channels]), np.zeros([channels])
    return np.asarray(layer.residual_kernel), np.asarray(layer.residual_bias)


def _head_parts(network: Any) -> dict[str, np.ndarray]:
    kernel = np.asarray(network.head2_kernel, np.float64)
    bias = np.asarray(network.head2_bias, np.float64)
    located = with_scales(network.likelihood)
    if located is not None:
        means = located.sections[1]
        mean, log_scale = slice(-2 * means, -means), slice(-means, None)
        gain = network.config.input_gain
        if network.prediction_kernel is None:  # otherwise the means are in units of the scales
            kernel[:, mean] /= gain
            bias[mean] /= gain
        bias[log_scale] -= math.log(gain)
    return {
        "skip_bias": wide(network.skip_bias),
        "head1": pack_matrix(np.asarray(network.head1_kernel)),
        "head1_bias": wide(network.head1_bias),
        "head2": pack_matrix(kernel),
        "head2_bias": wide(bias),
    }


def wide(array: ArrayLike) -> np.ndarray:
    """Return an array [..., channels] padded with zeros to whole vectors."""
    array = np.asarray(array, np.float32)
    short = pad_channels(array.shape[-1]) - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, short)])


def wide_halves(array: ArrayLike) -> np.ndarray:
    """Return an array [..., 2 gate] with each half of the last axis padded to whole vectors."""
    return np.concatenate([wide(half) for half in np.split(np.asarray(array), 2, -1)], -1)


BUNCH_PLAN = plan_type(
    (
        *("history_samples", "prediction_order", "pitch_taps", "head_width", "input_bytes"),
        *("unit_inputs", "unit_vectors", "unit_bytes"),
        *("given", "given_bias", "recent"),  # weights
        *("inputs", "gates", "head_units"),  # buffers
    )
)
"""The type of the plan of a `VocoderWaveNet`."""


def pack_vocoder(network: Any) -> PackedWeights:
    """Return a packed copy of the current weights of a `VocoderWaveNet`."""
    parts = {
        "front": pack_matrix(np.asarray(network.front_kernel)),
        "front_bias": wide(network.front_bias),
    }
    parts |= layer_parts(network) | _bunch_head_parts(network)
    return pack_weights(network, BUNCH_PLAN, layer_sizes(network) | _bunch_sizes(network), parts)


def _bunch_sizes(network: Any) -> dict[str, int]:
    config = network.config
    widest = 2 * max(config.front_width, config.head_width) + config.pitch_taps
    sizes = {
        "condition_inputs": network.gate_channels,
        "history_samples": max(config.history_samples, config.prediction_order, 1),
        "prediction_order": config.prediction_order,
        "pitch_taps": config.pitch_taps,
        "head_width": config.head_width,
        "input_bytes": 4 * widest,
        "unit_inputs": config.head_channels,
    }
    return sizes | in_vectors({"unit": config.head_channels})


def _bunch_head_parts(network: Any) -> dict[str, np.ndarray]:
    config = network.config
    shape = [config.skip_channels, config.bunch_samples, 2 * config.head_channels]
    given = wide_halves(np.reshape(network.head_kernel, shape))
    return {
        "skip_bias": wide(network.skip_bias),
        "given": pack_matrix(given.reshape([config.skip_channels, -1])),
        "given_bias": wide_halves(network.head_bias),
        "recent": pack_matrix(wide_halves(network.recent_kernel)),
        "head1": pack_matrix(np.asarray(network.head1_kernel)),
        "head1_bias": wide(network.head1_bias),
        "head2": pack_matrix(np.asarray(network.head2_kernel)),
        "head2_bias": wide(network.head2_bias),
    }
