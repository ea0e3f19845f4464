"""Layouts: which axis of a variable is sharded along which dimension of a mesh of devices."""

import math
import re
from collections.abc import Mapping, Sequence

from tensorflow.experimental import dtensor

from replicator.runs.errors import UserError

BATCH = "batch"  # the mesh dimension along which the rows of a batch are sharded
_SHOWN = 6  # variables named in one line

Layouts = Mapping[str, Sequence[str | None]]


def check_mesh(mesh: Mapping[str, int]) -> None:
    """Raises UserError unless the sizes of the mesh are counts and one of them is the batch's."""
    for name, size in mesh.items():
        if not isinstance(size, int) or size < 1:
            raise UserError(f"`mesh` must have sizes of at least 1, got {name}={size!r}.")
    if BATCH not in mesh:
        raise UserError(f"`mesh` must have a dimension {BATCH!r}, got {', '.join(mesh) or 'none'}.")


class LayoutRules:
    """The layout of a variable from its name and shape.

    Args:
      mesh: of dtensor.
      layouts: for each pattern (see `sharded`) a mesh dimension or None for each axis.
        The first pattern found in a name counts. Empty: every variable is sharded wherever the mesh
        divides it.

    Raises:
      UserError: a pattern is no regular expression, or names no dimension of the mesh.
    """

    def __init__(self, mesh: dtensor.Mesh, layouts: Layouts):
        self.mesh, self.is_automatic = mesh, not layouts
        self._rules = [(_compiled(pattern), tuple(dims)) for pattern, dims in layouts.items()]
        self._used: set[str] = set()
        self._names: list[str] = []
        for pattern, dims in self._rules:
            for dim in dims:
                if dim is not None and dim not in mesh.dim_names:
                    raise UserError(
                        f"`layouts`: {pattern.pattern!r} names {dim!r}; the mesh has "
                        f"{', '.join(mesh.dim_names)}."
                    )

    def replicated(self, rank: int) -> dtensor.Layout:
        """The layout of a tensor that is whole on every device."""
        return dtensor.Layout.replicated(self.mesh, rank)

    def of(self, name: str, shape: Sequence[int], like: dtensor.Layout | None) -> dtensor.Layout:
        """The layout of a variable.

        Args:
          name, shape: of the variable.
          like: that of its initial value, taken where no pattern is found in the name.

        Raises:
          UserError: the pattern found does not fit the shape.
        """
        self._names.append(name)
        for pattern, dims in self._rules:
            if pattern.search(name):
                self._used.add(pattern.pattern)
                return self._checked(pattern.pattern, dims, name, shape)
        if like is not None:
            return like
        return self._widest(shape) if self.is_automatic else self.replicated(len(shape))

    def check_all_used(self) -> None:
        """Raises UserError where a pattern was found in no name."""
        for pattern, _ in self._rules:
            if pattern.pattern not in self._used:
                names = list(dict.fromkeys(self._names))
                more = ", ..." if len(names) > _SHOWN else ""
                raise UserError(
                    f"`layouts`: {pattern.pattern!r} is found in the name of no variable; there "
                    f"are {', '.join(names[:_SHOWN]) or 'none'}{more}."
                )

    def _checked(self, pattern: str, dims, name: str, shape) -> dtensor.Layout:
        if len(dims) != len(shape):
            raise UserError(
                f"`layouts`: {pattern!r} is for {len(dims)} axes; `{name}` has {len(shape)}."
            )
        for axis, dim in enumerate(dims):
            if dim is not None and shape[axis] % self.mesh.dim_size(dim):
                raise UserError(
                    f"`layouts`: {pattern!r} cuts axis {axis} of `{name}`, of size {shape[axis]}, "
                    f"along {dim!r}, whose {self.mesh.dim_size(dim)} devices do not divide it."
                )
        return self._layout(dims)

    def _widest(self, shape: Sequence[int]) -> dtensor.Layout:
        """Each dimension of the mesh, the largest first, on the longest axis that it divides."""
        dims: list[str | None] = [None] * len(shape)
        for dim in sorted(self.mesh.dim_names, key=self.mesh.dim_size, reverse=True):
            size = self.mesh.dim_size(dim)
            free = [a for a, taken in enumerate(dims) if taken is None and not shape[a] % size]
            if size > 1 and free and math.prod(shape):
                dims[max(free, key=lambda axis: shape[axis])] = dim
        return self._layout(dims)

    def _layout(self, dims: Sequence[str | None]) -> dtensor.Layout:
        return dtensor.Layout([dim or dtensor.UNSHARDED for dim in dims], self.mesh)


def _compiled(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"`layouts`: {pattern!r} is no regular expression: {error}.") from error
