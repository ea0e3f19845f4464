"""Sampling and log probabilities by a model's signatures, in this process or on a server."""

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from onepass.bundles.condition_inputs import (
    COUNT,
    ELEMENTS,
    FRAMES,
    condition_arrays,
    is_timed,
    names_of,
)
from onepass.bundles.signature import (
    CHUNK,
    COMPILED,
    ENDED,
    IMAGE,
    LOG_PROB,
    PROMPTED,
    PROMPTED_CHUNK,
    SEED,
    STATE,
    WITH_LOG_PROB,
    Arrays,
    TensorInfo,
)
from onepass.draw import LISTS, OPTIONS, Draw
from onepass.foundation.arguments import (
    check_draw_length,
    check_flag,
    check_seed,
    check_unmasked,
    whole_number,
)
from onepass.foundation.errors import UserError
from onepass.interface import Model

LAST_ROW = 2**31 - 1  # largest row number of a seed


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of a call that generates rows of a model, in a bundle or on a server.

    Attributes:
      shape: shape of a row: (time,) or (height, width, channels).
      side_frames: number of frames before and after a segment that its elements depend on.
    """

    num: int
    shape: tuple[int, ...]
    seed: int
    conditions: Arrays
    draw: Draw
    first_row: int = 0
    hop_samples: int = 1
    side_frames: int = 0

    @classmethod
    def check_draw(
        cls,
        draw: Draw,
        order: str,
        condition: Callable[[int, int], Arrays],
        *,
        hop_samples: int = 1,
        side_frames: int = 0,
    ) -> "Request":
        """Check what is asked of a model, and return it as a request for its signatures.

        Args:
          condition: function that returns the inputs that are conditions, given the number of rows
            and the size of the first axis of a row.
        """
        num, shape = whole_number(draw.num, "num"), check_draw_length(draw.length, order)
        first_row = whole_number(draw.row, "row", 0)
        if first_row + num - 1 > LAST_ROW:
            raise ValueError(f"`row` must be at most {LAST_ROW} for the last row, got {first_row}.")
        seed, draw = seed_number(draw.seed), draw.checked(num, shape[0], order)
        conditions = condition(num, shape[0])
        return cls(num, shape, seed, conditions, draw, first_row, hop_samples, side_frames)

    @property
    def temperature(self) -> np.ndarray:
        """The temperature of each row, float32 [num]."""
        return np.broadcast_to(np.asarray(self.draw.temperature, np.float32), [self.num])

    @property
    def words(self) -> list[str]:
        """Names, in backquotes, of this request's options that only prompt signatures take."""
        return [f"`{name}`" for name, kind in self.draw.asked().items() if kind.is_prompted]

    def check_known(self, known: Mapping[str, TensorInfo]) -> None:
        """Raise ValueError if a prompt signature, with inputs `known`, lacks a requested option."""
        for name, kind in self.draw.asked().items():
            if name not in known and kind.needs_tokens:
                raise ValueError(f"`{name}` needs a distribution over tokens.")
            if name not in known and kind.needs_levels:
                raise ValueError(
                    f"`{name}` needs a model of integer symbols, got one of real numbers."
                )

    def inputs(
        self, known: Mapping[str, TensorInfo], rows: np.ndarray, first: int, count: int
    ) -> Arrays:
        """Return a signature's inputs for rows, with `count` elements starting at `first`."""
        size = len(rows)
        heat = self.temperature[rows].reshape([size] + [1] * (len(known["temperature"].shape) - 1))
        inputs = noise_inputs(known, self.seed, rows + self.first_row, heat)
        for name, array in self.conditions.items():
            if name == FRAMES:
                inputs |= self._frames(known, array[rows], first, first + count)
            else:
                timed = name in known and is_timed(known[name])
                inputs[name] = array[rows, first : first + count] if timed else array[rows]
        for name, value in ((COUNT, count), ("start", first)):
            if name in known:
                inputs[name] = np.full([size], value, np.int32)
        return inputs | self._prompt(known, rows, first, count)

    def _frames(self, known: Mapping[str, TensorInfo], frames: Any, first: int, end: int) -> Arrays:
        low, high = first // self.hop_samples, -(-end // self.hop_samples)
        before = min(low, self.side_frames)
        after = max(0, min(frames.shape[1] - high, self.side_frames))
        counts = {"frames_before": before, "num_frames": high - low, "frames_after": after}
        if "frames_before" not in known:  # a whole row, whose neighbours are part of it
            counts = {"num_frames": before + high - low + after}
        window = frames[:, low - before : high + after]
        arrays = {name: np.full([len(frames)], value, np.int32) for name, value in counts.items()}
        return {FRAMES: window, **arrays}

    def _prompt(
        self, known: Mapping[str, TensorInfo], rows: np.ndarray, first: int, count: int
    ) -> Arrays:
        inputs: Arrays = {}
        for name, kind in self.draw.asked().items():
            if kind.is_prompted and name in known:
                inputs |= kind.arrays(getattr(self.draw, name), name, rows, first, count)
        return {n: as_elements(known[n], x, n) if n in LISTS else x for n, x in inputs.items()}


def seed_number(seed: Any) -> int:
    """Return a seed as a Python integer; raise ValueError unless it is an integer in [0, 2^64)."""
    try:
        return operator.index(check_seed(seed))
    except TypeError:  # a key, which only a live model takes
        raise ValueError(f"`seed` must be an integer in [0, 2^64), got {seed!r}.") from None


def noise_inputs(known: Mapping[str, TensorInfo], seed: int, rows: Any, temperature: Any) -> Arrays:
    """Return the noise's inputs; the temperature is [rows], [rows, 1], [scales] or [1]."""
    sides = [len(rows), *(side or 1 for side in known["temperature"].shape[1:])]
    return {
        SEED: np.full([len(rows)], seed, np.uint64),
        "row": np.array(rows, np.int32),
        "temperature": np.full(sides, temperature, np.float32),
    }


def as_elements(info: TensorInfo, elements: Any, name: str = "elements") -> np.ndarray:
    """Return elements in the input's dtype; text, and floats for integers, stay for the check."""
    check_unmasked(elements, name)
    array = np.asarray(elements)
    if array.dtype.kind in "iu" and info.dtype.kind == "i" and array.size:
        limits, least, greatest = np.iinfo(info.dtype), array.min(), array.max()
        if least < limits.min or greatest > limits.max:
            raise ValueError(f"`{name}` must be {info.dtype}, got {least} to {greatest}.")
    is_real = array.dtype.kind not in "iu" and info.dtype.kind == "i"
    return array if is_real or array.dtype.kind in "USO" else array.astype(info.dtype)


BATCHES = range(1, 9)  # numbers of rows in a call to a server, which batches them itself
OTHERS = ("num_samples", LOG_PROB, ENDED)  # outputs other than the elements and the state
OWN_OPTIONS = frozenset({*OPTIONS, "row", "return_log_prob"})  # of a user's model


class Sampling(Model):
    """Base class of models that generate by calling signatures, here or on a server.

    `spec` is model.json or the server's description; `problem`, the error for invalid arguments.
    """

    name: str
    spec: dict[str, Any]
    problem: ClassVar[type[Exception]] = UserError

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise a ValueError of the block as an error of type `problem`."""
        try:
            yield
        except ValueError as error:
            raise self.problem(str(error)) from error

    def check_options(self, **options: Any) -> None:
        """See `Model.check_options`; the error has the type `problem`."""
        with self._own_errors():
            super().check_options(**options)

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as the program takes them."""
        raise NotImplementedError

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        raise NotImplementedError

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        raise NotImplementedError

    def _own_sample(self, draw: Draw) -> Any:
        length = draw.length
        with self._own_errors():
            return_log_prob = check_flag(draw.return_log_prob, "return_log_prob")
            request = self._own_request(draw)
        signature = self._signature_for(request, COMPILED, PROMPTED)
        with_nats = return_log_prob and signature == PROMPTED
        parts, nats = [], []
        for outputs in self._outputs_of_rows(signature, request, with_nats):
            parts.append(only_output(outputs))
            nats += [outputs[LOG_PROB]] if with_nats else []
            # A program of one shape ignores the requested length.
            if parts[0].shape[1:] != request.shape:
                wanted = parts[0].shape[1:] if parts[0].ndim > 2 else parts[0].shape[1]
                raise self.problem(f"`length` must be {wanted}, as exported, got {length}.")
        elements = np.concatenate(parts).astype(self._dtype)
        if not return_log_prob:
            return elements
        if with_nats:
            return elements, np.concatenate(nats)
        return elements, self.log_prob(elements, draw.condition)

    def _own_request(self, draw: Draw, for_all: bool = False) -> Request:
        order = self.spec.get("order", "time" if np.ndim(draw.length) == 0 else "raster")
        return Request.check_draw(draw, order, self._conditions(draw.condition, for_all))

    def log_prob(
        self,
        elements: Any,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
    ) -> np.ndarray:
        """See `Model.log_prob`; only a user's model has the signature."""
        known = self._inputs_of(LOG_PROB)
        if not known:
            raise UserError(f"The model `{self.name}` has no log-probabilities.")
        self.check_options(lengths=lengths, speaker=speaker)
        with self._own_errors():
            given = {ELEMENTS: as_elements(known[ELEMENTS], elements)}
            sizes = np.shape(given[ELEMENTS])[:2]
            if len(sizes) == 2:
                names = names_of(self.spec, known)
                given |= condition_arrays(condition, names, known, sizes[0], sizes[1])
        parts = []
        for first in range(0, max(1, len(given[ELEMENTS])), BATCHES[-1]):
            inputs = {name: array[first : first + BATCHES[-1]] for name, array in given.items()}
            parts.append(self._outputs(LOG_PROB, inputs)[LOG_PROB])
        return np.concatenate(parts)

    def stream_chunks(self, request: Request, chunk: int, opening: int = 0) -> Iterator[np.ndarray]:
        """Return an iterator over the next elements of sequences [num, n], as they are generated.

        It ends early once all rows have ended. `chunk`, and `opening` for the first one, are
        rounded up to a multiple of the model's unit.
        """
        if not self._inputs_of(CHUNK):
            raise self.problem(f"The model `{self.name}` cannot stream: call `sample`.")
        signature = self._signature_for(request, CHUNK, PROMPTED_CHUNK)
        with self._own_errors():
            chunk = whole_number(chunk, "chunk")
        length, most = request.shape[0], self.spec.get("max_length", request.shape[0])
        if length > most:
            raise self.problem(f"`length` must be at most {most}, as exported, got {length}.")
        streaming = self.spec.get("serving", {}).get("streaming") or self.spec
        unit = int(streaming["unit_samples"])
        sizes = (-(-size // unit) * unit for size in (opening or chunk, chunk))
        return self._parts(request, signature, *sizes)

    @property
    def _dtype(self) -> str:
        return (self.spec.get(ELEMENTS) or {}).get("dtype", "float32")

    @property
    def _is_own(self) -> bool:
        return isinstance(self.spec.get(ELEMENTS), dict)

    def _conditions(self, condition: Any, for_all: bool = False) -> Callable[[int, int], Arrays]:
        """Return a function from numbers of rows and time steps to conditions' inputs.

        `Request.check_draw` calls it. If `for_all`, one row may be given for all rows even in a
        condition with a time axis.
        """
        known = self._inputs_of(COMPILED)
        names = names_of(self.spec, known)
        return lambda rows, length: condition_arrays(condition, names, known, rows, length, for_all)

    def _groups(self, num: int) -> Iterator[tuple[np.ndarray, int]]:
        sizes = sorted(self.spec.get("serving", {}).get("allowed_batches", BATCHES))
        for first in range(0, num, sizes[-1]):
            count = min(sizes[-1], num - first)
            size = next(size for size in sizes if size >= count)
            rows = np.arange(first, first + size, dtype=np.int32)
            yield np.minimum(rows, first + count - 1), count

    def _outputs_of_rows(
        self, signature: str, request: Request, with_nats: bool = False
    ) -> Iterator[Arrays]:
        known = self._inputs_of(signature)
        for rows, count in self._groups(request.num):
            with self._own_errors():
                inputs = request.inputs(known, rows, 0, request.shape[0])
            if with_nats:
                inputs[WITH_LOG_PROB] = np.ones([len(rows)], np.int32)
            outputs = self._outputs(signature, inputs)
            yield {name: array[:count] for name, array in outputs.items()}

    def _signature_for(self, request: Request, plain: str, prompted: str) -> str:
        if not request.words:
            return plain
        known = self._inputs_of(prompted)
        if not known:
            raise self.problem(
                f"`{self.name}` takes no {' and no '.join(request.words)}: its bundle has no"
                f" signature `{prompted}`. Export the model again with this version; a student,"
                " and a model in raster order that is not over tokens, has none."
            )
        with self._own_errors():
            request.check_known(known)
        return prompted

    def _parts(
        self, request: Request, signature: str, opening: int, chunk: int
    ) -> Iterator[np.ndarray]:
        known, (length,) = self._inputs_of(signature), request.shape
        groups = [_Following(known, *group) for group in self._groups(request.num)]
        first, size = 0, opening
        while first < length and not all(group.ended.all() for group in groups):
            count, made = min(size, length - first), []
            for group in groups:
                with self._own_errors():
                    inputs = request.inputs(known, group.rows, first, count)
                made.append(group.keep_chunk(self._outputs(signature, inputs | group.state), count))
            yield np.concatenate(made).astype(self._dtype)
            first, size = first + count, chunk


class _Following:
    """A call's rows in a stream, `count` of them requested and the rest repeats of the last."""

    def __init__(self, known: Mapping[str, TensorInfo], rows: np.ndarray, count: int):
        self.rows, self._count = rows, count
        self.state = {
            name: np.full([len(rows), *info.shape[1:]], info.default or 0, info.dtype)
            for name, info in known.items()
            if name.startswith(STATE)
        }
        self.ended = np.zeros([count], bool)
        self._last = np.zeros([count, 1])

    def keep_chunk(self, outputs: Arrays, count: int) -> np.ndarray:
        """Return the next elements [rows, count]; a row that has ended repeats its last element."""
        self.state = {name: outputs[name] for name in self.state}
        made = only_output(outputs)[: self._count, :count]
        made = np.where(self.ended[:, np.newaxis], self._last.astype(made.dtype), made)
        self._last = made[:, -1:]
        if ENDED in outputs:
            self.ended |= outputs[ENDED][: self._count].astype(bool)
        return made


def only_output(outputs: Arrays) -> np.ndarray:
    """Return the elements, of images the largest scale, among a signature's unordered outputs."""
    if IMAGE in outputs:
        return outputs[IMAGE]
    (elements,) = (
        array
        for name, array in outputs.items()
        if name not in OTHERS and not name.startswith(STATE)
    )
    return elements
