"""`Trained`: a model of this library, as `onepass.load` returns it, in three parts."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onepass.foundation.rules import UserError
from onepass.interface import Draw, Model

if TYPE_CHECKING:
    from onepass.model import Autoregressive


@dataclasses.dataclass(frozen=True)
class Trained(Model):
    """A trained model: what draws, what it is asked with, and what model.json says of it.

    Attributes:
      model: what draws in its own terms: the network, its weights and its samplers. It has
        `sample(draw)` and `stream(draw, chunk)` for requests whose condition and prefix are the
        network's.
      front: what makes a recording, a speaker's name, a class, a caption or a map a condition of
        the network, and says what the elements are, such as their sample rate or size.
      spec: the content of model.json.
    """

    model: Any
    front: Any
    spec: dict[str, Any]

    @property
    def kind(self) -> str:
        """The kind of model in model.json, such as "parallel-wavenet" or "multiscale"."""
        return str(self.spec["kind"])

    @property
    def makes(self) -> str:
        """The kind of elements: "sound" or "images"."""
        return self.front.makes

    @property
    def network(self) -> Any:
        """The module whose variables are the weights."""
        return self.model.network

    @property
    def config(self) -> Any:
        """The training configuration."""
        return self.model.config

    @property
    def options(self) -> frozenset[str]:
        """Names of the options of `Draw` that the model has."""
        return self.model.options

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods of `sample`."""
        return self.model.methods

    def _sample(self, draw: Draw) -> Any:
        draw = self._in_terms_of_the_model(draw)
        return self.front.finish(self.model.sample(draw), draw)

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        draw = self._in_terms_of_the_model(draw)
        parts = self.model.stream(draw, chunk)
        return (self.front.finish(part, draw) for part in parts)

    def _in_terms_of_the_model(self, draw: Draw) -> Draw:
        draw = self.front.read(self.model.check_draw(draw))
        if draw.draft is None:
            return draw
        if id(draw.draft) not in self._drafts:  # the reference to it prevents reuse of its id
            self._drafts[id(draw.draft)] = draw.draft, draw.draft.as_draft(self)
        return dataclasses.replace(draw, draft=self._drafts[id(draw.draft)][1])

    @functools.cached_property
    def _drafts(self) -> dict[int, tuple[Any, Any]]:
        """The drafts, each with what it proposes symbols by for this model."""
        return {}

    def log_prob(
        self,
        elements: Any,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
        weights: str = "float32",
    ) -> Any:
        """See `Model.log_prob`; the result is float32 [num] for images, and for sounds their shape.

        If the base of a multiscale model is a flow, it is a lower bound, or NaN where the flow
        cannot be inverted in float32.

        Args:
          elements: integers [num, size, size, channels], with the size in training; or float32
            [samples] or [num, samples] at the model's sample rate, at its stored level.
          condition: the `condition` of `sample`, or one for each row; frames must be of the same
            recording.
          lengths: None; images and waveforms are scored whole.
          speaker: a speaker's name, for models with speakers.
          weights: the `weights` of `sample`, for a WaveNet.
        """
        score = self._ability("log_prob", "log-probability")
        options = {} if weights == "float32" else {"weights": weights}
        self.check_options(lengths=lengths, speaker=speaker, **options)
        elements, given, number = self.front.read_elements(elements, condition, speaker)
        return score(elements, given, number, **options)

    def log_density(
        self,
        num: int,
        length: Any,
        seed: int,
        condition: Any = None,
        *,
        method: str = "auto",
        speaker: str | None = None,
    ) -> Any:
        """Return the log-density of the rows that `sample` draws at temperature 1, in nats.

        It is float32 [num, length] for sounds of a student, without refinement and at the model's
        level, and [num] for images without guidance, which must have the size in training. It is
        the exact log-probability of images, unless the base of a multiscale model is a flow. The
        arguments are those of `sample`.

        Raises:
          ValueError: the model has no such density, or an argument does not fit it.
        """
        density = self._ability("log_density", "density of what it draws")
        self.check_options(speaker=speaker)
        draw = Draw(num, length, seed, condition, method, temperature=1.0, speaker=speaker)
        return density(self._in_terms_of_the_model(draw))

    def as_draft(self, model: Any) -> Any:
        """Return the model as a draft for another one's `sample(method="speculative")`.

        Raises:
          UserError: the model is no student of sound, or the other model is not a WaveNet, has no
            density, or differs from the student in sample rate, frames, gain or speakers.
        """
        if not hasattr(self.model, "as_draft"):
            raise UserError(f"`draft` must be a model that proposes symbols, got a {self.kind}.")
        return self.model.as_draft(self.spec, model)

    def compress(
        self,
        elements: Any,
        condition: Any = None,
        *,
        speaker: str | None = None,
        batch: int = 256,
        tolerance: float = 1e-5,
        verify: bool | None = None,
    ) -> bytes:
        """Compress images or recordings losslessly and return the content of the file.

        With many elements, the file is less than 0.5 % larger than their `-log_prob` in bits.

        Args:
          elements: uint8 [num, size, size, channels], with the size in training. Or int16 [samples]
            for each recording, at the model's sample rate, for a model with 65,536 levels; for
            fewer levels, the levels as uint8 or uint16. No gain is applied.
          condition: the `condition` of `sample` of images; it is stored in the file.
          speaker: a speaker's name, for models with speakers; it is stored in the file.
          batch: number of images that are decoded together.
          tolerance: the `tolerance` of `onepass.compress`.
          verify: the `verify` of `onepass.compress`; None: not for recordings of more than 20,000
            samples in total, since every sample takes a step.

        Raises:
          UserError: the model has no exact conditional distributions or reads frames, the elements
            do not fit the model, or the verification fails.
        """
        from onepass.compression.container import compress

        self.check_options(speaker=speaker)
        options: Any = {"tolerance": tolerance, "verify": verify, "batch": batch}
        given = condition if speaker is None else speaker
        return compress(self._files(), elements, given, **options)

    def decompress(self, data: bytes, *, max_elements: int | None = None) -> Any:
        """Return the images or the list of recordings in a file from `compress`, bit for bit.

        The arguments and errors are those of `onepass.decompress`.
        """
        from onepass.compression.container import decompress

        return decompress(self._files(), data, max_elements=max_elements)

    @functools.cached_property
    def compressed(self) -> Any:
        """The format of compressed files; None for a kind of model without exact conditionals.

        Raises:
          UserError: this model of its kind cannot compress.
        """
        make = getattr(self.model, "files_of", None)
        return None if make is None else make(self.front)

    @property
    def autoregressive(self) -> "Autoregressive":
        """The network of a WaveNet or a PixelCNN as an `Autoregressive`.

        Elements of sounds are samples in [-1, 1] after the model's gain, float32 [num, time], and
        the condition is the result of `network.condition`, [num, time, channels]; that of images is
        the result of `front.condition`. For the same seed it draws the same elements.

        Raises:
          UserError: the model does not draw elements one by one.
        """
        if not hasattr(type(self.model), "autoregressive"):
            raise UserError(f"This {self._describe()} does not draw elements one by one.")
        return self.model.autoregressive

    def _files(self) -> Any:
        if self.compressed is None:
            raise UserError(f"This {self._describe()} has no exact conditionals to compress with.")
        return self.compressed

    def _ability(self, name: str, words: str) -> Any:
        found = getattr(self.model, name, None)
        if found is None:
            raise UserError(f"This {self._describe()} has no {words}.")
        return found
