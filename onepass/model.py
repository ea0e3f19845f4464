"""`Autoregressive`, a model that combines a causal network and a distribution."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import (
    MOST,
    UserError,
    check_draw_length,
    check_flag,
    check_prefix,
    check_seed,
    must_be,
    require,
    whole_number,
)
from onepass.foundation.runtime import Compiled, check_eager
from onepass.interface import OPTIONS, Draw, Model
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import Distribution
from onepass.networks.conditions import (
    Condition,
    Specs,
    as_specs,
    check_conditions,
    condition_digest,
    each_row,
    first_state,
    given_once,
    is_at_rate,
    rows,
    zeros_for,
)
from onepass.networks.elements import (
    as_array,
    check_elements,
    check_parts,
    codec_for,
    layout_of,
    with_lengths,
    zero_after_end,
)
from onepass.networks.network import condition_specs
from onepass.networks.symbols import decode_chunks, describe_rescaling, prompt_of, symbols_of
from onepass.networks.trainable import Watch, Weights, in_order_of_reads, outline, weights_read
from onepass.prefix_state import Kept, PrefixState, digest_of
from onepass.samplers import Draft, methods_of
from onepass.samplers.sampling import Samplers
from onepass.samplers.speculative import stepped_draft

FLOAT32 = "float32"  # the type of weights by default
CHUNK = 2000  # elements of a row in a part of a stream
NOT_STREAMED = {"method", "draft", "return_log_prob"}


class Autoregressive(Model):
    """A model p(x) = prod_t p(x_t | x_0, ..., x_(t-1)) of sequences or images.

    Args:
      network: any causal `tf.Module`, Keras model or function; see `incremental`. In time order its
        input is the sequence shifted by one step, so it only needs to be causal. In raster order it
        must be masked: its output at a pixel depends only on the pixels before it.
      distribution: the distribution of every element, from `likelihoods` or with the same methods.
      codec: converts elements to the distribution's symbols and back. The default is `Integers` for
        tokens (`Categorical`, `Bernoulli`) and for images, `Linear` for other sequences of levels
        and `Reals` for real symbols.
      conditions: specs of the network's arguments after the first, a single spec or specs by name
        in the arguments' order. A condition [None, None, channels] has the elements' time axis,
        [None] or [None, channels] is the same at every time step, `Memory([None, None, channels])`
        has a separate axis, and `Frames([None, None, channels], hop=256)` has one row for every 256
        time steps. Not needed for a Keras model with several inputs, except for `Frames`.
      condition_channels: shorthand for conditions=tf.TensorSpec([None, None, channels]); 0: none.
      order: "time": elements [batch, time] or [batch, time, channels]; "raster": images [batch,
        height, width, channels].
      inputs: shape and dtype of the network's input, [None, None, channels] or [None, None, None,
        channels]. Not needed for a Keras model, or for float32 [batch, time, 1] and grey images.
        Channels of a time step are independent given earlier steps; the network outputs the
        parameters of one channel after another.
      start: the network's input before the first element in time order. For a network that reads
        integers it is a symbol, possibly one that is never drawn (default levels // 2); for a
        network that reads floats, a number on its scale (default the middle of `input_scale`).
      input_scale: (low, high), the floats that the network reads for the lowest and highest level,
        or for the real symbols -1 and 1; the default is (-1, 1).

    Raises:
      ValueError: an argument is invalid, the number of the network's output channels does not match
        the distribution, codec and distribution have different levels, or the network cannot read
        `start` or `input_scale`.
      NotCausalError: the network's outputs depend on later inputs, change with the length, or are
        random.

    Attributes:
      layout: description of the axes of the model's elements.
      sample_rate_hz: sample rate with which an audio model was stored, in Hz; None otherwise.
      compiled: functions compiled for the network, which `follow` drops when it has changed.
    """

    options = frozenset({*OPTIONS, "method", "state", "weights", "draft", "return_log_prob"})
    kind = "autoregressive"
    sample_rate_hz: int | None = None
    _watch: Watch | None = None  # None: the network is no user's

    def __init__(
        self,
        network: Any,
        distribution: Distribution,
        *,
        codec: Codec | None = None,
        conditions: tf.TensorSpec | Specs | None = None,
        condition_channels: int | tf.TensorSpec = 0,
        order: Literal["time", "raster"] = "time",
        inputs: tf.TensorSpec | None = None,
        start: float | None = None,
        input_scale: Sequence[float] | None = None,
    ) -> None:
        if order not in ("time", "raster"):
            raise ValueError(must_be("order", "time or raster", repr(order)))
        check_parts(network, distribution)
        codec = codec_for(distribution, codec, order)
        if condition_channels and conditions is not None:
            raise ValueError("`condition_channels` must not be given next to `conditions`.")
        specs = condition_specs(network, as_specs(conditions or condition_channels))

        self._make = functools.partial(
            symbols_of, network, distribution, codec, order, specs, inputs, start, input_scale
        )
        self._begin(self._make(), distribution, codec, order)
        self._watch = Watch(network)

    def _begin(self, symbols: Any, distribution: Distribution, codec: Codec, order: str) -> None:
        self.symbol_network, self.distribution = symbols, distribution
        self.codec, self.order = codec, order
        self.layout = getattr(symbols, "layout", None) or layout_of(distribution, order)
        self.compiled, self.samplers = Compiled(), Samplers(self)

    @classmethod
    def of_symbols(
        cls,
        symbols: Any,
        distribution: Distribution,
        codec: Codec,
        order: Literal["time", "raster"] = "time",
    ) -> "Autoregressive":
        """Return a model of a `SymbolNetwork`, which reads symbols and shifts them itself.

        Args:
          symbols: a `SymbolNetwork`; the method "cached" needs a `SteppedSymbols` in time order.
          distribution: the distribution of a symbol.
          codec: converts elements to symbols and back.
          order: "time" or "raster".
        """
        model = cls.__new__(cls)
        model._begin(symbols, distribution, codec, order)
        return model

    @property
    def network(self) -> Any:
        """The network that was passed to the constructor."""
        return self.symbol_network.network

    @property
    def feeds(self) -> str:
        """A sentence about the network's inputs, without its final period; "" if there is none."""
        reading = getattr(self.symbol_network, "reading", None)
        return "" if reading is None else reading.feeds + describe_rescaling(self.network, reading)

    @property
    def conditions(self) -> Specs:
        """Specs of the conditions by name; a single unnamed condition is called "condition"."""
        return self.symbol_network.conditions

    @property
    def condition_channels(self) -> int:
        """Number of channels of the only condition, if it has the elements' time axis; else 0."""
        specs = [*self.conditions.values()]
        return (*specs[0].shape, 1)[2] if len(specs) == 1 and is_at_rate(specs[0]) else 0

    def follow(self, by_trace: bool = False) -> None:
        """Make anew what was made of the network, if it is another network by now.

        Every call does so first, by comparing the objects that the network refers to.

        Args:
          by_trace: whether to also trace the network and compare its operations.

        Raises:
          ValueError, NotCausalError: the changed network is refused, as by the constructor.
        """
        watch = self._watch if tf.executing_eagerly() else None
        if watch is None or not (by_trace or watch.has_changed()):
            return
        if not self.symbol_network.is_as_checked():
            self._begin(self._make(), self.distribution, self.codec, self.order)
        self._watch = Watch(self.network)

    def check_causal(self) -> None:
        """Raise NotCausalError if the network is not causal with its current weights."""
        check_eager()
        self.follow()
        check = getattr(self.symbol_network, "check", None)
        if check is not None:
            check(with_random_weights=False)

    def trainable_variables(self, *example: tf.Tensor) -> list[tf.Variable]:
        """Return those of `weights_read` that are trained."""
        return self.weights_read(*example).trained

    def weights_read(self, *example: tf.Tensor) -> Weights:
        """Return the variables that the network's output depends on, trained and frozen.

        Args:
          *example: symbols, and conditions if there are any; required in raster order.
        """
        if not example:
            dtype = tf.float32 if self.distribution.levels is None else tf.int32
            zeros = tf.zeros([1, *self.layout.shape([4])], dtype)
            condition = zeros_for(self.symbol_network, 1, [4])
            return weights_read(self.symbol_network.parameters, zeros, condition)
        symbols, *given = example
        one = given[0] if given else None
        condition = check_conditions(self.symbol_network, one, self.order, symbols.shape)
        return weights_read(self.symbol_network.parameters, symbols, condition)

    def check_length(self, sizes: Sequence[int]) -> None:
        """Raise ValueError if the network takes no sizes (length,) or (height, width, channels)."""
        tables = getattr(self.symbol_network, "tables", None)
        if tables is not None:
            tables.check(sizes[:2])

    def symbols(self, elements: Any) -> tf.Tensor:
        """Check elements and return their symbols; tensors in a `tf.function` are not checked.

        Args:
          elements: [batch, time], [batch, time, channels] or [batch, height, width, channels].

        Raises:
          ValueError: the elements have a wrong rank, contain NaN, or are outside the codec's range.
        """
        check_eager(inside_function=True)
        if not tf.is_tensor(elements) or tf.executing_eagerly():
            elements = as_array(elements, "elements")
            with tf.init_scope():  # an array inside a `tf.function`
                check_elements(elements, self.codec, self.layout)
        return self.codec.encode(tf.convert_to_tensor(elements))

    def conditionals(self, elements: Any, condition: Any = None) -> tf.Tensor:
        """Return the parameters of every element's distribution, given the elements before it.

        Args:
          elements: [batch, time], [batch, time, channels] or [batch, height, width, channels].
          condition: the network's conditions: an array if there is one, or a dict of arrays by
            name. For a condition without a time axis, one row may be given for all.

        Returns:
          [..., num_parameters], with the axes of the elements except, if the distribution is over
          whole pixels, that of the channels.
        """
        self.follow()
        symbols = self.symbols(elements)
        given = check_conditions(self.symbol_network, condition, self.order, symbols.shape)
        parameters = self.symbol_network.parameters
        if tf.executing_eagerly():
            parameters = self.compiled.function("conditionals", parameters)
        return parameters(symbols, given)

    def log_prob(
        self,
        elements: Any,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
        weights: str = FLOAT32,
    ) -> tf.Tensor:
        """See `Model.log_prob`.

        Args:
          elements: [batch, time], [batch, time, channels] or [batch, height, width, channels]; or a
            list of rows of different lengths.
          condition: the conditions that the network reads, an array or a dict of arrays by name.
          lengths: integers [batch], number of time steps of each row; later elements may be
            anything. None: the full length, or the lengths of the rows in a list.
          speaker: None; a network of one's own reads it as a condition.
          weights: the `weights` of `sample`; the network then takes one step after another.

        Returns:
          float32 [batch, time, ...], 0 after a row's end; for images [batch, height, width] if the
          distribution is over whole pixels, [batch, height, width, channels] if it is over single
          channels. The sum over a row is the row's log-probability.
        """
        check_eager(inside_function=True)
        self.check_options(speaker=speaker)
        self.follow()
        elements, lengths = with_lengths(elements, lengths, self.codec, self.layout.rank)
        symbols = self.symbols(elements)
        given = check_conditions(self.symbol_network, condition, self.order, symbols.shape)
        if not tf.executing_eagerly():
            require(weights == FLOAT32, "weights", "float32 in a `tf.function`", weights)
            return self._log_prob(symbols, given, lengths)
        lengths = None if lengths is None else tf.constant(lengths)
        if weights != FLOAT32:
            nats = tf.constant(self._nats(symbols, given, weights))
            return nats if lengths is None else zero_after_end(lengths, nats)
        return self.compiled.function("log_prob", self._log_prob)(symbols, given, lengths)

    def _nats(self, symbols: tf.Tensor, condition: Condition, weights: str) -> np.ndarray:
        if weights != FLOAT32:
            return self.samplers.log_prob(symbols, condition, weights) - self.codec.log_unit
        return self.compiled.function("log_prob", self._log_prob)(symbols, condition).numpy()

    def _log_prob(self, symbols: tf.Tensor, condition: Condition, lengths: Any = None) -> tf.Tensor:
        parameters = self.symbol_network.parameters(symbols, condition)
        nats = self.distribution.log_prob(parameters, symbols) - self.codec.log_unit
        return nats if lengths is None else zero_after_end(lengths, nats)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods of `sample`."""
        return (*methods_of(self.network, self.distribution), "speculative")

    def read(self, prefix: Any, length: Any = None, condition: Any = None) -> PrefixState:
        """See `Model.read`."""
        self.follow()
        if self.order != "time":
            raise UserError("`read` needs a model in time order, got raster.")
        (elements,) = check_prefix(prefix, 1, MOST, self.layout.event)
        if not len(elements):
            raise UserError("`prefix` must have at least one element, got none.")
        (length,) = check_draw_length(len(elements) if length is None else length, self.order)
        check_prefix([elements], 1, length, self.layout.event)
        self.check_length((length,))
        network = self.symbol_network
        known = given_once(network, condition, self.order, (1, length))
        prompt: Any = prompt_of([elements], None, self.codec, 1, length, self.layout)[0]
        first = first_state(network, 1, length, known)  # the error says what is missing
        state = PrefixState(elements, self._digest(), condition_digest(known, len(elements)))
        symbols = prompt.symbols[:, : len(elements)]
        self.samplers.read_once(symbols, known, first, state.kept)
        return state

    def _digest(self) -> str:
        """Return the digest of the network, its present weights, and what its outputs mean."""
        about, weights = self.compiled.once("identity", self._describe_parts)
        return digest_of({str(place): each.numpy() for place, each in enumerate(weights)}, about)

    def _describe_parts(self) -> tuple[str, list[tf.Variable]]:
        network, own = self.symbol_network, self.distribution
        few = getattr(network, "few", self.symbol_network.block)
        dtype = tf.float32 if own.levels is None else tf.int32
        zeros = tf.zeros([1, *self.layout.shape([few])], dtype)
        condition = zeros_for(network, 1, [few])
        function = tf.function(network.parameters, autograph=False)
        traced = function.get_concrete_function(zeros, condition)
        kinds = type(own).__name__, own.levels, own.num_parameters, type(self.codec).__name__
        return f"{kinds} {outline(traced.graph)}", in_order_of_reads(traced)

    def _sample(self, draw: Draw) -> Any:
        self.follow()
        if draw.method not in self.methods:
            known = ", ".join(self.methods)
            raise ValueError(f"`method` must be one of {known}, got {draw.method!r}.")
        draw = draw.begin_with_state(self._digest)
        num, sizes = whole_number(draw.num, "num"), check_draw_length(draw.length, self.order)
        return_log_prob = check_flag(draw.return_log_prob, "return_log_prob")
        shape, layout = self.layout.shape(sizes), self.layout
        how = draw.checked(num, sizes[0], self.order, layout.event)
        heat = how.choice(self.distribution, self.codec, num, layout.noise_axes)
        self.check_length(sizes)
        if (draw.method == "speculative") != (draw.draft is not None):
            raise ValueError('`draft` must be given for `method="speculative"`, and for no other.')
        noise = self.layout.noise(self.distribution, check_seed(draw.seed), num, shape)
        condition = given_once(self.symbol_network, draw.condition, self.order, (num, *shape))
        prompt, shared = how.prompt(self.codec, num, sizes[0], self.layout)
        symbols = self.samplers.draw(
            draw.method,
            noise,
            condition,
            heat,
            prompt,
            shared,
            draw.draft,
            kept=_kept_of(draw.state, condition),
            weights=draw.weights,
        )
        if prompt is not None:
            symbols = prompt.fill_ended(symbols)
        elements = self.codec.decode(symbols).numpy()
        if not return_log_prob:
            return elements
        nats = self._nats(symbols, condition, draw.weights)
        if prompt is not None:
            nats[prompt.find_ended(symbols).numpy()] = 0.0
        return elements, nats

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        if self.order != "time":
            raise ValueError("`stream` needs a model in time order, got raster.")
        for name in NOT_STREAMED & draw.changed_options().keys():
            raise ValueError(f"`{name}` is for `sample`; `stream` takes one step per element.")
        self.follow()
        draw = draw.begin_with_state(self._digest)
        (length,), num = check_draw_length(draw.length, self.order), whole_number(draw.num, "num")
        chunk = whole_number(CHUNK if chunk is None else chunk, "chunk")
        seed, layout = check_seed(draw.seed), self.layout
        how = draw.checked(num, length, self.order, layout.event)
        heat = how.choice(self.distribution, self.codec, num, layout.noise_axes)
        condition = given_once(self.symbol_network, draw.condition, self.order, (num, length))
        self.check_length((length,))
        prompt, shared = how.prompt(self.codec, num, length, layout)
        chunk = -(-chunk // self.symbol_network.block) * self.symbol_network.block
        if draw.weights != FLOAT32:
            self.samplers.find_narrow(draw.weights, "auto", heat, condition, length)
        elif not self.symbol_network.has_step:
            # raises an error that says what is missing
            first_state(self.symbol_network, 1, length, rows(condition, slice(1)))

        def noise_of(start: int, count: int) -> tf.Tensor:
            return layout.noise(self.distribution, seed, num, layout.shape([count]), start)

        parts = self.samplers.stream(
            "auto",
            noise_of,
            num,
            length,
            chunk,
            condition,
            heat,
            prompt,
            shared,
            kept=_kept_of(draw.state, condition),
            weights=draw.weights,
        )
        return decode_chunks(parts, prompt, self.codec)

    def as_draft(self, model: "Autoregressive") -> Draft:
        """Return this model as a draft for speculative sampling of another model.

        Args:
          model: the model for which symbols are proposed.

        Raises:
          ValueError: this model's symbols, noise or conditions differ from the other model's, or it
            has no steps of one symbol.
        """
        return stepped_draft(self, model)


def _kept_of(state: PrefixState | None, condition: Condition) -> list[Kept] | None:
    """Return what is kept of a prefix, None without a state; check its condition in every row."""
    if state is None:
        return None
    for digest in {condition_digest(each, len(state)) for each in each_row(condition)}:
        state.check_condition(digest)
    return state.kept
