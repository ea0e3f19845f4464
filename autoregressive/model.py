"""`Autoregressive`: a causal network and a distribution make a model of arrays."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import tensorflow as tf

from autoregressive.choices import choice_of
from autoregressive.drafts import stepped_draft
from autoregressive.elements import as_array, as_condition, check_elements, check_parts
from autoregressive.networks import condition_spec, image_spec, input_spec
from autoregressive.outputs import output_shape
from autoregressive.prompts import Following, Prompt, ended, prompt_of, stopped
from autoregressive.samplers import SAMPLERS, Draft
from autoregressive.sampling import Samplers
from autoregressive.symbols import RasterOrder, TimeOrder
from autoregressive.trainable import Weights, weights_read
from likelihoods.capabilities import pixel_channels
from likelihoods.codec import Codec, default_codec
from likelihoods.distribution import Distribution
from replicator.runs.arguments import checked_length, checked_seed, whole_number

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
      condition_channels: of the network's second argument, float32 [batch, time, channels], or
        its spec; 0: it has none. Not needed for a Keras model with two inputs.
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
        condition_channels: int | tf.TensorSpec = 0,
        order: Literal["time", "raster"] = "time",
        inputs: tf.TensorSpec | None = None,
    ):
        if order not in ("time", "raster"):
            raise ValueError(f"`order` must be time or raster, got {order!r}.")
        check_parts(network, distribution)
        codec = default_codec(distribution.levels, order) if codec is None else codec
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
            given = condition_channels or None
            if given is not None and not isinstance(given, tf.TensorSpec):
                given = tf.TensorSpec([None, None, given])
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
        self._samplers = Samplers(self)

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
        """Channels of the condition, 0 if there is none, 1 of [batch, time]."""
        spec = self.symbol_network.condition
        return 0 if spec is None else (*spec.shape, 1)[2]

    def _check_parameters(self) -> None:
        """Raise ValueError unless the output has the shape that the distribution needs."""
        network = self.symbol_network
        specs = [spec for spec in (network.inputs, network.condition) if spec is not None]
        shape = output_shape(network.call, specs, 1 if self.order == "time" else 2)
        expected, each = self.distribution.num_parameters, ""
        if self.order == "raster" and not self._whole_pixels:
            expected, each = expected * specs[0].shape[-1], f" and {specs[0].shape[-1]} channels"
        if shape[-1] != expected:
            raise ValueError(
                f"`network` must have {expected} output channels for"
                f" {type(self.distribution).__name__}{each}, got {shape[-1]}."
            )

    def check_causal(self) -> None:
        """Raise NotCausalError if outputs look ahead with the weights as they are."""
        check = getattr(self.symbol_network, "check", None)
        if check is not None:
            check(with_random_weights=False)

    def trainable_variables(self, *example: tf.Tensor) -> list[tf.Variable]:
        """Return the variables that the network's output depends on and that are not frozen.

        Args:
          *example: as for `weights_read`.
        """
        return self.weights_read(*example).trained

    def weights_read(self, *example: tf.Tensor) -> Weights:
        """Return the variables that the network's output depends on, trained and frozen.

        Args:
          *example: symbols, and a condition if there is one; by default four zeros in time order.
        """
        if not example:
            zeros = tf.zeros([1, 4], tf.float32 if self.distribution.levels is None else tf.int32)
            spec = self.symbol_network.condition
            rest = [] if spec is None else [tf.zeros([1, 4, *spec.shape[2:]], spec.dtype)]
            example = (zeros, *rest)
        return weights_read(self.symbol_network.parameters, *example)

    def check_length(self, sizes: Sequence[int]) -> None:
        """Raise ValueError if the network has a table of positions with too few rows.

        Args:
          sizes: (length,), or (height, width, channels).
        """
        tables = getattr(self.symbol_network, "tables", None)
        if tables is not None:
            tables.check(*sizes[:2])

    def symbols(self, elements: Any) -> tf.Tensor:
        """Return the symbols of elements, after a check.

        Args:
          elements: [batch, time] or [batch, height, width, channels].

        Raises:
          ValueError: elements of a wrong rank, with NaN, or that are no level of the codec.
        """
        if not tf.is_tensor(elements) or tf.executing_eagerly():
            elements = as_array(elements, "elements")
            check_elements(elements, self.codec, 2 if self.order == "time" else 4)
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
        given = self._condition(condition, *symbols.shape[:2])
        if not tf.executing_eagerly():
            return self.symbol_network.parameters(symbols, given)
        return self._function("conditionals", self.symbol_network.parameters)(symbols, given)

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
        given = self._condition(condition, *symbols.shape[:2])
        if not tf.executing_eagerly():
            return self._log_prob(symbols, given)
        return self._function("log_prob", self._log_prob)(symbols, given)

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
        temperature: Any = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        prefix: Any = None,
        stop: Any = None,
        return_log_prob: bool = False,
        draft: Any = None,
    ) -> Any:
        """Return `num` sequences [num, length] or images [num, height, width, channels].

        A row depends only on the seed, its index, its condition and its prefix: not on the method
        or on `num`, except for the network's rounding.

        Args:
          num: rows.
          length: elements of each row, those of the prefix included, or (height, width, channels).
          seed: integer in [0, 2^64).
          condition: [num, length, channels], if the network has one.
          method: "cached", one step per element; "fixed-point", passes until nothing changes;
            "naive", one pass per element; "auto", the sampler registered for the network and the
            distribution, or else "cached", or "fixed-point" if the network has no step;
            "speculative", passes over blocks that `draft` proposes.
          temperature: as for `Distribution.sample`; a number, or one for each row.
          top_k: draw only from so many of the most probable tokens; 0: from all.
          top_p: draw only from the most probable tokens that together have this probability, in
            (0, 1]; after `temperature` and `top_k`.
          prefix: elements that the rows begin with, [num, n], [n] for all rows, or a list of rows
            of different lengths.
          stop: the element that ends a row; those after it are equal to it.
          return_log_prob: return the log-probability of every element, too.
          draft: for "speculative": a smaller model with the same symbols and noise, a student of
            this model, or any object with `as_draft(model)`. It changes only the time taken.

        Returns:
          The elements; with `return_log_prob` a pair of them and `log_prob` of them, nats: under
          the model itself, at temperature 1 and without `top_k` and `top_p`; 0 after a row's end.

        Raises:
          ValueError: an argument has no meaning.
        """
        if method not in METHODS:
            raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
        num, shape = whole_number(num, "num"), checked_length(length, self.order)
        heat = choice_of(self.distribution, temperature, top_k, top_p, num, self._noise_axes)
        self.check_length(shape)
        if (method == "speculative") != (draft is not None):
            raise ValueError('`draft` must be given for `method="speculative"`, and for no other.')
        noise = self._noise(checked_seed(seed), num, 0, shape)
        given = self._condition(condition, num, shape[0])
        prompt, shared = self._prompt(prefix, stop, num, shape)
        symbols = self._samplers.draw(method, noise, given, heat, prompt, shared, draft)
        if prompt is not None:
            symbols = tf.constant(stopped(symbols.numpy(), prompt))
        elements = self.codec.decode(symbols).numpy()
        if not return_log_prob:
            return elements
        nats = self._function("log_prob", self._log_prob)(symbols, given).numpy()
        if prompt is not None:
            nats[ended(symbols.numpy(), prompt)] = 0.0
        return elements, nats

    def stream(
        self,
        length: int,
        seed: int,
        condition: Any = None,
        *,
        num: int = 1,
        chunk: int = 2000,
        temperature: Any = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        prefix: Any = None,
        stop: Any = None,
    ) -> Iterator[np.ndarray]:
        """Yield the elements of `sample`, up to [num, chunk] at a time.

        It ends early where all rows have ended by `stop`.

        Args:
          length: as for `sample`.
          seed: as for `sample`.
          condition: as for `sample`.
          num: as for `sample`.
          chunk: elements at a time, rounded up to a multiple of the network's block.
          temperature: as for `sample`.
          top_k: as for `sample`.
          top_p: as for `sample`.
          prefix: as for `sample`.
          stop: as for `sample`.

        Raises:
          ValueError: an argument has no meaning; at the call, as the next.
          UnsupportedNetworkError: the network has no step.
        """
        if self.order != "time":
            raise ValueError("`stream` needs a model in time order, got raster.")
        (length,), num = checked_length(length, self.order), whole_number(num, "num")
        chunk, seed = whole_number(chunk, "chunk"), checked_seed(seed)
        heat = choice_of(self.distribution, temperature, top_k, top_p, num, self._noise_axes)
        given = self._condition(condition, num, length)
        self.check_length((length,))
        prompt, shared = self._prompt(prefix, stop, num, (length,))
        chunk = -(-chunk // self.symbol_network.block) * self.symbol_network.block
        if not self.symbol_network.has_step:
            self.symbol_network.initial_state(1, length)  # raises what is missing
        parts = self._samplers.stream(seed, num, length, chunk, given, heat, prompt, shared)
        return self._parts(parts, prompt)

    def _parts(self, parts: Iterator[np.ndarray], prompt: Prompt | None) -> Iterator[np.ndarray]:
        """Yield symbols as elements, up to the end of all rows."""
        following = Following(prompt)
        for symbols in parts:
            kept = following.kept(symbols)
            yield self.codec.decode(tf.constant(kept)).numpy()
            if following.all_ended:
                return

    def _prompt(
        self, prefix: Any, stop: Any, num: int, shape: tuple[int, ...]
    ) -> tuple[Prompt | None, int]:
        if self.order != "time" and (prefix is not None or stop is not None):
            raise ValueError("`prefix` and `stop` need a model in time order, got raster.")
        return prompt_of(prefix, stop, self.codec, num, shape[0])

    def as_draft(self, model: "Autoregressive") -> Draft:
        """Return this model as a draft of another one.

        Args:
          model: whose samples the draft proposes.

        Raises:
          ValueError: this model has other symbols, noise or condition, or no steps of one symbol.
        """
        return stepped_draft(self, model)

    def _condition(self, given: Any, *sizes: Any) -> Any:
        """Return a condition of these sizes, [batch, time], where they are given."""
        return as_condition(given, self.symbol_network.condition, self.order, sizes)

    @property
    def _noise_axes(self) -> int:
        """Axes of the positions that have noise of their own."""
        return 1 if self.order == "time" else 2 if self._whole_pixels else 3

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
