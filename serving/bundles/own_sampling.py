"""Samples and log-probabilities of a user's model by its signatures, here or on a server."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from foundation.arguments import whole_number
from foundation.errors import UserError
from serving.bundles.condition_inputs import conditions_given, names_of
from serving.bundles.own_requests import OwnRequest, as_elements
from serving.bundles.prompt_inputs import ENDED, PROMPTED, PROMPTED_CHUNK, WITH_LOG_PROB
from serving.bundles.signature import COMPILED, LOG_PROB, Arrays, TensorInfo

ROWS = 8  # most rows of one call
ELEMENTS = "elements"
CHUNK, STATE = "chunk", "state_"
OTHERS = ("num_samples", LOG_PROB, ENDED)  # outputs next to the elements and the state


class OwnSampling:
    """The methods of a user's model, here or on a server; a subclass calls its signatures.

    Attributes:
      name: name of the model.
      spec: model.json of the model.
      problem: type of the errors that are raised for wrong arguments.
    """

    name: str
    spec: dict[str, Any]
    problem: ClassVar[type[Exception]] = UserError

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise a ValueError of the block as this class's `problem`."""
        try:
            yield
        except ValueError as error:
            raise self.problem(str(error)) from error

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        """Return the inputs of a signature; empty if the model lacks it."""
        raise NotImplementedError

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        raise NotImplementedError

    def sample(
        self,
        num: int,
        length: Any,
        seed: int,
        condition: Any = None,
        *,
        temperature: Any = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        prefix: Any = None,
        stop: Any = None,
        return_log_prob: bool = False,
    ) -> Any:
        """Return `num` arrays [num, *length], as `Autoregressive.sample` with the same arguments.

        With `return_log_prob`, return a pair: the arrays, and the log-probability of every element.
        """
        prompt = {"top_k": top_k, "top_p": top_p, "prefix": prefix, "stop": stop}
        with self._own_errors():
            order = self.spec.get("order", "time" if np.ndim(length) == 0 else "raster")
            given = (num, length, seed, self._conditions(condition))
            request = OwnRequest.checked(order, *given, temperature=temperature, **prompt)
        signature = self._signature_for(request, COMPILED, PROMPTED)
        with_nats = return_log_prob and signature == PROMPTED
        parts: list[np.ndarray] = []
        nats: list[np.ndarray] = []
        for rows in _groups(request.num):
            outputs = self._made(signature, request, rows, with_nats)
            parts.append(only_output(outputs))
            nats += [outputs[LOG_PROB]] if with_nats else []
            # A program of one shape makes it whatever length is asked for.
            if parts[0].shape[1:] != request.shape:
                wanted = parts[0].shape[1:] if parts[0].ndim > 2 else parts[0].shape[1]
                raise self.problem(f"`length` must be {wanted}, as exported, got {length}.")
        elements = np.concatenate(parts).astype(self.spec[ELEMENTS]["dtype"])
        if not return_log_prob:
            return elements
        return elements, np.concatenate(nats) if with_nats else self.log_prob(elements, condition)

    def _conditions(
        self, condition: Any, for_all: bool = False
    ) -> Callable[[int, int], Arrays] | None:
        """Return a function that gives the inputs for a number of rows and of times.

        `OwnRequest.checked` calls it when it knows both numbers.

        Args:
          condition: an array [rows, ...] for the model's only condition, arrays by name for several
            conditions, or None.
          for_all: whether one row may stand for all rows even in a condition at the rate of the
            elements.
        """
        if condition is None:
            return None
        known = self._inputs_of(COMPILED)
        names = names_of(self.spec, known)
        return lambda rows, length: conditions_given(condition, names, known, rows, length, for_all)

    def _made(
        self, signature: str, request: OwnRequest, rows: np.ndarray, with_nats: bool
    ) -> Arrays:
        """Return the outputs of a signature for whole rows."""
        known = self._inputs_of(signature)
        with self._own_errors():
            inputs = request.inputs(known, rows, 0, request.shape[0])
        if with_nats:
            inputs[WITH_LOG_PROB] = np.ones([len(rows)], np.int32)
        return self._outputs(signature, inputs)

    def _signature_for(self, request: OwnRequest, plain: str, prompted: str) -> str:
        """Return the signature that makes rows: the plain one, or the one that takes prompts.

        Raises:
          ValueError: the model takes no prompts, or not what this request asks for; raised as
            this class's `problem`.
        """
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

    def streamed(self, request: OwnRequest, chunk: int) -> Iterator[np.ndarray]:
        """Return the next elements of sequences [num, n], as they are made.

        The iterator ends early once all rows have ended.

        Args:
          request: the checked arguments of the call.
          chunk: elements at a time, rounded up to a multiple of the model's unit.

        Raises:
          ValueError: an argument has no meaning for this model; raised at the call, not at the
            first element, as this class's `problem`.
        """
        if not self._inputs_of(CHUNK):
            raise UserError(f"The model `{self.name}` cannot stream: call `sample`.")
        signature = self._signature_for(request, CHUNK, PROMPTED_CHUNK)
        with self._own_errors():
            chunk = whole_number(chunk, "chunk")
        self._check_streamed(request.shape[0])
        unit = int(self.spec["unit_samples"])
        return self._parts(request, signature, -(-chunk // unit) * unit)

    def _check_streamed(self, length: int) -> None:
        """Raise `problem` if a sequence is longer than the model was exported for."""
        most = self.spec.get("max_length", length)
        if length > most:
            raise self.problem(f"`length` must be at most {most}, as exported, got {length}.")

    def _parts(self, request: OwnRequest, signature: str, chunk: int) -> Iterator[np.ndarray]:
        known, (length,) = self._inputs_of(signature), request.shape
        groups = [_Following(rows, _first_state(known, len(rows))) for rows in _groups(request.num)]
        for first in range(0, length, chunk):
            count = min(chunk, length - first)
            made = []
            for group in groups:
                with self._own_errors():
                    inputs = request.inputs(known, group.rows, first, count)
                made.append(group.kept(self._outputs(signature, inputs | group.state), count))
            yield np.concatenate(made).astype(self.spec[ELEMENTS]["dtype"])
            if all(group.ended.all() for group in groups):
                return

    def log_prob(self, elements: Any, condition: Any = None) -> np.ndarray:
        """Return the log-probability of every element under the model, float32, in nats.

        Args:
          elements: elements [batch, time] or [batch, height, width, channels].
          condition: an array [batch, ...] for the model's only condition, arrays by name for
            several conditions, or None for a model without.
        """
        known = self._inputs_of(LOG_PROB)
        if not known:
            raise UserError(f"The model `{self.name}` has no log-probabilities.")
        with self._own_errors():
            given = {ELEMENTS: as_elements(known[ELEMENTS], elements)}
            sizes = np.shape(given[ELEMENTS])[:2]
            if condition is not None and len(sizes) == 2:
                names = names_of(self.spec, known)
                given |= conditions_given(condition, names, known, *sizes)
        parts = []
        for first in range(0, max(1, len(given[ELEMENTS])), ROWS):
            inputs = {name: array[first : first + ROWS] for name, array in given.items()}
            parts.append(self._outputs(LOG_PROB, inputs)[LOG_PROB])
        return np.concatenate(parts)


class _Following:
    """Some rows of a stream: their state, and which of them have ended.

    Args:
      rows: int32 [n], numbers of the rows.
      state: the model's state before the first element of each row, by the name of the input.
    """

    def __init__(self, rows: np.ndarray, state: Arrays):
        self.rows, self.state = rows, state
        self.ended = np.zeros([len(rows)], bool)
        self._last = np.zeros([len(rows), 1])

    def kept(self, outputs: Arrays, count: int) -> np.ndarray:
        """Return the next elements [n, count]; a row that has ended repeats its last element.

        Args:
          outputs: the outputs of one call of the signature, padded to a multiple of its unit.
          count: number of elements.
        """
        self.state = {name: outputs[name] for name in self.state}
        made = only_output(outputs)[:, :count]
        made = np.where(self.ended[:, np.newaxis], self._last.astype(made.dtype), made)
        self._last = made[:, -1:]
        self.ended |= outputs.get(ENDED, np.zeros([len(self.rows)])).astype(bool)
        return made


def _groups(num: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the rows of each call, int32."""
    for first in range(0, num, ROWS):
        yield np.arange(first, min(first + ROWS, num), dtype=np.int32)


def _first_state(known: Mapping[str, TensorInfo], rows: int) -> Arrays:
    """Return a state of zeros to send with the first element, at which the program ignores it."""
    return {
        name: np.zeros([rows, *(size or 0 for size in info.shape[1:])], info.dtype)
        for name, info in known.items()
        if name.startswith(STATE)
    }


def only_output(outputs: Arrays) -> np.ndarray:
    """Return the elements among the outputs of a signature that makes rows."""
    return next(
        array
        for name, array in outputs.items()
        if name not in OTHERS and not name.startswith(STATE)
    )
