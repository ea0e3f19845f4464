"""`Draw`, what is asked of a model, and `Model`, the interface of everything that draws.

A field of `Draw` is an option, declared once for every way to ask for it: its `Option` says what a
value must be, its default, and what it needs of a model. Of it are made the keyword argument of
`sample` and `stream`, with the same name, order and default for every model, its check, the option
of `onepass sample`, the inputs of a bundle's prompt signatures with their arrays (and so the fields
of HTTP, gRPC and clients), and the tensors that a sampler reads. A new option is a field here and
its mathematics in `onepass.likelihoods.truncated`. Imports neither TensorFlow nor NumPy before they
are needed, so that help texts appear quickly.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from onepass.foundation.rules import (
    MOST,
    UserError,
    check_element_values,
    check_prefix,
    check_temperature,
    number_in,
    real_number,
    require,
    takes,
    whole_number,
)

if TYPE_CHECKING:
    from onepass.prefix_state import PrefixState

SMALLEST = 1e-30  # stands for "above 0" in the range of an input
KIND = "option"  # key of an `Option` in the metadata of a field
COUNT = "num_"  # begins the name of the input that counts a row's elements of another input


class Facts(NamedTuple):
    """The properties of a model on which its inputs for options depend."""

    in_time: bool  # whether elements have a time order
    of_tokens: bool  # whether the distribution has a table of its levels
    levels: int | None  # number of integer symbols; None: symbols are real numbers
    dtype: str  # type of the elements
    low: float | None  # smallest element; None: no limit
    high: float | None  # largest element; None: no limit
    longest: int  # number of elements of the longest row


class Input(NamedTuple):
    """An input of a prompt signature, [batch] or [batch, n], with the fields of `TensorInfo`."""

    dtype: str
    shape: tuple[None, ...] = (None,)
    low: float | None = None
    high: float | None = None
    default: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """The rule for a value of a field of `Draw`, called `name` in its methods."""

    needs_tokens: bool = False  # whether it needs a distribution with a table of its levels
    needs_time: bool = False  # whether it needs a model in time order
    needs_levels: bool = False  # whether it needs integer symbols
    reads: tuple[str, ...] = ()  # names of other options whose tensors its mathematics reads
    is_prompted: bool = True  # whether only the prompt signatures of a bundle take it
    default: Any = None  # the value that changes nothing, the default of the field
    words: ClassVar[Any] = tuple[str, ...] | None  # type of the command's option
    lists: ClassVar[tuple[str, ...]] = ()  # endings of the names of inputs that are lists

    @property
    def words_default(self) -> Any:
        """Default of the command's option."""
        return None

    def read(self, words: Any, flag: str) -> Any:
        """Return the value that the words of the command's option `flag` mean."""
        raise NotImplementedError

    def check(self, value: Any, name: str, num: int, length: int, event: Sequence[int]) -> Any:
        """Return a caller's value in the form that the other methods take, or raise UserError.

        The draw has `num` rows of `length` time steps, and axes of the sizes `event` after those.
        """
        raise NotImplementedError

    def is_asked(self, value: Any) -> bool:
        """Return whether a checked value differs from the default."""
        return value is not None

    def suits(self, facts: Facts) -> bool:
        """Return whether a model takes the option."""
        lacks_tokens = self.needs_tokens and not facts.of_tokens
        lacks_levels = self.needs_levels and facts.levels is None
        return not (lacks_tokens or lacks_levels or (self.needs_time and not facts.in_time))

    def inputs(self, name: str, facts: Facts) -> dict[str, Input]:
        """Return the inputs of a prompt signature, by name."""
        raise NotImplementedError

    def arrays(self, value: Any, name: str, rows: Any, first: int, count: int) -> dict[str, Any]:
        """Return arrays for the inputs of `rows`, int32 [n], and `count` elements from `first`."""
        raise NotImplementedError

    def value_of(self, given: Mapping[str, Any], name: str) -> Any:
        """Return the value that the first row of inputs asks for, of those that `arrays` makes."""
        raise NotImplementedError

    def tensor(self, value: Any, name: str, encode: Callable, levels: int) -> Any:
        """Return what a sampler of `levels` symbols reads, of a checked value.

        `encode` checks elements [n], which errors call by a name, and returns their symbols.
        """
        return self.tensor_of(self.arrays(value, name, [0], 0, 0), name, encode, levels)

    def tensor_of(self, given: Mapping[str, Any], name: str, encode: Callable, levels: int) -> Any:
        """Return what a sampler reads, of the inputs of one row [1, ...]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(Option):
    """A number.

    `is_above` leaves out `low`; with `by_row`, each row may have its own.
    """

    low: float = -math.inf
    high: float = math.inf
    is_above: bool = False
    is_whole: bool = False
    by_row: bool = False

    @property
    def words(self) -> Any:
        """Type of the command's option."""
        if self.by_row:
            return tuple[float, ...]
        return int if self.is_whole else float

    @property
    def words_default(self) -> Any:
        """Default of the command's option."""
        return (self.default,) if self.by_row else self.default

    def read(self, words: Any, flag: str) -> Any:
        """Return the number, or several if each row has its own."""
        return words[0] if self.by_row and len(words) == 1 else words

    def check(self, value: Any, name: str, num: int, length: int, event: Sequence[int]) -> Any:
        """Return a Python number, or an array [num] if there is one for each row."""
        import numpy as np

        if not self.by_row or isinstance(value, str) or np.ndim(value) == 0:
            return self._one(value, name)
        shape, rule = np.shape(value), f"a number or one for each of {num} rows"
        require(shape == (num,), name, rule, f"shape {list(shape)}")
        return np.array([self._one(each, name) for each in np.asarray(value)])

    def _one(self, value: Any, name: str) -> float:
        if self.is_whole:  # larger numbers than a tensor's axes mean the same
            return min(whole_number(value, name, least=int(self.low), most=None), MOST)
        return real_number(value, name, self.low, self.high, self.is_above)

    def is_asked(self, value: Any) -> bool:
        """Return whether any row's number differs from the default."""
        differs = value != self.default
        return bool(differs.any() if hasattr(differs, "any") else differs)

    def inputs(self, name: str, facts: Facts) -> dict[str, Input]:
        """Return the input of the number."""
        limits = max(self.low, SMALLEST) if self.is_above else self.low, self.high
        low, high = (None if math.isinf(limit) else limit for limit in limits)
        dtype = "int32" if self.is_whole else "float32"
        return {name: Input(dtype, (None,), low, high, self.default)}

    def arrays(self, value: Any, name: str, rows: Any, first: int, count: int) -> dict[str, Any]:
        """Return the number of each row."""
        import numpy as np

        numbers = np.asarray(value)[rows] if np.ndim(value) else np.full([len(rows)], value)
        return {name: numbers.astype("int32" if self.is_whole else "float32")}

    def value_of(self, given: Mapping[str, Any], name: str) -> Any:
        """Return the row's number."""
        return given[name][0].item()

    def tensor_of(self, given: Mapping[str, Any], name: str, encode: Callable, levels: int) -> Any:
        """Return the row's number, a scalar."""
        import tensorflow as tf

        return tf.reshape(given[name], [])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elements(Option):
    """A set of elements, such as tokens; where `is_all`, an empty set stands for all."""

    is_all: bool = False
    lists = ("",)

    def read(self, words: Any, flag: str) -> Any:
        """Return the numbers in words."""
        numbers = [number_in(word, flag) for word in words]
        return numbers[0] if len(numbers) == 1 else numbers

    def check(self, value: Any, name: str, num: int, length: int, event: Sequence[int]) -> Any:
        """Return an array [n] of different elements."""
        return None if value is None else check_element_values(value, name)

    def inputs(self, name: str, facts: Facts) -> dict[str, Input]:
        """Return the inputs of the elements and of their number."""
        elements = Input(facts.dtype, (None, None), facts.low, facts.high)
        return {name: elements, f"{COUNT}{name}": Input("int32", (None,), 0, facts.levels, 0)}

    def arrays(self, value: Any, name: str, rows: Any, first: int, count: int) -> dict[str, Any]:
        """Return the elements, the same for each row."""
        import numpy as np

        counts = np.full([len(rows)], len(value), np.int32)
        return {name: np.repeat(value[np.newaxis], len(rows), 0), f"{COUNT}{name}": counts}

    def value_of(self, given: Mapping[str, Any], name: str) -> Any:
        """Return the row's elements, None for none."""
        count = int(given[f"{COUNT}{name}"][0])
        return given[name][0][:count] if count else None

    def tensor_of(self, given: Mapping[str, Any], name: str, encode: Callable, levels: int) -> Any:
        """Return which symbols are in the row's set, bool [levels]."""
        from onepass.likelihoods.truncated import mask_of

        count = given[f"{COUNT}{name}"][0]
        mask = mask_of(encode(given[name][0], name), count, levels)
        return mask | (count == 0) if self.is_all else mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beginning(Option):
    """Elements with which rows begin, which may differ from row to row."""

    lists = ("",)

    def read(self, words: Any, flag: str) -> Any:
        """Return the numbers in words, or the arrays in the npy files that they name."""
        import numpy as np

        from onepass.foundation.files import read_npy

        files = [word for word in words if word.endswith(".npy")]
        if not files:
            return np.array([number_in(word, flag, " or npy files") for word in words])
        if len(files) < len(words):
            raise UserError(f"{flag} must be numbers, or npy files, not both.")
        arrays = [read_npy(Path(word)) for word in files]
        return arrays[0] if len(arrays) == 1 else arrays

    def check(self, value: Any, name: str, num: int, length: int, event: Sequence[int]) -> Any:
        """Return a list with an array [n, *event] for each row."""
        return None if value is None else check_prefix(value, num, length, event)

    def inputs(self, name: str, facts: Facts) -> dict[str, Input]:
        """Return the inputs of the elements and of their number in each row."""
        elements = Input(facts.dtype, (None, None), facts.low, facts.high)
        return {name: elements, f"{COUNT}{name}": Input("int32", (None,), 0, facts.longest, 0)}

    def arrays(self, value: Any, name: str, rows: Any, first: int, count: int) -> dict[str, Any]:
        """Return the elements that a segment begins with, padded with copies of some element."""
        import numpy as np

        parts = [value[row][first : first + count] for row in rows]
        width = max(map(len, parts))
        if not width:
            return {}
        filler = next(part[-1:] for part in parts if part.size)
        filled = [part if part.size else filler for part in parts]
        stacked = np.stack([np.pad(part, [0, width - len(part)], "edge") for part in filled])
        return {name: stacked, f"{COUNT}{name}": np.array([len(x) for x in parts], np.int32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Option):
    """A number for each of some elements, a dict."""

    lists = ("", "_tokens")

    def read(self, words: Any, flag: str) -> Any:
        """Return the numbers of words ELEMENT=NUMBER."""
        pairs = [word.partition("=") for word in words]
        for word, (_, sign, _) in zip(words, pairs, strict=True):
            if not sign:
                raise UserError(f"{flag} must be ELEMENT=NUMBER, got {word}.")
        return {number_in(key, flag): number_in(number, flag) for key, _, number in pairs}

    def check(self, value: Any, name: str, num: int, length: int, event: Sequence[int]) -> Any:
        """Return a pair of arrays [n], the elements and their numbers."""
        import numpy as np

        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise UserError(f"`{name}` must be a dict of elements and numbers, got {value!r}.")
        numbers = {key: real_number(number, name) for key, number in value.items()}
        for key in numbers:
            check_element_values(key, name, most=1)
        if not numbers:
            return None
        return np.array(list(numbers)), np.array([*numbers.values()], np.float32)

    def inputs(self, name: str, facts: Facts) -> dict[str, Input]:
        """Return the inputs of the numbers, of their elements, and of how many there are."""
        return {
            name: Input("float32", (None, None)),
            f"{name}_tokens": Input(facts.dtype, (None, None), facts.low, facts.high),
            f"{COUNT}{name}": Input("int32", (None,), 0, facts.levels, 0),
        }

    def arrays(self, value: Any, name: str, rows: Any, first: int, count: int) -> dict[str, Any]:
        """Return the numbers and their elements, the same for each row."""
        import numpy as np

        elements, numbers = (np.repeat(each[np.newaxis], len(rows), 0) for each in value)
        counts = np.full([len(rows)], elements.shape[1], np.int32)
        return {name: numbers, f"{name}_tokens": elements, f"{COUNT}{name}": counts}

    def value_of(self, given: Mapping[str, Any], name: str) -> Any:
        """Return the row's numbers by element, None for none; those of equal elements add up."""
        count, found = int(given[f"{COUNT}{name}"][0]), dict[Any, float]()
        elements, numbers = (given[key][0][:count].tolist() for key in (f"{name}_tokens", name))
        for element, number in zip(elements, numbers, strict=True):
            found[element] = found.get(element, 0.0) + number
        return found or None

    def tensor_of(self, given: Mapping[str, Any], name: str, encode: Callable, levels: int) -> Any:
        """Return the number of every symbol in a row, float32 [levels]."""
        from onepass.likelihoods.truncated import sums_of

        symbols = encode(given[f"{name}_tokens"][0], name)
        return sums_of(symbols, given[name][0], given[f"{COUNT}{name}"][0], levels)


@dataclasses.dataclass(frozen=True)
class Draw:
    """A request for rows of a model. A model refuses options that it does not have.

    Args:
      num: number of rows; it does not affect any single row.
      length: size of a row including the prefix: a number of time steps; a side in pixels, or
        (height, width, channels). None: that of the condition, or the size in training.
      seed: seed of the noise, an integer in [0, 2^64).
      condition: what the model reads besides the noise. For a network of one's own, an array for
        `num` rows or a dict of arrays by name; for a trained model, what stands for it: a
        recording [samples] or its frames [frames, channels], a class, a caption or a map, for all
        rows, or for images a list with one for each row.
      method: the sampler, one of the model's `methods`; "auto" chooses the fastest. Samples differ
        between methods by rounding at most.
      weights: type in which the step machine keeps large weights, "float32", "bfloat16" or "int8":
        fewer bytes are read sooner, and the samples are those of a slightly different model;
        `onepass.evaluate(..., weights=...)` says by how much.
      temperature: at least 0, a number or one for each row (a multiscale model: for each scale,
        base first); 1 samples the distribution, smaller values are closer to its mode. None: the
        model's default, 1 unless its model.json says otherwise.
      top_k: number of most probable tokens to draw from; 0: all tokens.
      top_p: draw only from the most probable tokens that together have at least this probability,
        in (0, 1]; applied after `temperature` and `top_k`.
      min_p: draw only from tokens whose probability is at least this share of the most probable
        one's, in [0, 1]; 0: all tokens.
      logit_bias: dict of tokens and finite numbers, which are added to their logits before all
        else; for the command, TOKEN=NUMBER.
      repetition_penalty: above 0; divides the positive logits of tokens that have occurred, prefix
        included, and multiplies their negative ones; 1: no penalty.
      presence_penalty: subtracted once from the logits of tokens that have occurred, prefix
        included, after `repetition_penalty`; 0: no penalty.
      allowed: the tokens that may be drawn, a set, list or array; None: all.
      prefix: elements with which the rows begin, [num, n, ...], [n, ...] for all rows, or a list of
        rows of different lengths; a PixelCNN begins with pixels [n, channels] or rows of pixels
        [rows, width, channels], a multiscale model with a smaller image [side, side, channels],
        which it enlarges. None: no prefix. For the command: numbers for all rows, an npy file, or
        one file per row.
      stop: the element that ends a row, or several of which each does; all later elements of the
        row are equal to the one that ended it. None: rows do not end early.
      min_length: number of elements, the prefix included, before which no `stop` is drawn.
      state: what `read` returned of a prefix, with which all rows begin; `sample` and `stream` draw
        what they draw with the `prefix`, without reading it again. The methods "auto" and "cached"
        of a network with a step continue from it, others begin with its elements. Not with
        `prefix`.
      guidance: weight by which every pixel's distribution is moved away from the unconditional one;
        0 samples the model.
      refine: number of passes that fit a student's sound to the mel that it read
        (`wavenet.features.frames`). None: for frames of a recording or of a text the number in
        model.json, otherwise 0.
      speaker: name of the speaker, for models with speakers.
      row: row of the seed for the first row, for exported and served models.
      draft: what proposes symbols for the method "speculative": a smaller model with equal symbols
        and noise, a student, or an object with `as_draft(model)`; it affects only the speed.
      acceptance: for drafts of sound: "coupling" draws what the other methods draw; "rejection"
        draws from the same distribution in fewer passes, at temperature 1 only.
      batch: number of images per pass of the method "fixed-point"; a finished image is replaced by
        the next one.
      scales: whether to return a list of all scales of each image, smallest first, in place of the
        largest one.
      return_log_prob: whether to also return the log-probability of every element.
    """

    num: int = 1
    length: Any = None
    seed: int = 0
    condition: Any = None
    method: str = "auto"
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    temperature: Any = field(
        default=None, metadata={KIND: Number(low=0.0, by_row=True, is_prompted=False, default=1.0)}
    )
    top_k: Any = field(default=0, metadata={KIND: Number(low=0, is_whole=True, needs_tokens=True)})
    top_p: Any = field(
        default=1.0, metadata={KIND: Number(low=0.0, high=1.0, is_above=True, needs_tokens=True)}
    )
    min_p: Any = field(default=0.0, metadata={KIND: Number(low=0.0, high=1.0, needs_tokens=True)})
    logit_bias: Any = field(default=None, metadata={KIND: Weights(needs_tokens=True)})
    repetition_penalty: Any = field(
        default=1.0,
        metadata={KIND: Number(low=0.0, is_above=True, needs_tokens=True, needs_time=True)},
    )
    presence_penalty: Any = field(
        default=0.0, metadata={KIND: Number(needs_tokens=True, needs_time=True)}
    )
    allowed: Any = field(default=None, metadata={KIND: Elements(is_all=True, needs_tokens=True)})
    prefix: Any = field(default=None, metadata={KIND: Beginning(needs_time=True)})
    stop: Any = field(default=None, metadata={KIND: Elements(needs_time=True, needs_levels=True)})
    min_length: Any = field(
        default=0,
        metadata={
            KIND: Number(low=0, is_whole=True, needs_tokens=True, needs_time=True, reads=("stop",))
        },
    )
    state: Any = None
    guidance: float = 0.0
    refine: int | None = None
    speaker: str | None = None
    row: int = 0
    draft: Any = None
    acceptance: Literal["coupling", "rejection"] = "coupling"
    batch: int = 1
    scales: bool = False
    return_log_prob: bool = False

    def changed_options(self) -> dict[str, Any]:
        """Return the options after `condition` that differ from their defaults."""
        found = {}
        for each in dataclasses.fields(self)[4:]:
            value, default = getattr(self, each.name), each.default
            is_same = type(value) is type(default) and bool(value == default)
            if value is not default and not is_same:
                found[each.name] = value
        return found

    def checked(self, num: int, length: int, order: str, event: Sequence[int] = ()) -> "Draw":
        """Return the options in the form that the other methods take, or raise UserError.

        The length is the number of time steps of a row, or its height; `event` are the sizes of the
        axes after the time axis.
        """
        asked = [n for n, kind in OPTIONS.items() if kind.needs_time and self._differs(n)]
        if order != "time" and asked:
            raise UserError(f"{_listed(asked)} a model in time order, got {order}.")
        found = {
            name: kind.check(self._value(name), name, num, length, event)
            for name, kind in OPTIONS.items()
        }
        return dataclasses.replace(self, **found)

    def begin_with_state(self, model: Callable[[], str]) -> "Draw":
        """Return the draw whose prefix is that of `state`; the draw itself without one.

        `model` returns the digest of the model that draws, which must have read the prefix.
        """
        if self.state is None:
            return self
        from onepass.prefix_state import PrefixState

        if not isinstance(self.state, PrefixState):
            raise UserError(f"`state` must be what `read` returns, got {self.state!r}.")
        if self.prefix is not None:
            raise UserError("`prefix` must be None next to `state`, which has one.")
        self.state.check_model(model())
        return dataclasses.replace(self, prefix=self.state.elements)

    def _value(self, name: str) -> Any:
        value = getattr(self, name)
        is_unset = value is None and getattr(Draw, name) is None
        return OPTIONS[name].default if is_unset else value

    def _differs(self, name: str) -> bool:
        value, default = self._value(name), OPTIONS[name].default
        return value is not None if default is None else value is not default and value != default

    def asked(self) -> dict[str, Option]:
        """Return the options, checked, that differ from their defaults, by name."""
        return {n: kind for n, kind in OPTIONS.items() if kind.is_asked(getattr(self, n))}

    def choice(self, distribution: Any, codec: Any, num: int, axes: int) -> Any:
        """Return the temperature, or a `Choice` if an option for tokens is set, once `checked`.

        The positions that have independent noise have `axes`. Raises ValueError for a distribution
        without tokens or temperatures, or where TensorFlow cannot compute.
        """
        import numpy as np
        import tensorflow as tf

        from onepass.foundation.runtime import check_compiler
        from onepass.likelihoods.distribution import table_of, tempers
        from onepass.likelihoods.truncated import Choice
        from onepass.networks.elements import encode_tokens

        check_compiler()
        for each in np.ravel(self.temperature):
            check_temperature(float(each), tempers(distribution))
        heat = tf.constant(self.temperature, tf.float32)
        if heat.shape.rank:  # to broadcast against the elements' axes
            heat = tf.reshape(heat, [num, *[1] * axes])
        asked = {name: kind for name, kind in self.asked().items() if kind.needs_tokens}
        if not asked:
            return heat
        if table_of(distribution) is None:
            raise ValueError(
                f"{_listed(asked)} a distribution over tokens, Categorical or a Tabulated one, got"
                f" {type(distribution).__name__}."
            )
        levels = distribution.levels

        def encode(elements: Any, name: str) -> Any:
            return encode_tokens(elements, codec, name)

        asked |= {n: OPTIONS[n] for kind in [*asked.values()] for n in kind.reads}
        found = {
            n: kind.tensor(getattr(self, n), n, encode, levels)
            for n, kind in asked.items()
            if getattr(self, n) is not None
        }
        return Choice(heat, **found)

    def prompt(self, codec: Any, num: int, length: int, layout: Any) -> tuple[Any, int]:
        """Return the prompt, and the number of symbols known in every row, as `prompt_of` does."""
        from onepass.networks.symbols import prompt_of

        return prompt_of(self.prefix, self.stop, codec, num, length, layout)


OPTIONS: dict[str, Option] = {
    each.name: dataclasses.replace(
        each.metadata[KIND],
        default=each.metadata[KIND].default if each.default is None else each.default,
    )
    for each in dataclasses.fields(Draw)
    if KIND in each.metadata
}
"""The options by name, in the order in which they are listed."""

LISTS: dict[str, str] = {
    f"{name}{ending}": f"{COUNT}{name}" for name, kind in OPTIONS.items() for ending in kind.lists
}
"""The inputs that are lists, each with the input that counts its elements."""


def prompt_inputs(facts: Facts) -> dict[str, Input]:
    """Return the inputs of the prompt signatures of a model, by name."""
    kinds = {n: each for n, each in OPTIONS.items() if each.is_prompted and each.suits(facts)}
    return {key: x for name, kind in kinds.items() for key, x in kind.inputs(name, facts).items()}


def choice_of(given: Mapping[str, Any], encode: Callable, levels: int) -> Any:
    """Return a row's temperature, or for a model over tokens its `Choice`, from its inputs."""
    from onepass.likelihoods.truncated import Choice

    heat = OPTIONS["temperature"].tensor_of(given, "temperature", encode, levels)
    kinds = {n: each for n, each in OPTIONS.items() if each.needs_tokens and n in given}
    kinds |= {n: OPTIONS[n] for kind in [*kinds.values()] for n in kind.reads}
    found = {n: each.tensor_of(given, n, encode, levels) for n, each in kinds.items()}
    return Choice(heat, **found) if found else heat


def _listed(names: Any) -> str:
    return " and ".join(f"`{name}`" for name in names) + (" needs" if len(names) == 1 else " need")


def collect_images(images: Iterable[list[Any]], scales: bool) -> Any:
    """Return what `sample` returns of images that are drawn scale by scale."""
    import numpy as np

    found = list(images)
    if not scales:
        return np.stack([each[-1] for each in found])
    return [np.stack(scale) for scale in zip(*found, strict=True)]


def stream_images(images: Iterable[list[Any]], scales: bool) -> Iterator[Any]:
    """Return what `stream` returns of images, one after another; see `collect_images`."""
    return (collect_images([each], scales) for each in images)


class Model:
    """A model that draws rows of elements: sequences, sounds or images."""

    @property
    def options(self) -> frozenset[str]:
        """Names of the options of `Draw` that the model has."""
        raise NotImplementedError

    @takes(Draw)
    def sample(
        self, num: int = 1, length: Any = None, seed: int = 0, condition: Any = None, **options: Any
    ) -> Any:
        """Return `num` rows: sequences [num, length, ...] or images [num, height, width, channels].

        With given options, a row depends only on the seed, its index, its condition and prefix, and
        by rounding on the method and `num`.

        Args:
          **options: options of `Draw`.

        Returns:
          The elements; with `return_log_prob`, a pair of the elements and the log-probability of
          each in nats under the model itself, at temperature 1 without truncation; 0 after a row's
          end.

        Raises:
          ValueError: an argument is invalid for this model.
          UnsupportedNetworkError: the method needs a step, which the network does not have, or its
            passes do not converge.
        """
        draw = Draw(num, length, seed, condition, **options)
        self.check_options(**draw.changed_options())
        return self._sample(draw)

    @takes(Draw)
    def stream(
        self,
        num: int = 1,
        length: Any = None,
        seed: int = 0,
        condition: Any = None,
        *,
        chunk: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Return an iterator over the elements of `sample` in parts, as they are drawn.

        Sequences come in parts [num, up to about `chunk`, ...], and end early once all rows have
        ended with `stop`. Images come one after another, [1, height, width, channels].

        Args:
          chunk: number of elements of a row in a part, rounded up to what the model computes
            together; None: the model's default.
          **options: options of `Draw`.

        Raises:
          ValueError: an argument is invalid for this model; raised by the call itself, before the
            first element.
          UnsupportedNetworkError: the network has no step; also raised by the call itself.
        """
        draw = Draw(num, length, seed, condition, **options)
        self.check_options(**draw.changed_options())
        return self._stream(draw, chunk)

    def read(self, prefix: Any, length: Any = None, condition: Any = None) -> "PrefixState":
        """Read a prefix once, and return the `state` from which `sample` and `stream` continue.

        What is drawn of it equals, to the bit, what is drawn with the prefix.

        Args:
          prefix: elements [n, ...], at least one.
          length: the `length` of the rows to be drawn. Networks with attention have room for rows
            of up to the next power of two, and read the prefix once more for rows of another one;
            None: that of the prefix.
          condition: the `condition` of `sample` for one row. During the prefix, each row to be
            drawn must have the same.

        Raises:
          ValueError: the model reads no prefix, or an argument is invalid for it.
          UnsupportedNetworkError: the network has no step.
        """
        raise UserError(f"This {self._describe()} reads no prefix ahead of a draw.")

    def log_prob(
        self,
        elements: Any,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
        weights: str = "float32",
    ) -> Any:
        """Return the exact log-probability of every element given those before it, in nats.

        For images it is that of each whole image, [num], except for a network of one's own.

        Args:
          elements: elements of the kind that `sample` returns.
          condition: the `condition` of `sample` for these elements.
          lengths: integers [num], number of time steps of each row of a network of one's own; later
            elements may be anything.
          speaker: name of the speaker, for models with speakers.
          weights: the `weights` of `sample` whose model is scored.

        Raises:
          ValueError: the model has no log-probability, or an argument is invalid for it.
        """
        raise UserError(f"This {self._describe()} has no log-probability.")

    def check_options(self, **options: Any) -> None:
        """Raise UserError for an option that the model does not have; None stands for no option."""
        for name, value in options.items():
            if value is not None and name not in self.options:
                known = ", ".join(sorted(self.options)) or "no options"
                raise UserError(
                    f"`{name}` must not be given: this {self._describe()} takes {known}."
                )

    def _sample(self, draw: Draw) -> Any:
        raise NotImplementedError

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        raise NotImplementedError

    def _describe(self) -> str:
        return f"{getattr(self, 'kind', 'model')} model"
