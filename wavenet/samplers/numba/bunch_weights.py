"""The weights of a vocoder as the compiled step reads them: its front, its layers and its head.

The head's first matrix gives all samples of a bunch what the layers know, each as two halves of a
gate, padded to whole vectors like those of a layer.
"""

import numpy as np

from wavenet.samplers.numba.kernels import pack_matrix
from wavenet.samplers.numba.weights import (
    PackedWeights,
    in_vectors,
    layer_parts,
    layer_sizes,
    packed,
    plan_type,
    wide,
    wide_halves,
)

_SIZES = (
    *("history_samples", "prediction_order", "pitch_taps", "head_width", "input_bytes"),
    *("unit_inputs", "unit_vectors", "unit_bytes"),
)
_WEIGHTS = ("given", "given_bias", "recent")
_BUFFERS = ("inputs", "gates", "head_units")

BUNCH_PLAN = plan_type((*_SIZES, *_WEIGHTS, *_BUFFERS))
"""The plan of a vocoder."""


def pack_vocoder(network) -> PackedWeights:
    """Return a copy of the present weights of a `VocoderWaveNet`."""
    parts = {
        "front": pack_matrix(np.asarray(network.front_kernel)),
        "front_bias": wide(network.front_bias),
    }
    parts |= layer_parts(network) | _head_parts(network)
    return packed(network, BUNCH_PLAN, layer_sizes(network) | _sizes(network), parts)


def _sizes(network) -> dict[str, int]:
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


def _head_parts(network) -> dict[str, np.ndarray]:
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
