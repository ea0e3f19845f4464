"""Call users' networks of any kind in a uniform way."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.networks.conditions import Frames, KerasInputs, Specs, as_specs, shape_at
from onepass.networks.other_sizes import called_in_training
from onepass.networks.outputs import check_stateless, one_line_errors
from onepass.networks.trainable import attribute_of, layers_within

# Lengths that are multiples of most numbers of which a network may take multiples only.
WHOLE = (64, 720, 1024, 1000, 1323)


class CausalNetwork(Protocol):
    """A function from elements, and optionally a condition, to parameters at every time step.

    Law: the output at time step t depends on steps 0 to t of the arguments, but neither on later
    steps nor on the number of steps.
    """

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor, /) -> tf.Tensor:
        """Return [batch, time, parameters]; inputs and condition are [batch, time, channels]."""


@runtime_checkable
class SteppedNetwork(Protocol):
    """A causal network with a user-defined step.

    Law: calling `step` on consecutive parts of a sequence, each with the state that the previous
    call returned, gives the same outputs as one call of the network.
    """

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first time step, a structure of tensors."""

    def step(
        self, inputs: tf.Tensor, state: Any, condition: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Any]:
        """Return the parameters of the next n steps, [batch, n, parameters], and the new state."""


def brings_step(network: Any) -> bool:
    """Return whether a network has a user-defined step, the methods of a `SteppedNetwork`."""
    try:
        return isinstance(network, SteppedNetwork)
    except Exception:  # a network may raise any error where it looks up attributes
        return False


def keras_inputs(network: Any) -> list[tf.TensorSpec]:
    """Return the input specs of a functional or built sequential Keras model, elements first."""
    return KerasInputs(network).specs


def declared_inputs(network: Any) -> list[tf.TensorSpec]:
    """Return the input specs of a Keras model, or those in a `tf.function`'s signature, or []."""
    own = keras_inputs(network)
    for part in (network, type(network).__call__) if callable(network) else ():
        signature = None if own else attribute_of(part, "input_signature")
        if isinstance(signature, list | tuple):
            own = [spec for spec in signature if isinstance(spec, tf.TensorSpec)]
    return own


def input_spec(network: Any, given: tf.TensorSpec | None = None) -> tf.TensorSpec:
    """Return the spec of a network's first argument: given, declared, or one channel of floats."""
    own = declared_inputs(network)
    if given is not None:
        return given
    return own[0] if own else tf.TensorSpec([None, None, 1], tf.float32)


def image_spec(
    network: Any, channels: int | None, given: tf.TensorSpec | None = None
) -> tf.TensorSpec:
    """Return the spec of the images that a network takes: as given, as declared, or float32."""
    if given is not None:
        return given
    own = declared_inputs(network)
    if own and own[0].shape.rank == 4:
        return own[0]
    return tf.TensorSpec([None, None, None, channels or 1], tf.float32)


def condition_specs(network: Any, given: Any = None) -> Specs:
    """Return the specs of a network's arguments after the first, by name and in order.

    Args:
      given: a spec, specs by name or in a list, or the number of channels of a condition with a
        time axis; None: those in the network's attribute `conditions`, specs by name; or the
        further inputs of a Keras model, and trial calls find which of them are `Memory`.
    """
    inputs, specs = KerasInputs(network), as_specs(given)
    own = attribute_of(network, "conditions")
    own = dict(own) if isinstance(own, Mapping) else {}
    names = list(own) or inputs.names
    if specs and specs.keys() == set(names):
        return {name: specs[name] for name in names}
    if specs or not names:
        return specs
    return own or inputs.conditions(as_function(network, inputs.specs))


def as_function(network: Callable, specs: Sequence[tf.TensorSpec]) -> Callable[..., tf.Tensor]:
    """Return a function of tensors that calls the network in inference mode.

    Raises UserError for a module of PyTorch or of Keras on a backend other than TensorFlow,
    NotCausalError if it calls a layer with training=True, and ValueError if it cannot be built or
    has a stateful layer.
    """
    _check_backend(network)
    check_stateless(network)
    _check_training(network)
    inputs = KerasInputs(network)
    options = {"training": False} if _takes_training(network) else {}

    def call(*arguments: tf.Tensor) -> tf.Tensor:
        if len(inputs.specs) > 1:
            return network(inputs.pack_inputs(arguments), **options)
        return network(*arguments, **options)

    if specs and attribute_of(network, "built") is False:
        _build(call, specs)
    return call


def _build(call: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> None:
    hops = [n * spec.hop for spec in specs if isinstance(spec, Frames) for n in (2, 8, 32)]
    for length in (*hops, 2, *WHOLE):
        try:
            call(*(tf.zeros(_built_shape(x, length), x.dtype) for x in specs))
            return
        except (ValueError, TypeError, tf.errors.OpError):
            continue
    with one_line_errors(specs):
        call(*(tf.zeros(_built_shape(x, max(hops, default=2)), x.dtype) for x in specs))


def _built_shape(spec: tf.TensorSpec, length: int) -> list[int]:
    if isinstance(spec, Frames):
        return shape_at(spec, 2, [length])
    return [2, *(size or length for size in spec.shape[1:])]


def _check_backend(network: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(network, torch.nn.Module):
        raise UserError(
            f"`network` must be converted from PyTorch, got {type(network).__name__}:"
            " onepass.from_torch(module, inputs=example)."
        )
    keras = sys.modules.get("keras")
    backend = "tensorflow" if keras is None else keras.config.backend()
    if backend != "tensorflow" and any(True for _ in layers_within(network)):
        raise UserError(
            f"`network` must compute with TensorFlow, but Keras uses {backend}; set"
            " KERAS_BACKEND=tensorflow before Keras is imported."
        )


def _check_training(network: Any) -> None:
    from onepass.step.streams import NotCausalError  # its package imports this file

    for layer in filter(None, map(called_in_training, layers_within(network))):
        raise NotCausalError(
            f"`network` must not change from call to call, but calls its layer `{layer}` with"
            " training=True; leave `training` to the caller."
        )


def _takes_training(network: Callable) -> bool:
    if attribute_of(network, "input_signature") is not None:  # then it takes only tensors
        return False
    if any(attribute_of(network, name) is not None for name in ("get_layer", "_layers")):
        return True
    for part in (network, type(network).__call__):
        try:
            return "training" in inspect.signature(part).parameters
        except Exception:  # a network may raise any error where it looks up attributes
            continue
    return False
