"""The functions of a model as one `tf.Module` that a SavedModel can hold."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from autoregressive.model import Autoregressive
from likelihoods.capabilities import pixel_channels
from likelihoods.codec import Codec
from likelihoods.distribution import Distribution

# Rows for which a step is stored.
STEP_ROWS = (1, 8)


class Program(tf.Module):
    """All that a model computes: network, step, distribution and codec.

    Args:
      model: whose functions are traced here, once each.
      with_step: store the step, too.
    """

    def __init__(self, model: Autoregressive, with_step: bool):
        super().__init__(name="autoregressive")
        network = model.symbol_network
        specs = network_specs(model)
        self.call = _function(network.call, specs)
        traced = [self.call.get_concrete_function()]
        if with_step:
            self.initial_states, self.steps = [], []
            for rows in STEP_ROWS:
                state, step = stored_step(network.stepped, specs, rows)
                self.initial_states.append(state)
                self.steps.append(step)
                traced += [state.get_concrete_function(), step.get_concrete_function()]
        dtype = traced[0].outputs[0].dtype
        self._add_distribution(model.distribution, model.order, dtype)
        self._add_codec(model.codec, model.distribution.levels, model.order)
        # What the functions read has to be found from here.
        self.weights = list({v.ref(): v for f in traced for v in f.variables}.values())

    def _add_distribution(
        self, distribution: Distribution, order: str, parameters_dtype: tf.DType
    ) -> None:
        channels = pixel_channels(distribution)
        axes = 2 if order == "time" else 3 if channels else 4
        dtype = tf.float32 if distribution.levels is None else tf.int32
        parameters = tf.TensorSpec([None] * axes + [distribution.num_parameters], parameters_dtype)
        event = [channels] if channels else []
        symbols = tf.TensorSpec([None] * axes + event, dtype)
        drawn = distribution.noise(0, tf.range(1), 0, 1)
        noise = tf.TensorSpec([None] * axes + [distribution.noise_channels], drawn.dtype)
        scalar = tf.TensorSpec([], tf.int32)
        key, rows = tf.TensorSpec([2], tf.uint32), tf.TensorSpec([None], tf.int32)
        self.log_prob = _function(distribution.log_prob, [parameters, symbols])
        self.draw = _function(distribution.sample, [parameters, noise, tf.TensorSpec([])])
        self.mode = _function(lambda x: distribution.mode(tf.cast(x, tf.float32)), [parameters])
        self.noise = _function(distribution.noise, [key, rows, scalar, scalar])

    def _add_codec(self, codec: Codec, levels: int | None, order: str) -> None:
        axes = [None] * (2 if order == "time" else 4)
        symbols = tf.TensorSpec(axes, tf.float32 if levels is None else tf.int32)
        elements = tf.TensorSpec(axes, tf.as_dtype(codec.decode(tf.zeros([], symbols.dtype)).dtype))
        self.encode = _function(codec.encode, [elements])
        self.decode = _function(codec.decode, [symbols])
        self.scale = _function(codec.scale, [symbols])


def network_specs(model: Autoregressive) -> list[tf.TensorSpec]:
    """Return the network's arguments, of any batch and length."""
    network = model.symbol_network
    return [network.inputs] if network.condition is None else [network.inputs, network.condition]


def stored_step(stepped: Any, specs: Sequence[tf.TensorSpec], rows: int):
    """Return the functions `initial_state()` and `step(inputs, state[, condition])`."""
    state = stepped.initial_state(rows)
    structure = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), state)
    sized = [tf.TensorSpec([rows, 1, *spec.shape[2:]], spec.dtype) for spec in specs]
    first = _function(lambda: stepped.initial_state(rows), [])
    step = _function(stepped.step, [sized[0], structure, *sized[1:]])
    return first, step


def _function(function: Callable, specs: Sequence[Any]) -> Any:
    return tf.function(function, autograph=False, input_signature=list(specs))
