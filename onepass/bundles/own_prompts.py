"""Signatures of a user's model that take the options of `Draw`, such as a prompt.

`prompted` generates whole rows, and `prompted_chunk` the next segment of rows whose state the
client keeps. A model has the inputs of those options that suit it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.audio_chunks import first_state
from onepass.bundles.audio_signatures import noise_source
from onepass.bundles.functions import (
    Exported,
    Tensors,
    by_rows,
    concrete_function,
    row_function,
)
from onepass.bundles.own_conditions import Conditions
from onepass.bundles.own_signatures import (
    StreamingSequence,
    drawer,
    element_range,
    element_type,
)
from onepass.bundles.prompt_inputs import (
    ENDED,
    NUM_PREFIX,
    PREFIX,
    PROMPTED,
    PROMPTED_CHUNK,
    WITH_LOG_PROB,
)
from onepass.bundles.prompted_rows import Part, Rows, restrict_tokens
from onepass.bundles.signature import COMPILED, LOG_PROB, STATE, Signature, TensorInfo
from onepass.draw import LISTS, OPTIONS, Facts, choice_of, prompt_inputs
from onepass.likelihoods.capabilities import table_of
from onepass.model import Autoregressive
from onepass.networks.prompts import NO_STOP, Prompt

SHORTEST_BUCKET = 16  # length that the shortest lists are padded to
STOP = "stop"
INT32, FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)


def offer_prompts(exported: Exported, model: Autoregressive, streaming: StreamingSequence) -> None:
    """Add the signatures `prompted` and `prompted_chunk` of a model with a step."""
    longest = exported.serving["limits"]["max_frames"]
    base, prompt = _with_prompt(exported, model, longest)
    rows = Rows(streaming, model)
    state = {
        f"{STATE}{name}": TensorInfo(np.dtype(dtype.as_numpy_dtype), (None, *shape), default=fill)
        for name, (dtype, shape, fill) in (streaming.state() | rows.memory).items()
    }
    returned = {name: TensorInfo(info.dtype, info.shape) for name, info in state.items()}
    start = {"start": TensorInfo(INT32, (None,), low=0, default=0)}
    nats, flags = TensorInfo(FLOAT32, (None, None)), TensorInfo(INT32, (None,))
    whole = Signature({**prompt, WITH_LOG_PROB: _flag()}, {**base.outputs, LOG_PROB: nats})
    chunk = Signature({**prompt, **start, **state}, {**base.outputs, ENDED: flags, **returned})
    for name, signature in ((PROMPTED, whole), (PROMPTED_CHUNK, chunk)):
        made = _of_steps(rows, streaming, model, signature)
        exported.offer(name, signature, concrete_function(signature, made))
    exported.serving["cropped"][LOG_PROB] = {"axis": 1, "length": "num_samples"}


def offer_prompts_of_shape(
    exported: Exported, model: Autoregressive, shape: tuple[int, ...], conditions: Conditions
) -> None:
    """Add the signature `prompted` of a model that generates arrays of one shape.

    Nothing is added for a model in raster order that is not over tokens.
    """
    in_time = model.order == "time"
    if not in_time and table_of(model.distribution) is None:
        return
    base, prompt = _with_prompt(exported, model, shape[0] if in_time else 0)
    nats = TensorInfo(FLOAT32, (None, *shape))
    signature = Signature({**prompt, WITH_LOG_PROB: _flag()}, {**base.outputs, LOG_PROB: nats})
    made = _of_passes(model, shape, signature, conditions)
    exported.offer(PROMPTED, signature, row_function(signature, made))


def _with_prompt(
    exported: Exported, model: Autoregressive, longest: int
) -> tuple[Signature, dict[str, TensorInfo]]:
    """Return the signature `compiled`, and its inputs with a prompt's; add rules that pad lists."""
    base = Signature.from_dict(exported.serving["signatures"][COMPILED])
    found = prompt_inputs(_facts(model, longest))
    inputs = {name: TensorInfo(np.dtype(each.dtype), *each[1:]) for name, each in found.items()}
    for name in filter(inputs.__contains__, LISTS):
        most = int(inputs[LISTS[name]].high or 1)
        sizes = [SHORTEST_BUCKET << n for n in range(32) if SHORTEST_BUCKET << n < most]
        rule = {"axis": 1, "length": LISTS[name], "buckets": [*sizes, most]}
        exported.serving["padded"] = {**exported.serving.get("padded", {}), name: rule}
    return base, {**base.inputs, **inputs}


def _facts(model: Autoregressive, longest: int) -> Facts:
    of_tokens = table_of(model.distribution) is not None
    return Facts(
        model.order == "time",
        of_tokens,
        model.codec.levels,
        element_type(model).name,
        *element_range(model),
        longest,
    )


def _flag() -> TensorInfo:
    return TensorInfo(INT32, (None,), 0, 1, 0)


def _encode(model: Autoregressive) -> Callable[..., tf.Tensor]:
    return lambda elements, name: tf.cast(model.codec.encode(elements), tf.int32)


def _heat(model: Autoregressive, given: Tensors) -> Any:
    return choice_of(given, _encode(model), model.codec.levels or 0)


def _prompt(model: Autoregressive, given: Tensors, symbols: tf.Tensor) -> Prompt:
    stop = tf.constant(NO_STOP)
    if STOP in given:
        stop = OPTIONS[STOP].tensor_of(given, STOP, _encode(model), model.codec.levels or 0)
    return Prompt(symbols, given[NUM_PREFIX], stop)


def _log_prob(
    model: Autoregressive,
    conditions: Conditions,
    elements: Any,
    prompt: Prompt | None,
    given: Tensors,
) -> tf.Tensor:
    """Return log probabilities of a row, 0 after the element that ends it or if not requested."""
    symbols = model.codec.encode(elements)

    def find_log_prob() -> tf.Tensor:
        length = tf.shape(elements)[1] if model.order == "time" else None
        nats = tf.cast(model.log_prob(elements, conditions.of(given, length)), tf.float32)
        return nats if prompt is None else tf.where(prompt.find_ended(symbols), 0.0, nats)

    def nothing() -> tf.Tensor:
        return tf.zeros(tf.shape(elements), tf.float32)

    return tf.cond(given[WITH_LOG_PROB][0] > 0, find_log_prob, nothing)


def _of_steps(
    rows: Rows, streaming: StreamingSequence, model: Autoregressive, signature: Signature
) -> Callable[[Tensors], Tensors]:
    states = {name: f"{STATE}{name}" for name in streaming.state()}
    is_chunk = ENDED in signature.outputs

    def row(given: Tensors, longest: tf.Tensor) -> Tensors:
        start = given["start"] if is_chunk else tf.zeros_like(given["row"])
        count = _counts(given)[0]
        # Padded, because the loop reads whole pieces, up to one piece beyond the last symbol.
        known = model.codec.encode(given[PREFIX][:, :count])
        part = Part(
            noise_source(given, start),
            _heat(model, given),
            _prompt(model, given, _pad_values(known, count + rows.longest_loop)),
            count,
            _pad_values(given.get("frames"), count + rows.longest_loop),
        )
        state = {name: given[key] for name, key in states.items()} if is_chunk else None
        first = streaming.begin_rows(given, state or first_state(streaming, 1))
        for name, (dtype, shape, _) in rows.memory.items():
            first[name] = given[f"{STATE}{name}"] if is_chunk else tf.zeros([1, *shape], dtype)
        symbols, ended, after = rows.make_symbols(part, first)
        elements = tf.cast(model.codec.decode(symbols), element_type(model))
        outputs = {
            streaming.output: _pad_values(tf.cast(elements, tf.float32), longest)[0],
            "num_samples": count,
        }
        if is_chunk:
            stored = {f"{STATE}{name}": value[0] for name, value in after.items()}
            return {**outputs, ENDED: tf.cast(ended, tf.int32), **stored}
        nats = _log_prob(model, streaming.conditions, elements, part.prompt, given)
        return {**outputs, LOG_PROB: _pad_values(nats, longest)[0]}

    def make_rows(given: Tensors) -> Tensors:
        given = streaming.join_frames(given)
        counts = _counts(given)
        longest = tf.shape(given["frames"])[1] if "frames" in given else tf.reduce_max(counts)
        return by_rows(signature, lambda one: row(one, longest))(given)

    return make_rows


def _counts(given: Tensors) -> tf.Tensor:
    if "frames" not in given:
        return given["num_samples"]
    return tf.minimum(given["num_frames"], tf.shape(given["frames"])[1])


def _pad_values(values: Any, length: Any) -> Any:
    if values is None:
        return None
    cut = values[:, :length]
    sides = [[0, 0], [0, length - tf.shape(cut)[1]]] + [[0, 0]] * (values.shape.rank - 2)
    return tf.pad(cut, sides)


def _of_passes(
    model: Autoregressive, shape: tuple[int, ...], signature: Signature, conditions: Conditions
) -> Callable[[Tensors], Tensors]:
    output = next(name for name in signature.outputs if name != LOG_PROB)
    draw = drawer(model, shape, conditions, restrict_tokens(model.distribution))
    drawn = tf.function(draw, autograph=False, jit_compile=True)

    def row(given: Tensors) -> Tensors:
        source = noise_source(given, tf.zeros_like(given["row"]))
        prompt = None
        if PREFIX in given:
            known = _pad_values(model.codec.encode(given[PREFIX]), shape[0])
            prompt = _prompt(model, given, tf.ensure_shape(known, [1, shape[0]]))
        row = tf.ensure_shape(given["row"], [1])
        symbols = drawn(source.key[0], row, _heat(model, given), conditions.of(given), prompt)
        symbols = tf.ensure_shape(symbols, [1, *shape])
        if prompt is not None:
            symbols = prompt.fill_ended(symbols)
        elements = model.codec.decode(symbols)
        nats = _log_prob(model, conditions, elements, prompt, given)
        made = {output: tf.cast(elements[0], signature.outputs[output].dtype), LOG_PROB: nats[0]}
        known = signature.outputs.items()
        return {name: tf.ensure_shape(made[name], info.shape[1:]) for name, info in known}

    return row
