"""Networks that read the symbols of a codec, in time or raster order."""

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from autoregressive.causality import observed_fault, observed_unmasked, probe_lengths
from autoregressive.incremental import NotCausalError, UnsupportedNetworkError
from autoregressive.incremental.tracing import Traces
from autoregressive.networks import as_function
from autoregressive.tables import Tables, derived
from likelihoods.capabilities import pixel_channels
from likelihoods.codec import Codec
from likelihoods.distribution import Distribution

State = dict[str, Any]


class SymbolNetwork(Protocol):
    """The part of a network that samplers use.

    Law: the parameters at a position depend only on the symbols at earlier positions.
    """

    def parameters(self, symbols: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return the parameters at all positions, [batch, ..., num_parameters]."""

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the position of every symbol, int32 that broadcasts against `symbols`."""


Step = Callable[[Any, int, State], tuple[tf.Tensor, Any]]


class SteppedSymbols(SymbolNetwork, Protocol):
    """The part of a network in time order that the cached sampler uses."""

    @property
    def has_step(self) -> bool:
        """True if the network can compute one symbol at a time."""

    @property
    def block(self) -> int:
        """Number of steps in a cycle: a network may compute several symbols together."""

    def initial_state(self, batch: int, length: int = 0) -> State:
        """Return {"input": the input before the first symbol, "network": the network's state}.

        Args:
          batch: number of rows.
          length: number of symbols that will be drawn; 0: unknown.
        """

    def stepper(self, condition: tf.Tensor | None) -> Step:
        """Return the steps of a chunk that begins with a block.

        Args:
          condition: [batch, time, channels] of the chunk, or None.

        Returns:
          A function of the time in the chunk, the remainder of the time by `block` as a Python
          number, and the state. It returns the parameters [batch, 1, num_parameters] of that
          symbol, and the network's state after it.
        """

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return symbols [batch, n] as the network's inputs."""


class TimeOrder:
    """A causal network over symbols [batch, time], its input shifted by one.

    Args:
      network: causal; see `autoregressive.networks.CausalNetwork`.
      distribution: of the symbols.
      codec: of the symbols.
      inputs: of the network: [None, None] or [None, None, 1]. An integer dtype means the symbols
        themselves, a float dtype the codec's scaled values.
      condition: of its second argument, if it has one.
    """

    block = 1

    def __init__(
        self,
        network: Any,
        distribution: Distribution,
        codec: Codec,
        inputs: tf.TensorSpec,
        condition: tf.TensorSpec | None,
    ):
        self.network, self._codec, self.inputs, self.condition = network, codec, inputs, condition
        if inputs.shape.rank not in (2, 3) or inputs.shape[2:] not in ([], [1]):
            raise ValueError(
                f"`inputs` must be [batch, time] or [batch, time, 1], got {inputs.shape}."
            )
        specs = [inputs] if condition is None else [inputs, condition]
        self._start = (distribution.levels or 0) // 2 if inputs.dtype.is_integer else 0
        self.call = Traces(as_function(network, specs))
        self.tables = Tables(network, self.call, specs, axes=1)
        self._stepped: Any = None
        self._has_step: bool | None = None

    @property
    def stepped(self) -> Any:
        """The network with `initial_state` and `step`, derived on first use.

        Raises:
          NotCausalError: there is no step.
          UnsupportedNetworkError: there is no step.
        """
        if self._stepped is None:
            with tf.init_scope():
                self._stepped = derived(
                    self.network, self.tables, inputs=self.inputs, condition=self.condition
                )
            self.call.forget()
        return self._stepped

    @property
    def has_step(self) -> bool:
        """True if the network has a step, its own or a derived one.

        Raises:
          NotCausalError: the network breaks the law of a `SymbolNetwork`.
        """
        if self._has_step is None:
            try:
                self._has_step = self.stepped is not None
            except UnsupportedNetworkError:
                self._has_step = False
            except NotCausalError:  # a condition may be looked ahead in
                if self.condition is None:
                    raise
                self._has_step = False
        return self._has_step

    def check(self, with_random_weights: bool = True) -> None:
        """Raise NotCausalError if outputs look ahead, or change with the length or by chance.

        Args:
          with_random_weights: also look at the network with random weights, on longer sequences.
        """
        specs = [self.inputs] + ([] if self.condition is None else [self.condition])
        self.call.forget()
        lengths = probe_lengths(self.call, self.tables, specs, with_random_weights)
        levels = self._codec.levels
        fault = observed_fault(self.call, specs, specs[:1], 0, *lengths, symbols=levels)
        if fault:
            raise NotCausalError(
                f"`network` must be causal: {fault} (`check_causal` names the layer)."
            )

    def parameters(self, symbols: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return [batch, time, num_parameters]; those of position t from the symbols before t."""
        return self.parameters_after(self.read(symbols), condition)

    def parameters_after(self, inputs: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters from the network's inputs at all positions, see `read`.

        Float inputs need not be those of symbols: gradients flow through them.

        Raises:
          ValueError: the network has a table of positions with fewer rows.
        """
        self.tables.check(inputs.shape[1])
        shifted = tf.concat([self.start(tf.shape(inputs)[0]), inputs[:, :-1]], 1)
        shifted.set_shape(inputs.shape)
        return self.call(shifted, *self._conditions(condition))

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return int32 [1, time]."""
        return tf.range(tf.shape(symbols)[1])[tf.newaxis]

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return symbols [batch, time] as the network's inputs."""
        inputs = read_symbols(symbols, self._codec, self.inputs.dtype)
        return inputs if self.inputs.shape.rank == 2 else inputs[..., tf.newaxis]

    def start(self, batch: int | tf.Tensor) -> tf.Tensor:
        """Return the network's input before the first symbol, one step of the middle value."""
        value = tf.constant(self._start, self.inputs.dtype)
        return tf.fill([batch, 1, *self.inputs.shape[2:]], value)

    @property
    def feeds(self) -> str:
        """What the network is fed, in a sentence."""
        fed = _fed(self._codec, self.inputs.dtype)
        return f"The network reads {fed}, shifted by one; before the first it reads {self._start}"

    def initial_state(self, batch: int, length: int = 0, at_once: bool = False) -> State:
        """Return the state before the first of `length` symbols of `batch` rows.

        Args:
          batch: number of rows.
          length: number of symbols that will be drawn; 0: unknown.
          at_once: do not compile what makes a derived step's state: faster for a single one.
        """
        make = self.stepped.first_state if at_once else self.stepped.initial_state
        has_horizon = getattr(self.stepped, "has_horizon", False)
        given = (batch, length) if has_horizon and length else (batch,)
        return {"input": self.start(batch), "network": make(*given)}

    @property
    def has_horizon(self) -> bool:
        """True if a state is made for a number of symbols: the network has keys or positions."""
        return self.has_step and getattr(self.stepped, "has_horizon", False)

    def stepper(self, condition: tf.Tensor | None) -> Step:
        """Return the steps of a chunk, see `SteppedSymbols`."""

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            now = None if condition is None else condition[:, time][:, tf.newaxis]
            return self.stepped.step(state["input"], state["network"], *self._conditions(now))

        return step

    def chunk(
        self, inputs: tf.Tensor, state: Any, condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, Any]:
        """Return the parameters of n symbols from one pass, and the network's state after them.

        Args:
          inputs: of the network, one before each symbol, [batch, n, ...].
          state: of the network alone.
          condition: [batch, n, channels], or None.
        """
        return self.stepped.step(inputs, state, *self._conditions(condition))

    def _conditions(self, condition: tf.Tensor | None) -> list[tf.Tensor]:
        if self.condition is None:
            return []
        if condition is None:
            raise ValueError(f"`condition` must be given, {self.condition.shape}, got None.")
        if condition.shape.rank == self.condition.shape.rank + 1:  # one channel, as bundles have it
            condition = condition[..., 0]
        return [tf.cast(condition, self.condition.dtype)]


class RasterOrder:
    """A masked network over images [batch, height, width, channels], row by row.

    The network is not shifted: its output at a pixel must not depend on that pixel.

    Args:
      network: from images, and perhaps a condition, to [batch, height, width, parameters].
      distribution: of one pixel, if it has `channels`; otherwise of one channel, and the network
        has parameters for each channel.
      codec: of the symbols.
      inputs: of the network, [None, None, None, channels].
    """

    condition = None
    has_step = False

    def __init__(
        self, network: Any, distribution: Distribution, codec: Codec, inputs: tf.TensorSpec
    ):
        self.network, self._codec, self.inputs = network, codec, inputs
        self._whole_pixels = pixel_channels(distribution) is not None
        self._num_parameters = distribution.num_parameters
        self.call = Traces(as_function(network, [inputs]))
        self.tables = Tables(network, self.call, [inputs], axes=2)

    def check(self, with_random_weights: bool = True) -> None:
        """Raise NotCausalError if outputs depend on their own pixel or on later ones."""
        del with_random_weights  # which take no longer here
        self.call.forget()
        fault = observed_unmasked(self.call, self.inputs, symbols=self._codec.levels)
        self.call.forget()
        if fault:
            raise NotCausalError(f"`network` must be masked: {fault}.")

    def parameters(self, symbols: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return [batch, height, width, p], or [batch, height, width, channels, p]."""
        self.tables.check(*symbols.shape[1:3])
        outputs = self.call(self.read(symbols), *([] if condition is None else [condition]))
        if self._whole_pixels:
            return outputs
        shape = tf.concat([tf.shape(symbols), [self._num_parameters]], 0)
        return tf.reshape(outputs, shape)

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return symbols [batch, height, width, channels] as the network's inputs."""
        return read_symbols(symbols, self._codec, self.inputs.dtype)

    @property
    def feeds(self) -> str:
        """What the network is fed, in a sentence."""
        return f"The network reads {_fed(self._codec, self.inputs.dtype)}, unshifted"

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return int32 [1, height, width, 1]: all channels of a pixel have one position."""
        return raster_positions(symbols)


def read_symbols(symbols: tf.Tensor, codec: Codec, dtype: tf.DType) -> tf.Tensor:
    """Return symbols as a network reads them: as they are if as integers, else scaled."""
    return tf.cast(symbols if dtype.is_integer else codec.scale(symbols), dtype)


def _fed(codec: Codec, dtype: tf.DType) -> str:
    """Return what symbols are as a network reads them."""
    if codec.levels is None:
        return f"real elements as {type(codec).__name__} scales them"
    ends = read_symbols(tf.constant([0, codec.levels - 1]), codec, dtype).numpy()
    return f"{'symbols' if dtype.is_integer else 'elements as numbers'} {ends[0]:g} to {ends[1]:g}"


def raster_positions(symbols: tf.Tensor) -> tf.Tensor:
    """Return int32 [1, height, width, 1], row by row, of [batch, height, width, channels]."""
    height, width = tf.shape(symbols)[1], tf.shape(symbols)[2]
    return tf.reshape(tf.range(height * width), [1, height, width, 1])
