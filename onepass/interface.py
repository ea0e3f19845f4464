"""`Model`, the interface of everything that draws: local, exported and served models.

What is asked of a model is one record, `Draw`: its fields are the keyword arguments of `sample` and
`stream`, with the same names, order and defaults for every model.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from onepass.foundation.errors import UserError
from onepass.foundation.options import takes

Acceptance = Literal["coupling", "rejection"]


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
      temperature: at least 0, a number or one for each row (a multiscale model: for each scale,
        base first); 1 samples the distribution, smaller values are closer to its mode. None: the
        model's default, 1 unless its model.json says otherwise.
      top_k: number of most probable tokens to draw from; 0: all tokens.
      top_p: draw only from the most probable tokens that together have at least this probability,
        in (0, 1]; applied after `temperature` and `top_k`.
      prefix: elements with which the rows begin, [num, n, ...], [n, ...] for all rows, or a list of
        rows of different lengths; a PixelCNN begins with pixels [n, channels] or rows of pixels
        [rows, width, channels], a multiscale model with a smaller image [side, side, channels],
        which it enlarges. None: no prefix.
      stop: the element that ends a row; all later elements of the row are equal to it. None: rows
        do not end early.
      guidance: weight by which every pixel's distribution is moved away from the unconditional one;
        0 samples the model.
      refine: number of passes that fit a student's sound to the mel that it read
        (`distill.refinement`). None: for frames of a recording or of a text the number in
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
    temperature: Any = None
    top_k: Any = 0
    top_p: Any = 1.0
    prefix: Any = None
    stop: Any = None
    guidance: float = 0.0
    refine: int | None = None
    speaker: str | None = None
    row: int = 0
    draft: Any = None
    acceptance: Acceptance = "coupling"
    batch: int = 1
    scales: bool = False
    return_log_prob: bool = False

    def prompt_options(self) -> dict[str, Any]:
        """Return the options that choose the elements of a network of one's own."""
        names = ("top_k", "top_p", "prefix", "stop")
        return {name: getattr(self, name) for name in names}

    def changed_options(self) -> dict[str, Any]:
        """Return the options after `condition` that differ from their defaults."""
        options = dataclasses.fields(self)[4:]
        values = {field.name: getattr(self, field.name) for field in options}
        defaults = {field.name: field.default for field in options}
        return {name: value for name, value in values.items() if not _same(value, defaults[name])}


def _same(value: Any, default: Any) -> bool:
    """Return whether an option has its default; arrays never do."""
    return value is default or (type(value) is type(default) and bool(value == default))


class Model:
    """A model that draws rows of elements: sequences, sounds or images."""

    @property
    def options(self) -> frozenset[str]:
        """Names of the options of `Draw` that the model has."""
        raise NotImplementedError

    @takes(Draw)
    def sample(  # noqa: D417 - `takes` adds the entries of `Draw`
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
          UnsupportedNetworkError: the method needs a step, which the network does not have.
        """
        draw = Draw(num, length, seed, condition, **options)
        self.check_options(**draw.changed_options())
        return self._sample(draw)

    @takes(Draw)
    def stream(  # noqa: D417 - `takes` adds the entries of `Draw`
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

    def log_prob(
        self,
        elements: Any,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
    ) -> Any:
        """Return the exact log-probability of every element given those before it, in nats.

        For images it is that of each whole image, [num], except for a network of one's own.

        Args:
          elements: elements of the kind that `sample` returns.
          condition: the `condition` of `sample` for these elements.
          lengths: integers [num], number of time steps of each row of a network of one's own; later
            elements may be anything.
          speaker: name of the speaker, for models with speakers.

        Raises:
          ValueError: the model has no log-probability, or an argument is invalid for it.
        """
        raise UserError(f"A {self._describe()} has no log-probability.")

    def check_options(self, **options: Any) -> None:
        """Raise UserError for an option that the model does not have.

        Args:
          **options: the options that are given, by name; None stands for no option.
        """
        for name, value in options.items():
            if value is not None and name not in self.options:
                known = ", ".join(sorted(self.options)) or "no options"
                raise UserError(f"`{name}` must not be given: a {self._describe()} takes {known}.")

    def _sample(self, draw: Draw) -> Any:
        raise NotImplementedError

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        raise NotImplementedError

    def _describe(self) -> str:
        """Return the kind of model, as messages name it."""
        return f"{getattr(self, 'kind', 'model')} model"
