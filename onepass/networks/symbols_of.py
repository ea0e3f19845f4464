"""Make the network over symbols that a model consists of, from a user's network."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from onepass.likelihoods.capabilities import pixel_channels
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import Distribution
from onepass.networks.condition_specs import Frames, Specs
from onepass.networks.network import image_spec, input_spec
from onepass.networks.outputs import check_parameters
from onepass.networks.reading import reading_of
from onepass.networks.symbols import RasterOrder, TimeOrder


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
    """Return a network as a `SymbolNetwork` after checking that it is causal."""
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
