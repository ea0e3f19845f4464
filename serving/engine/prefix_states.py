"""The states after the latest prefixes, which the requests of a server share."""

import collections
import threading
from collections.abc import Mapping

import numpy as np

from onepass.bundles.bundle import Servable
from onepass.bundles.prompt_states import PromptStates
from onepass.bundles.signature import Arrays
from onepass.prefix_state import Kept
from serving.engine.batching import join_rows
from serving.observability import Metrics

CALL_BYTES = 2**28  # of the states in a call, which a message to a confined process holds
SHORTEST = 16  # elements of a prefix that is kept; shorter ones are read in a few steps


class StateCache:
    """States by the model and the prefix that they belong to, thread-safe.

    All together have at most `most_bytes`; for a new one, those that were not used for longest are
    dropped. A model has states only between `admit` and `drop`, so that a call that ends late keeps
    none of a model that was unloaded.
    """

    def __init__(self, most_bytes: int, metrics: Metrics):
        self.most_bytes, self._metrics = most_bytes, metrics
        self._lock, self._models = threading.Lock(), set[object]()
        self._states: collections.OrderedDict[tuple[object, str], Kept] = collections.OrderedDict()
        self._bytes = 0

    def admit(self, model: object) -> None:
        """Keep states of a model from now on."""
        with self._lock:
            self._models.add(model)

    def drop(self, model: object) -> None:
        """Drop all states of a model, and keep no more of them."""
        with self._lock:
            self._models.discard(model)
            for key in [key for key in self._states if key[0] is model]:
                self._remove(key)
            self._metrics.prefix_bytes.set(self._bytes)

    def find(self, model: object, prefix: str) -> Kept | None:
        """Return the state after a prefix, by its digest, or None."""
        with self._lock:
            found = self._states.get((model, prefix))
            if found is not None:
                self._states.move_to_end((model, prefix))
            return found

    def keep(self, model: object, prefix: str, state: Kept) -> None:
        """Keep the state after a prefix, unless it is too large or the model was dropped."""
        key = model, prefix
        with self._lock:
            if model not in self._models or _size_of(state) > self.most_bytes:
                return
            if key in self._states:
                self._remove(key)
            self._states[key] = state
            self._bytes += _size_of(state)
            while self._bytes > self.most_bytes:
                self._remove(next(iter(self._states)))
            self._metrics.prefix_bytes.set(self._bytes)

    def _remove(self, key: tuple[object, str]) -> None:
        self._bytes -= _size_of(self._states.pop(key))


class ContinuedCalls:
    """The calls of a model, of which those with prefixes continue from states that are kept."""

    def __init__(self, bundle: Servable, states: StateCache, metrics: Metrics, name: str):
        self._bundle, self._cache = bundle, states
        self._hits = metrics.prefixes.labels(name, "hit")
        self._misses = metrics.prefixes.labels(name, "miss")
        self._model, self._prompts = object(), None
        if PromptStates.suits(bundle.signatures):
            prompts = PromptStates(bundle.signatures, bundle.call)
            fits = prompts.nbytes <= min(states.most_bytes, CALL_BYTES)
            self._prompts = prompts if fits else None
            self._most_rows = CALL_BYTES // max(1, prompts.nbytes)
        if self._prompts is not None:
            states.admit(self._model)

    def __call__(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for checked inputs, as the model returns them."""
        prompts = self._prompts
        if signature != "prompted" or prompts is None or inputs["return_log_prob"].any():
            return self._bundle.call(signature, inputs)
        is_long = inputs["num_prefix"] >= SHORTEST
        if not is_long.any():
            return self._bundle.call(signature, inputs)
        long, short = np.flatnonzero(is_long), np.flatnonzero(~is_long)
        parts: dict[int, Arrays] = {}
        for rows in (long[n : n + self._most_rows] for n in range(0, len(long), self._most_rows)):
            given = {name: array[rows] for name, array in inputs.items()}
            parts |= _split_rows(rows, prompts.draw(given, self._begin(prompts, given)))
        if short.size:
            others = {name: array[short] for name, array in inputs.items()}
            parts |= _split_rows(short, self._bundle.call(signature, others))
        return join_rows([parts[row] for row in sorted(parts)])

    def _begin(self, prompts: PromptStates, inputs: Arrays) -> list[Kept]:
        """Return the state after the prefix of every row; read those that are not kept, once."""
        digests = [prompts.digest(inputs, row) for row in range(len(inputs["num_prefix"]))]
        kept = {digest: self._cache.find(self._model, digest) for digest in digests}
        found = {digest: state for digest, state in kept.items() if state is not None}
        missing = [digest for digest in kept if digest not in found]
        self._hits.inc(len(found))
        self._misses.inc(len(missing))
        if missing:
            new = prompts.read(inputs, [digests.index(digest) for digest in missing])
            found |= zip(missing, new, strict=True)
            for digest in missing:
                self._cache.keep(self._model, digest, found[digest])
        return [found[digest] for digest in digests]

    def forget_states(self) -> None:
        """Drop all states of the model, and keep no more."""
        self._cache.drop(self._model)


def _size_of(state: Kept) -> int:
    return sum(array.nbytes for array in state.arrays)


def _split_rows(rows: np.ndarray, outputs: Arrays) -> dict[int, Arrays]:
    return {row: {name: x[n] for name, x in outputs.items()} for n, row in enumerate(rows.tolist())}
