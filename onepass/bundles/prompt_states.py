"""The states after the prefixes of rows, from which a bundle's signature `prompted` continues.

The signature `prompted_chunk` reads a prefix, and returns the state after it; called again with
that state it draws the rest, to the bit as `prompted` draws the whole. The state depends on the
prefix and the conditions of its elements alone, not on the seed or an option.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onepass.bundles.signature import (
    LENGTHS,
    STATE,
    Arrays,
    Signature,
    first_states,
    is_condition,
    is_timed,
)
from onepass.prefix_state import Kept, digest_of

Call = Callable[[str, Arrays], Arrays]


class PromptStates:
    """Reads the prefixes of rows [batch, ...] of inputs for `prompted`, and draws what follows.

    `call` runs a signature for checked inputs; `names` are those of a state's inputs.
    """

    def __init__(self, signatures: Mapping[str, Signature], call: Call):
        self._call, chunk = call, signatures["prompted_chunk"]
        self._known = chunk.inputs
        self._counts = next(name for name in LENGTHS if name in self._known)
        self.names = [name for name in self._known if name.startswith(STATE)]
        self._conditions = [n for n in self._known if is_condition(n) or n == "frames"]
        self._timed = [name for name in self._conditions if is_timed(self._known[name])]
        outputs = signatures["prompted"].outputs
        self._output = next(n for n in outputs if n in chunk.outputs and n not in LENGTHS)

    @staticmethod
    def suits(signatures: Mapping[str, Signature]) -> bool:
        """Return whether a bundle has the signatures, and reads prefixes."""
        found = (signatures[n].inputs for n in ("prompted", "prompted_chunk") if n in signatures)
        return ["num_prefix" in inputs for inputs in found] == [True, True]

    @property
    def nbytes(self) -> int:
        """Size of a row's state in bytes, without its elements."""
        return sum(array.nbytes for array in first_states(self._known, 1).values())

    def digest(self, inputs: Arrays, row: int) -> str:
        """Return a digest of all that the state after a row's prefix depends on."""
        count = int(inputs["num_prefix"][row])
        prefix = inputs["prefix"][row, :count]
        return digest_of({"prefix": prefix}, self.condition_digest(inputs, row))

    def condition_digest(self, inputs: Arrays, row: int) -> str:
        """Return a digest of the conditions of a row's prefix."""
        count, found = int(inputs["num_prefix"][row]), {n: inputs[n][row] for n in self._conditions}
        return digest_of({n: x[:count] if n in self._timed else x for n, x in found.items()})

    def read(self, inputs: Arrays, rows: Sequence[int]) -> list[Kept]:
        """Return what is kept of some rows, each with a prefix of at least one element.

        It is the elements that the program returns of the prefix, and then the state.
        """
        counts = inputs["num_prefix"][rows]
        given = self._take(inputs, rows) | {self._counts: counts, "start": np.zeros_like(counts)}
        outputs = self._call("prompted_chunk", given | first_states(self._known, len(rows)))
        return [
            Kept(
                int(count),
                [outputs[self._output][n, :count].copy()]
                + [outputs[name][n].copy() for name in self.names],
            )
            for n, count in enumerate(counts)
        ]

    def draw(self, inputs: Arrays, begun: Sequence[Kept]) -> Arrays:
        """Return the outputs of `prompted`, without log-probabilities, for rows that have begun."""
        first, total = inputs["num_prefix"], inputs[self._counts]
        longest = inputs["frames"].shape[1] if "frames" in inputs else int(total.max())
        elements = np.zeros([len(total), longest], begun[0].arrays[0].dtype)
        for row, each in enumerate(begun):
            elements[row, : first[row]] = each.arrays[0]
        rows = np.flatnonzero(first < total).tolist()
        if rows:
            states = zip(*(begun[row].arrays[1:] for row in rows), strict=True)
            given = self._take(inputs, rows) | {
                self._counts: (total - first)[rows],
                "start": first[rows],
                "num_prefix": np.zeros_like(first[rows]),
                **dict(zip(self.names, map(np.stack, states), strict=True)),
                **{n: _shifted(inputs[n][rows], first[rows]) for n in self._timed},
            }
            drawn = self._call("prompted_chunk", given)[self._output]
            for row, new in zip(rows, drawn, strict=True):
                elements[row, first[row] : total[row]] = new[: total[row] - first[row]]
        nats = np.zeros(elements.shape, np.float32)
        return {self._output: elements, "num_samples": total, "log_prob": nats}

    def _take(self, inputs: Arrays, rows: Any) -> Arrays:
        return {name: inputs[name][rows] for name in self._known if name in inputs}


def _shifted(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return rows [batch, time, ...] from a time of each on, filled up with zeros."""
    shifted = np.zeros_like(values)
    for row, start in enumerate(first):
        shifted[row, : values.shape[1] - start] = values[row, start:]
    return shifted
