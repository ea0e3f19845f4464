"""Groups of pairs: tensors of query and key times that are computed from one another."""

import dataclasses

from autoregressive.incremental.streams import Mask


class Turned(Exception):  # noqa: N818, not an error: the analysis starts again
    """A sign that the second of two growing axes is the query's, not the first.

    Args:
      group: the group of the pairs.
    """

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group


@dataclasses.dataclass(frozen=True)
class Weights:
    """Pairs that a layer multiplies with the values of their keys.

    Attributes:
      tensor: name of the tensor, or of a table.
      query: axis of the query times.
      key: axis of the key times.
      layer: name of the layer that reads the tensor.
    """

    tensor: str
    query: int
    key: int
    layer: str


class Groups:
    """The groups of tensors of pairs in a graph, and the facts found about them.

    Args:
      turned: names of the groups whose second growing axis is the query's.

    Attributes:
      softmaxes: for every softmax, the group of its scores and the masks applied to them.
      unbounded: groups with an operation that reads all keys, so that no window suffices.
      weights: the pairs that values are multiplied with.
    """

    def __init__(self, turned: frozenset[str]) -> None:
        self.turned = turned
        self.softmaxes: list[tuple[str, tuple[Mask, ...]]] = []
        self.unbounded: set[str] = set()
        self.weights: list[Weights] = []
        self._parents: dict[str, str] = {}

    def axes(self, group: str, first: int, second: int) -> tuple[int, int]:
        """Return the query and the key axis of a new group's two growing axes."""
        self._parents.setdefault(group, group)
        return (second, first) if group in self.turned else (first, second)

    def root(self, group: str) -> str:
        """Return the name that stands for all groups merged with this one."""
        while self._parents[group] != group:
            group = self._parents[group]
        return group

    def join(self, first: str, second: str) -> None:
        """Merge two groups whose pairs have the same keys."""
        self._parents[self.root(second)] = self.root(first)
