"""Check a network's output on a small input, with one-line errors."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.likelihoods.distribution import Distribution
from onepass.networks.conditions import shape_at
from onepass.networks.elements import Layout
from onepass.networks.trainable import attribute_of, layers_within

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
        raise ValueError(
            f"`network` must have {expected} output channels for"
            f" {type(distribution).__name__}{each}, got {shape[-1]}."
        )


def check_stateless(network: Any) -> None:
    """Raise ValueError for a network with a stateful recurrent layer of Keras."""
    for root in layers_within(network):
        flatten = attribute_of(root, "_flatten_layers")
        for layer in flatten() if flatten else [root]:
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
        given = " and ".join(f"{spec.dtype.name} {_axes(spec)}" for spec in specs)
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


def _axes(spec: tf.TensorSpec) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in spec.shape) + "]"
