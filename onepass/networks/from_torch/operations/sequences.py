"""Rules for attention, recurrent layers, loops and branches."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.operations.products import _linear
from onepass.networks.from_torch.table import as_dtype, aten, axis_of, sizes
from onepass.step.tracing import SHAPES

MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}


@aten("scaled_dot_product_attention")
def _attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tf.Tensor:
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        count = query.shape[-3] // key.shape[-3]
        key, value = (tf.repeat(each, count, axis_of(each, -3)) for each in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = tf.matmul(query, key, transpose_b=True) * as_dtype(factor, query.dtype)
    # Not minus infinity, of which a gradient would be NaN.
    lowest = tf.constant(scores.dtype.min, scores.dtype)
    if is_causal:
        rows, columns = sizes(query)[-2], sizes(key)[-2]
        scores = tf.where(tf.range(columns) <= tf.range(rows)[:, None], scores, lowest)
    if mask is not None:
        scores = tf.where(mask, scores, lowest) if mask.dtype.is_bool else scores + mask
    weights = tf.nn.softmax(scores)
    if mask is not None and mask.dtype.is_bool and _reads_an_argument(mask):
        weights = tf.where(
            mask, weights, tf.zeros([], weights.dtype)
        )  # a row may be masked whole, and then is zero
    return tf.matmul(weights, value)


def _reads_an_argument(mask: tf.Tensor) -> bool:
    if tf.executing_eagerly():
        return True
    waiting, seen = [mask.op], set()
    while waiting:
        op = waiting.pop()
        if op.type == "Placeholder":
            return True
        if op not in seen and op.type not in SHAPES:
            seen.add(op)
            waiting += [x.op for x in op.inputs]
    return False


def _gru(gates: tf.Tensor, h: tf.Tensor, weight: tf.Tensor, bias: Any) -> tf.Tensor:
    reset, update, new = tf.split(gates, 3, -1)
    own_reset, own_update, own_new = tf.split(_linear(h, weight, bias), 3, -1)
    update = tf.sigmoid(update + own_update)
    new = tf.tanh(new + tf.sigmoid(reset + own_reset) * own_new)
    return (1 - update) * new + update * h


def _lstm(
    gates: tf.Tensor, state: Sequence[tf.Tensor], weight: tf.Tensor, bias: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    h, cell = state
    enter, forget, new, leave = tf.split(gates + _linear(h, weight, bias), 4, -1)
    cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(new)
    return tf.sigmoid(leave) * tf.tanh(cell), cell


def _step_function(mode: str, weights: Sequence[tf.Tensor]) -> Callable[[Any, tf.Tensor], Any]:
    weight, bias = weights[1], weights[3] if len(weights) > 2 else None
    if mode == "GRU":
        return lambda state, gates: _gru(gates, state, weight, bias)
    if mode == "LSTM":
        return lambda state, gates: _lstm(gates, state, weight, bias)
    activation = tf.tanh if mode == "RNN_TANH" else tf.nn.relu
    return lambda state, gates: activation(gates + _linear(state, weight, bias))


@aten("onepass.recurrent")
def _recurrent(
    x: tf.Tensor,
    states: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    mode: str,
    layers: int,
    ways: int,
) -> list[tf.Tensor]:
    """Return outputs [batch, time, channels] and the last states of recurrent layers."""
    each = len(weights) // (layers * ways)  # two, or four with biases
    last: list[list[tf.Tensor]] = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            own = weights[place * each : (place + 1) * each]
            gates = _linear(x, own[0], own[2] if each == 4 else None)
            first = tuple(state[place] for state in states)
            found = tf.scan(
                _step_function(mode, own),
                tf.transpose(tf.reverse(gates, [1]) if way else gates, [1, 0, 2]),
                first if mode == "LSTM" else first[0],
            )
            found = found if mode == "LSTM" else (found,)
            last.append([state[-1] for state in found])
            y = tf.transpose(found[0], [1, 0, 2])
            outputs.append(tf.reverse(y, [1]) if way else y)
        x = outputs[0] if ways == 1 else tf.concat(outputs, -1)
    return [x, *(tf.stack(list(each)) for each in zip(*last, strict=True))]


@aten("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def _refuse_recurrent(*arguments: Any) -> None:
    raise ValueError(
        "recurrent layers must be exported by onepass.from_torch(module), since torch fixes the"
        " length when it exports them"
    )


def _register_cell(name: str) -> None:
    @aten(f"{name}_cell")
    def rule(x: tf.Tensor, state: Any, *weights: Any) -> Any:
        bias = weights[2] if len(weights) > 2 else None
        found = _step_function(MODES[name], weights)(state, _linear(x, weights[0], bias))
        return list(found) if name == "lstm" else found


for _name in MODES:
    _register_cell(_name)


@aten("wrap_with_set_grad_enabled")
def _with_gradients(is_on: bool, body: Callable, *arguments: Any) -> Any:
    return body(*arguments)


@aten("wrap_with_autocast")
def _with_autocast(
    device: Any, dtype: Any, is_on: bool, cache: Any, body: Callable, *arguments: Any
) -> Any:
    if is_on:
        raise ValueError("autocast must be off")
    return body(*arguments)


@aten("cond")
def _cond(chosen: Any, first: Callable, second: Callable, operands: Sequence[Any] = ()) -> Any:
    if isinstance(chosen, bool):
        return (first if chosen else second)(*operands)
    chosen = tf.reshape(chosen, [])
    return tf.cond(chosen, lambda: list(first(*operands)), lambda: list(second(*operands)))


@aten("scan")
def _scan(
    body: Callable, first: Sequence[tf.Tensor], xs: Sequence[tf.Tensor], more: Sequence[Any] = ()
) -> list[tf.Tensor]:
    count = len(first)
    row = [x[0] for x in xs]
    shapes = body(*first, *row, *more)[count:]
    carry = (list(first), [tf.zeros_like(each) for each in shapes])

    def step(state: Any, rows: list[tf.Tensor]) -> Any:
        found = list(body(*state[0], *rows, *more))
        return found[:count], found[count:]

    states, outputs = tf.scan(step, list(xs), carry)
    return [*(state[-1] for state in states), *outputs]
