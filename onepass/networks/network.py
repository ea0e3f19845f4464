"""Call users' networks of any kind in a uniform way, at other sizes, and check what they return.

For other sizes, the layers of a Keras model that is a graph of layers are called individually; no
layer is copied. Keras checks input shapes only when the model as a whole is called. Sizes stored in
layers are replaced where they are recognised.
"""

import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.likelihoods.distribution import Distribution
from onepass.networks.conditions import Frames, KerasInputs, Specs, as_specs, shape_at
from onepass.networks.elements import Layout
from onepass.networks.trainable import attribute_of, layers_within, single_layers

SMALL = 4  # time steps, or pixels a side, that every network takes


def output_shape(
    call: Callable[..., Any], specs: Sequence[tf.TensorSpec], axes: int, few: int = SMALL
) -> list[int]:
    """Return the output's shape for one small row; raise ValueError unless it is of its size."""
    sizes = [1, *(size or few for size in specs[0].shape[1 : 1 + axes])]
    with one_line_errors(specs):
        rest = [tf.zeros(shape_at(x, 1, sizes[1:]), x.dtype) for x in specs[1:]]
        outputs = call(tf.zeros([*sizes, *specs[0].shape[len(sizes) :]], specs[0].dtype), *rest)
    names = "batch, time" if axes == 1 else "batch, height, width"
    shape = outputs.shape.as_list() if tf.is_tensor(outputs) else None
    if shape is None or shape[:-1] != sizes:
        returned = type(outputs).__name__ if shape is None else outputs.shape
        raise ValueError(
            f"`network` must return [{names}, parameters], as long as its input; for {sizes} it"
            f" returns {returned}."
        )
    return shape


def check_parameters(network: Any, distribution: Distribution, layout: Layout) -> None:
    """Raise ValueError unless a network's output has the shape that the distribution needs."""
    specs = [network.inputs, *network.conditions.values()]
    shape = output_shape(network.call, specs, 1 if layout.order == "time" else 2, network.few)
    expected, each = distribution.num_parameters, ""
    if layout.channels or (layout.order == "raster" and not layout.whole_pixels):
        expected, each = expected * specs[0].shape[-1], f" and {specs[0].shape[-1]} channels"
    if shape[-1] != expected:
        words = f"{expected} output channels for {type(distribution).__name__}{each}"
        raise ValueError(f"`network` must have {words}, got {shape[-1]}.")


def check_stateless(network: Any) -> None:
    """Raise ValueError for a network with a stateful recurrent layer of Keras."""
    for layer in single_layers(network):
        if attribute_of(layer, "stateful", False) is True:
            raise ValueError(
                f"`network` must start from the same state in every call, but its layer"
                f" `{layer.name}` is stateful; build it with stateful=False, since the library"
                " keeps the state itself."
            )


@contextlib.contextmanager
def one_line_errors(specs: Sequence[tf.TensorSpec]) -> Iterator[None]:
    """Convert errors of Keras or TensorFlow inside the block into a one-line ValueError."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, tf.errors.OpError) as error:
        axes = [", ".join("any" if n is None else str(n) for n in spec.shape) for spec in specs]
        pairs = zip(specs, axes, strict=True)
        given = " and ".join(f"{spec.dtype.name} [{sizes}]" for spec, sizes in pairs)
        raise ValueError(
            f"`network` cannot be called on {given}: {one_line(error)} (pass `inputs` if it reads a"
            " different shape or dtype)."
        ) from error


def one_line(error: BaseException) -> str:
    """Return the first informative line of a Keras or TensorFlow error, without terminal codes."""
    lines = str(error).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    kept = [line.strip() for line in lines if line.strip()]
    kept = [line for line in kept if not line.startswith("Exception encountered when")] or kept
    return " ".join((kept or [type(error).__name__])[0].split())[:300].rstrip(".")


def size_text(sizes: Sequence[int | None]) -> str:
    """Return the sizes of a sequence, [time], or of an image, [height, width], in words."""
    return f"{sizes[0]} elements" if len(sizes) == 1 else " x ".join(map(str, sizes)) + " pixels"


# Errors that a call may raise if it does not support a size.
ERRORS = (ValueError, TypeError, IndexError, AttributeError, tf.errors.OpError)


class BakedSizeError(ValueError):
    """An error that names a layer that cannot be called at another size."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(reason)
        self.layer = layer


def graph_of(network: Any) -> Any:
    """Return the graph of layers of a functional or built sequential Keras model, or None."""
    call = getattr(type(network), "call", None)
    if not str(getattr(call, "__module__", "")).startswith("keras."):
        return None  # not a Keras model, or one that overrides `call`
    graph = attribute_of(network, "_functional") or network
    return graph if hasattr(graph, "_run_through_graph") else None


def built_sizes(network: Any, axes: int) -> tuple[int, ...]:
    """Return the declared sizes of a Keras model's first input; () if they vary or are unknown."""
    try:
        sizes = tuple(attribute_of(network, "inputs")[0].shape[1 : 1 + axes])
    except (AttributeError, ValueError, TypeError, IndexError):
        return ()
    return sizes if len(sizes) == axes and all(isinstance(size, int) for size in sizes) else ()


class OtherSizes:
    """A Keras model whose inputs may have sizes other than those it was built for.

    Layers' stored copies of these are replaced in "all" shapes, repetition counts, and constants,
    which are cut to the input's size; for the "first" matching axis of a shape alone, since the
    number of channels may be equal; or nowhere, "".
    """

    def __init__(
        self, network: Any, sizes: Sequence[int], replaces: Literal["", "first", "all"]
    ) -> None:
        self.network, self._sizes, self._replaces = network, tuple(sizes), replaces

    def __call__(self, *inputs: tf.Tensor) -> Any:
        """Return the outputs in inference mode for the model's inputs, given as a flat list."""
        count = len(self._sizes)
        known, asked = inputs[0].shape[1 : 1 + count], tf.shape(inputs[0])[1 : 1 + count]
        now = [asked[i] if size is None else size for i, size in enumerate(known)]
        is_first = self._replaces == "first"
        replaced = _Replaced(self._sizes, now, is_first) if self._replaces else None
        return _run(self.network, list(inputs) if len(inputs) > 1 else inputs[0], replaced)


def _run(model: Any, inputs: Any, replaced: "_Replaced | None") -> Any:
    graph = graph_of(model)
    constants = _constants(graph) if replaced else {}

    def wrap_operation(operation: Any) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(operation, "_call_has_training_arg", False):
                options["training"] = False
            try:
                if graph_of(operation) is not None and built_sizes(operation, 1):
                    return _run(operation, arguments[0], replaced)
                if replaced is None:
                    return operation(*arguments, **options)
                with tf.name_scope(operation.name):  # errors contain the name
                    arguments, options = tf.nest.map_structure(
                        lambda x: replaced.constant(x) if id(x) in constants else x,
                        (arguments, options),
                    )
                return replaced.call_operation(operation, *arguments, **options)
            except BakedSizeError:
                raise
            except ERRORS as error:
                raise BakedSizeError(operation.name, one_line(error)) from error

        return call

    outputs = graph._run_through_graph(
        graph._standardize_inputs(inputs), operation_fn=wrap_operation
    )
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def _constants(graph: Any) -> dict[int, Any]:
    nodes = [node for each in graph.operations for node in each._inbound_nodes]
    given = [tf.nest.flatten([node.arguments.args, node.arguments.kwargs]) for node in nodes]
    return {
        id(x): x for each in given for x in each if isinstance(x, np.ndarray | tf.Tensor) and x.ndim
    }


class _Replaced:
    def __init__(self, built: Sequence[int], now: Sequence[Any], is_first: bool) -> None:
        self._now, self._is_first = dict(zip(built, now, strict=True)), is_first

    def _axes(self, shape: Sequence[Any]) -> dict[int, Any]:
        left, found = dict(self._now), {}
        for axis, size in enumerate(shape):
            if isinstance(size, int) and size in left:
                found[axis] = left.pop(size) if self._is_first else left[size]
        return found

    def _shape(self, shape: Sequence[Any]) -> list[Any]:
        return [self._axes(shape).get(axis, size) for axis, size in enumerate(shape)]

    def constant(self, values: Any) -> Any:
        for axis, size in self._axes(list(values.shape)).items():
            values = tf.gather(values, tf.range(size), axis=axis)
        return values

    def call_operation(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        ops = sys.modules["keras"].ops
        kind, first = type(operation).__name__, arguments[0] if arguments else None
        if not type(operation).__module__.startswith("keras."):
            return operation(*arguments, **options)
        if kind == "Reshape" and hasattr(operation, "target_shape"):
            shape = [ops.shape(first)[0], *self._shape(operation.target_shape)]
            return ops.reshape(first, shape)
        if kind == "Reshape" and hasattr(operation, "newshape"):
            return ops.reshape(first, self._shape(operation.newshape))
        if kind == "BroadcastTo":
            return ops.broadcast_to(first, self._shape(operation.shape))
        if kind == "RepeatVector":
            return ops.repeat(ops.expand_dims(first, 1), self._shape([operation.n])[0], axis=1)
        return operation(*arguments, **options)


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


def declared_inputs(network: Any) -> list[tf.TensorSpec]:
    """Return the input specs of a Keras model, or those in a `tf.function`'s signature, or []."""
    own = KerasInputs(network).specs
    for part in (network, type(network).__call__) if callable(network) else ():
        signature = None if own else attribute_of(part, "input_signature")
        if isinstance(signature, list | tuple):
            own = [spec for spec in signature if isinstance(spec, tf.TensorSpec)]
    return own


def input_spec(
    network: Any, given: tf.TensorSpec | None = None, image_channels: int = 0
) -> tf.TensorSpec:
    """Return the spec of a network's first argument: given, declared, or one channel of floats."""
    own = declared_inputs(network)
    if given is not None:
        return given
    if own and (not image_channels or own[0].shape.rank == 4):
        return own[0]
    axes = [None] * (3 if image_channels else 2)
    return tf.TensorSpec([*axes, image_channels or 1])


def condition_specs(network: Any, given: Any = None) -> Specs:
    """Return the specs of a network's arguments after the first, by name and in order.

    They are given as for `as_specs`; None: those in the network's attribute `conditions`, or the
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

    Raises UserError, NotCausalError or ValueError if it cannot be built or called alike every time.
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

    for model in single_layers(network):
        nodes = getattr(graph_of(model), "_nodes_by_depth", {})
        for node in itertools.chain.from_iterable(nodes.values()):
            if node.arguments.kwargs.get("training") is True:
                raise NotCausalError(
                    "`network` must not change from call to call, but calls its layer"
                    f" `{node.operation.name}` with training=True; leave `training` to the caller."
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
