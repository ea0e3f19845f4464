"""Groups of tensors over pairs of query and key time steps, computed from one another."""

import dataclasses

from onepass.step.streams import Mask


class Turned(Exception):  # noqa: N818, not an error: the analysis starts again
    """A signal that the second of two growing axes is the query axis, not the first.

    Args:
      group: name of the group.
    """

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group


@dataclasses.dataclass(frozen=True)
class Weights:
    """A tensor of pairs, such as attention weights, that a layer multiplies with values.

    Attributes:
      tensor: name of the tensor, or of a table.
      query: axis of the query time steps.
      key: axis of the key time steps.
      layer: name of the layer that reads the tensor.
    """

    tensor: str
    query: int
    key: int
    layer: str


class Groups:
    """The groups of tensors of pairs in a graph, and what is known about them.

    Args:
      turned: names of the groups whose second growing axis is the query axis.

    Attributes:
      softmaxes: for every softmax, the group of its scores and the masks applied to them.
      unbounded: groups with an operation that reads all keys, so that no window suffices.
      weights: the tensors of pairs that are multiplied with values.
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
