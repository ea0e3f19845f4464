"""Make the network over symbols that a model consists of, from a user's network."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autoregressive.condition_specs import Frames, Specs
from autoregressive.networks import image_spec, input_spec
from autoregressive.outputs import check_parameters
from autoregressive.reading import reading_of
from autoregressive.symbols import RasterOrder, TimeOrder
from likelihoods.capabilities import pixel_channels
from likelihoods.codec import Codec
from likelihoods.distribution import Distribution


def symbols_of(
    network: Any,
    distribution: Distribution,
    codec: Codec,
    order: str,
    conditions: Specs,
    inputs: tf.TensorSpec | None,
    start: float | None,
    input_scale: Sequence[float] | None,
) -> TimeOrder | RasterOrder:
    """Return a network as a `SymbolNetwork`, after checking that it is causal.

    The arguments are those of `Autoregressive`, with specs of the conditions by name.

    Raises:
      ValueError, NotCausalError: as for `Autoregressive`.
    """
    is_time = order == "time"
    frames = [name for name, each in conditions.items() if isinstance(each, Frames)]
    if frames and not is_time:
        raise ValueError(f"`conditions` must have no Frames in raster order, got {frames[0]}.")
    pixels = pixel_channels(distribution)
    spec = input_spec(network, inputs) if is_time else image_spec(network, pixels, inputs)
    reading = reading_of(codec, spec.dtype, order, start, input_scale)
    kind: Any = TimeOrder if is_time else RasterOrder
    symbols: TimeOrder | RasterOrder = kind(network, distribution, reading, spec, conditions)
    check_parameters(symbols, distribution, symbols.layout)
    symbols.check()
    return symbols
