"""Groups of tensors over pairs of query and key time steps, computed from one another."""

import dataclasses

from onepass.step.streams import Mask


class Turned(Exception):  # noqa: N818, not an error: the analysis starts again
    """A signal that the second of two growing axes is the query axis, not the first."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group


@dataclasses.dataclass(frozen=True)
class Weights:
    """A tensor of pairs, such as attention weights, or a table that `layer` applies to values."""

    tensor: str
    query: int
    key: int
    layer: str


class Groups:
    """The groups of tensors of pairs in a graph, and what is known about them.

    In `turned` groups, the second growing axis is the query axis. `softmaxes` has the group and the
    masks of the scores of every softmax; no window suffices for groups in `unbounded`.
    """

    def __init__(self, turned: frozenset[str]) -> None:
        self.turned = turned
        self.softmaxes: list[tuple[str, tuple[Mask, ...]]] = []
        self.unbounded: set[str] = set()
        self.weights: list[Weights] = []
        self._parents: dict[str, str] = {}

    def axes(self, group: str, first: int, second: int) -> tuple[int, int]:
        """Return a new group's query axis and key axis, given its two growing axes in order."""
        self._parents.setdefault(group, group)
        return (second, first) if group in self.turned else (first, second)

    def root(self, group: str) -> str:
        """Return the name that represents all groups merged with this one."""
        while self._parents[group] != group:
            group = self._parents[group]
        return group

    def join(self, first: str, second: str) -> None:
        """Merge two groups whose pairs have the same keys."""
        self._parents[self.root(second)] = self.root(first)
