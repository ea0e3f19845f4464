"""`Model`, the interface of everything that draws: local, exported and served models.

What is asked of a model is one record, `Draw`: its fields are the keyword arguments of `sample` and
`stream`, with the same names, order and defaults for every model.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from onepass.draw import Draw
from onepass.foundation.errors import UserError
from onepass.foundation.settings import takes

if TYPE_CHECKING:
    from onepass.prefix_state import PrefixState


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
