"""Recurrent layers as one operation in an exported graph, which would unroll them over time."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

LAYERS = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)
FUNCTIONS: dict[str, Any] = {
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


@torch.library.custom_op("onepass::recurrent", mutates_args=())
def recurrent(
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    mode: str,
    has_bias: bool,
    layers: int,
    bidirectional: bool,
) -> list[torch.Tensor]:
    """Return the outputs [batch, time, channels] of recurrent layers, and their last states."""
    first: Any = states if mode == "LSTM" else states[0]
    return [
        each.clone()
        for each in FUNCTIONS[mode](
            x, first, weights, has_bias, layers, 0.0, False, bidirectional, True
        )
    ]


@recurrent.register_fake
def _shapes(
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    mode: str,
    has_bias: bool,
    layers: int,
    bidirectional: bool,
) -> list[torch.Tensor]:
    channels = states[0].shape[-1] * (2 if bidirectional else 1)
    return [x.new_empty(*x.shape[:2], channels), *(torch.empty_like(each) for each in states)]


def _forward(layer: Any, x: Any, states: Any = None) -> tuple[torch.Tensor, Any]:
    if not isinstance(x, torch.Tensor) or x.dim() != 3:
        raise TypeError("recurrent layers must read a batch [batch, time, channels], not packed")
    x = x if layer.batch_first else x.transpose(0, 1)
    mode, is_lstm = layer.mode, layer.mode == "LSTM"
    if states is None:
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        zeros = x.new_zeros(count, x.shape[0], layer.hidden_size)
        states = (zeros, zeros) if is_lstm else zeros
    torch._check(x.shape[-1] == layer.input_size)  # known, though x may come from a condition
    weights = [getattr(layer, name) for names in layer._all_weights for name in names]
    y, *last = recurrent(
        x,
        list(states) if is_lstm else [states],
        weights,
        mode,
        layer.bias,
        layer.num_layers,
        layer.bidirectional,
    )
    return y if layer.batch_first else y.transpose(0, 1), tuple(last) if is_lstm else last[0]


@contextlib.contextmanager
def as_operations(module: torch.nn.Module) -> Iterator[None]:
    """Let the recurrent layers of a module run as custom operations inside the block."""
    layers: list[Any] = [each for each in module.modules() if isinstance(each, LAYERS)]
    for layer in layers:
        layer.forward = functools.partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
