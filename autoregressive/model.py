"""`Autoregressive`: a causal network and a distribution make a model of arrays."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import tensorflow as tf

from autoregressive.elements import as_condition, check_elements, check_parts, default_codec
from autoregressive.networks import condition_spec, image_spec, input_spec, variables_read
from autoregressive.samplers import SAMPLERS, Draft, SteppedDraft, specialised, speculative
from autoregressive.samplers.cached import cached_chunk, steps
from autoregressive.symbols import RasterOrder, TimeOrder
from likelihoods.capabilities import pixel_channels
from likelihoods.codec import Codec
from likelihoods.distribution import Distribution

METHODS = ("auto", *SAMPLERS, "speculative")


class Autoregressive:
    """A model p(x) = prod_t p(x_t | x_0, ..., x_(t-1)) of sequences or images.

    Args:
      network: any causal `tf.Module`, Keras model or function; see `incremental`. In time order its
        input is the sequence shifted by one, so it need only be causal. In raster order it must be
        masked: its output at a pixel depends only on the pixels before it.
      distribution: of every element, see `likelihoods.distribution`.
      codec: from elements to the distribution's symbols. By default `Linear` for sequences of
        levels, `Integers` for images and `Reals` for real symbols.
      condition_channels: of the network's second argument [batch, time, channels]; 0: it has none.
        Not needed for a Keras model with two inputs.
      order: "time": elements [batch, time]; "raster": images [batch, height, width, channels].
      inputs: shape and dtype of the network's input, [None, None, 1] or [None, None, None,
        channels]. Not needed for a Keras model, or for float32 [batch, time, 1] and grey images.

    Raises:
      ValueError: the network has another number of output channels than the distribution has
        parameters, or codec and distribution have different levels.
      NotCausalError: its outputs look ahead, change with the length, or by chance.

    Attributes:
      sample_rate_hz: of a model of sound that was stored with one; else None.
    """

    kind = "autoregressive"
    sample_rate_hz: int | None = None
    compresses: ClassVar[bool] = False  # has `compress` and `decompress`

    def __init__(
        self,
        network: Any,
        distribution: Distribution,
        *,
        codec: Codec | None = None,
        condition_channels: int = 0,
        order: Literal["time", "raster"] = "time",
        inputs: tf.TensorSpec | None = None,
    ):
        if order not in ("time", "raster"):
            raise ValueError(f"`order` must be time or raster, got {order!r}.")
        check_parts(network, distribution)
        codec = default_codec(distribution, order) if codec is None else codec
        if codec.levels != distribution.levels:
            raise ValueError(
                f"`codec` must have the levels of the distribution, {distribution.levels}, got"
                f" {codec.levels}."
            )
        symbols: Any
        if order == "raster":
            spec = image_spec(network, pixel_channels(distribution), inputs)
            symbols = RasterOrder(network, distribution, codec, spec)
        else:
            given = tf.TensorSpec([None, None, condition_channels]) if condition_channels else None
            specs = input_spec(network, inputs), condition_spec(network, given)
            symbols = TimeOrder(network, distribution, codec, *specs)
        self._begin(symbols, distribution, codec, order)
        self._check_parameters()
        symbols.check()

    def _begin(self, symbols: Any, distribution: Distribution, codec: Codec, order: str) -> None:
        self.symbol_network, self.distribution = symbols, distribution
        self.codec, self.order = codec, order
        self._whole_pixels = order == "raster" and pixel_channels(distribution) is not None
        self._functions: dict[Any, Any] = {}

    @classmethod
    def of_symbols(
        cls,
        symbols: Any,
        distribution: Distribution,
        codec: Codec,
        order: Literal["time", "raster"] = "time",
    ) -> "Autoregressive":
        """Return the model of a network that reads symbols and does its own shift.

        Args:
          symbols: a `SymbolNetwork`; in time order, a `SteppedSymbols` if it is to be sampled by
            "cached".
          distribution: of the symbols.
          codec: of the symbols.
          order: "time" or "raster".
        """
        model = cls.__new__(cls)
        model._begin(symbols, distribution, codec, order)
        return model

    @property
    def network(self) -> Any:
        """The network, as it was passed."""
        return self.symbol_network.network

    @property
    def condition_channels(self) -> int:
        """Channels of the condition, 0 if there is none."""
        spec = self.symbol_network.condition
        return 0 if spec is None else spec.shape[-1]

    def _check_parameters(self) -> None:
        """Raise ValueError unless the output has the shape that the distribution needs."""
        spec = self.symbol_network.inputs
        sizes = [1, *(size or 4 for size in spec.shape[1 : 2 if self.order == "time" else 3])]
        zeros = tf.zeros([*sizes, *spec.shape[len(sizes) :]], spec.dtype)
        condition = self._no_condition(sizes[1])
        shape = self.symbol_network.call(zeros, *([] if condition is None else [condition])).shape
        axes = "batch, time" if self.order == "time" else "batch, height, width"
        if shape.rank != len(sizes) + 1 or shape[:-1] != sizes:
            raise ValueError(
                f"`network` must return [{axes}, parameters], as long as its input; for {sizes} it"
                f" returns {shape}."
            )
        expected, each = self.distribution.num_parameters, ""
        if self.order == "raster" and not self._whole_pixels:
            expected, each = expected * spec.shape[-1], f" and {spec.shape[-1]} channels"
        if shape[-1] != expected:
            raise ValueError(
                f"`network` must have {expected} output channels for"
                f" {type(self.distribution).__name__}{each}, got {shape[-1]}."
            )

    def _no_condition(self, time: int) -> tf.Tensor | None:
        spec = self.symbol_network.condition
        return None if spec is None else tf.zeros([1, time, *spec.shape[2:]], spec.dtype)

    def trainable_variables(self, *example: tf.Tensor) -> list[tf.Variable]:
        """Return the variables that the network's output depends on.

        Args:
          *example: symbols, and a condition if there is one; by default four zeros in time order.
        """
        if not example:
            zeros = tf.zeros([1, 4], tf.float32 if self.distribution.levels is None else tf.int32)
            condition = self._no_condition(4)
            example = (zeros,) if condition is None else (zeros, condition)
        return variables_read(self.symbol_network.parameters, *example)

    def symbols(self, elements: Any) -> tf.Tensor:
        """Return the symbols of elements, after a check.

        Args:
          elements: [batch, time] or [batch, height, width, channels].

        Raises:
          ValueError: elements of a wrong rank, with NaN, or that are no level of the codec.
        """
        if not tf.is_tensor(elements) or tf.executing_eagerly():
            check_elements(np.asarray(elements), self.codec, 2 if self.order == "time" else 4)
        return self.codec.encode(tf.convert_to_tensor(elements))

    def conditionals(self, elements: Any, condition: Any = None) -> tf.Tensor:
        """Return the parameters of every element's distribution, given the elements before it.

        Args:
          elements: [batch, time] or [batch, height, width, channels].
          condition: float32 [batch, time, channels], if the network has one.

        Returns:
          [..., num_parameters]; for images [batch, height, width, channels, num_parameters] if the
          distribution is of single channels.
        """
        symbols = self.symbols(elements)
        if not tf.executing_eagerly():
            return self.symbol_network.parameters(symbols, self._condition(condition))
        function = self._function("conditionals", self.symbol_network.parameters)
        return function(symbols, self._condition(condition))

    def log_prob(self, elements: Any, condition: Any = None) -> tf.Tensor:
        """Return the log-probability of every element, or log-density of real ones, in nats.

        Args:
          elements: as for `conditionals`.
          condition: as for `conditionals`.

        Returns:
          float32 [batch, time]; for images [batch, height, width] if the distribution is of whole
          pixels, [batch, height, width, channels] if it is of single channels. The sum over a row
          is the row's log-probability.
        """
        symbols = self.symbols(elements)
        if not tf.executing_eagerly():
            return self._log_prob(symbols, self._condition(condition))
        return self._function("log_prob", self._log_prob)(symbols, self._condition(condition))

    def _log_prob(self, symbols: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        parameters = self.symbol_network.parameters(symbols, condition)
        return self.distribution.log_prob(parameters, symbols) - self.codec.log_unit

    def sample(
        self,
        num: int,
        length: int | Sequence[int],
        seed: int,
        condition: Any = None,
        *,
        method: str = "auto",
        temperature: float = 1.0,
        draft: Any = None,
    ) -> np.ndarray:
        """Return `num` sequences [num, length] or images [num, height, width, channels].

        A row depends only on the seed, its index and its condition: not on the method or on `num`,
        except for the network's rounding.

        Args:
          num: rows.
          length: elements of each row, or (height, width, channels).
          seed: integer in [0, 2^64).
          condition: [num, length, channels], if the network has one.
          method: "cached", one step per element; "fixed-point", passes until nothing changes;
            "naive", one pass per element; "auto", the sampler registered for the network and the
            distribution, or else "cached", or "fixed-point" if the network has no step;
            "speculative", passes over blocks that `draft` proposes.
          temperature: see `Distribution.sample`.
          draft: for "speculative": a smaller model with the same symbols and noise, a student of
            this model, or any object with `as_draft(model)`. It changes only the time taken.
        """
        if method not in METHODS:
            raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
        if num < 1:
            raise ValueError(f"`num` must be at least 1, got {num}.")
        if temperature < 0.0:
            raise ValueError(f"`temperature` must be at least 0, got {temperature}.")
        if (method == "speculative") != (draft is not None):
            raise ValueError('`draft` must be given for `method="speculative"`, and for no other.')
        noise = self._noise(seed, num, 0, self._shape(length))
        sampler = self._sampler(method) if draft is None else self._speculative(draft)
        symbols = sampler(noise, self._condition(condition), tf.constant(temperature, tf.float32))
        return self.codec.decode(symbols).numpy()

    def stream(
        self,
        length: int,
        seed: int,
        condition: Any = None,
        *,
        num: int = 1,
        chunk: int = 2000,
        temperature: float = 1.0,
    ) -> Iterator[np.ndarray]:
        """Yield the elements of `sample`, [num, chunk] at a time; the last part may be shorter.

        Args:
          length: as for `sample`.
          seed: as for `sample`.
          condition: as for `sample`.
          num: as for `sample`.
          chunk: elements at a time, rounded up to a multiple of the network's block.
          temperature: as for `sample`.

        Raises:
          UnsupportedNetworkError: the network has no step.
        """
        if self.order != "time":
            raise ValueError("`stream` needs a model in time order, got raster.")
        network, condition = self.symbol_network, self._condition(condition)
        chunk = -(-chunk // network.block) * network.block
        function, state = self._steps(num)
        scale = tf.constant(temperature, tf.float32)
        for start in range(0, length, chunk):
            stop = min(start + chunk, length)
            noise = self.distribution.noise(seed, tf.range(num), start, stop - start)
            part = None if condition is None else condition[:, start:stop]
            symbols, state = function(noise, part, scale, state)
            yield self.codec.decode(symbols).numpy()

    def _chunk(self, noise, condition, temperature, state):
        network, distribution = self.symbol_network, self.distribution
        return cached_chunk(network, distribution, noise, condition, temperature, state)

    def _steps(self, batch: int):
        """Return the fastest function of a chunk, and the state of `batch` rows before it."""
        compiled = self._function("stream", self._chunk, jit_compile=True)
        return steps(self._functions, self.symbol_network, self.distribution, batch, compiled)

    def _by_steps(self, noise, condition, temperature):
        function, state = self._steps(noise.shape[0])
        return function(noise, condition, temperature, state)[0]

    def _sampler(self, method: str):
        """Return a function of noise, condition and temperature."""
        if method == "auto":
            own = self._functions.get(method) or specialised(self.network, self.distribution)
            if own is not None:
                self._functions[method] = own
                return lambda *rest: own(self.symbol_network, self.distribution, *rest)
            if self.symbol_network.has_step:
                return self._by_steps
            method = "fixed-point"
        if method == "cached":
            return self._cached
        sampler = SAMPLERS[method]

        def run(noise, condition, temperature):
            return sampler(self.symbol_network, self.distribution, noise, condition, temperature)

        return self._function(method, run, jit_compile=True)

    def as_draft(self, model: "Autoregressive") -> Draft:
        """Return this model as a draft of another one.

        Args:
          model: whose samples the draft proposes.

        Raises:
          ValueError: this model has other symbols, noise or condition, or no steps of one symbol.
        """
        own, other = self.distribution, model.distribution
        network = self.symbol_network
        if (own.levels, own.noise_channels) != (other.levels, other.noise_channels):
            raise ValueError(
                f"`draft` must have {other.levels} levels and {other.noise_channels} noise "
                f"channels, got {own.levels} and {own.noise_channels}."
            )
        if self.condition_channels not in (0, model.condition_channels):
            raise ValueError(
                f"`draft` must read no condition or one of {model.condition_channels} channels, "
                f"got {self.condition_channels}."
            )
        if not network.has_step or network.block != 1:
            raise ValueError("`draft` must have steps of one symbol.")
        return SteppedDraft(network, own)

    def _speculative(self, draft: Any):
        """Return a sampler with a draft.

        Raises:
          ValueError: the model is not one of levels in time order, or the draft does not fit it.
        """
        if self.order != "time" or self.distribution.levels is None:
            raise ValueError('`method="speculative"` needs levels in time order.')
        if self.symbol_network.block != 1:
            raise ValueError('`method="speculative"` needs a model with steps of one symbol.')
        network, distribution = self.symbol_network, self.distribution
        if ("speculative", draft) not in self._functions:
            proposing = draft.as_draft(self)
            network.initial_state(1)  # raises for a network without steps

            def run(noise, condition, temperature):
                given = noise, condition, temperature, proposing
                return speculative(network, distribution, *given)[0]

            self._function(("speculative", draft), run, jit_compile=True)
        return self._functions["speculative", draft]

    def _condition(self, given: Any) -> Any:
        return as_condition(given, self.symbol_network.condition, self.order)

    def _cached(self, noise, condition, temperature):
        if self.order != "time":
            raise ValueError('`method` must not be "cached" for a model in raster order.')
        state = self.symbol_network.initial_state(noise.shape[0])
        function = self._function("stream", self._chunk, jit_compile=True)
        return function(noise, condition, temperature, state)[0]

    def _shape(self, length: int | Sequence[int]) -> tuple[int, ...]:
        shape = (length,) if isinstance(length, int | np.integer) else tuple(length)
        if len(shape) != (1 if self.order == "time" else 3) or min(shape) < 1:
            meaning = "a number" if self.order == "time" else "(height, width, channels)"
            raise ValueError(f"`length` must be {meaning}, each at least 1, got {length}.")
        return shape

    def _noise(self, seed: int, num: int, start: int, shape: tuple[int, ...]) -> tf.Tensor:
        """Return the noise of `num` rows, [num, *positions, noise channels]."""
        if self._whole_pixels:
            shape = shape[:2]
        count = int(np.prod(shape))
        noise = self.distribution.noise(seed, tf.range(num), start, count)
        return tf.reshape(noise, [num, *shape, noise.shape[-1]])

    def _function(self, name: Any, function, jit_compile: bool = False):
        """Return the function compiled, once per name."""
        if name not in self._functions:
            self._functions[name] = tf.function(function, autograph=False, jit_compile=jit_compile)
        return self._functions[name]
