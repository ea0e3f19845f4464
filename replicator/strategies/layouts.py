"""Layouts: the mesh dimension along which each axis of a variable is sharded."""

import math
import re
from collections.abc import Mapping, Sequence

from tensorflow.experimental import dtensor

from replicator.runs.errors import UserError

BATCH = "batch"  # the mesh dimension along which the rows of a batch are sharded
_SHOWN = 6  # variables named in one line

Layouts = Mapping[str, Sequence[str | None]]


def check_mesh(mesh: Mapping[str, int]) -> None:
    """Raise UserError unless the sizes of the mesh are counts and one of them is the batch's."""
    for name, size in mesh.items():
        if not isinstance(size, int) or size < 1:
            raise UserError(f"`mesh` must have sizes of at least 1, got {name}={size!r}.")
    if BATCH not in mesh:
        raise UserError(f"`mesh` must have a dimension {BATCH!r}, got {', '.join(mesh) or 'none'}.")


class LayoutRules:
    """Rules that give the layout of a variable from its name and shape.

    Args:
      mesh: of dtensor.
      layouts: for each pattern (see `sharded`) a mesh dimension or None for each axis. The first
        pattern found in a name is used. Empty: every variable is sharded wherever the mesh divides
        it.

    Raises:
      UserError: a pattern is no regular expression, or a dimension is not in the mesh.
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
                        f"`layouts`: {pattern.pattern!r} names {dim!r}; the dimensions of the mesh "
                        f"are {', '.join(mesh.dim_names)}."
                    )

    def replicated(self, rank: int) -> dtensor.Layout:
        """Return the layout of a tensor that is whole on every device."""
        return dtensor.Layout.replicated(self.mesh, rank)

    def of(self, name: str, shape: Sequence[int], like: dtensor.Layout | None) -> dtensor.Layout:
        """Return the layout of a variable; raise UserError if its pattern does not fit its shape.

        If no pattern is found in the name, it is `like`, the layout of the initial value.
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
        """Raise UserError if a pattern was found in no name."""
        for pattern, _ in self._rules:
            if pattern.pattern not in self._used:
                names = list(dict.fromkeys(self._names))
                more = ", ..." if len(names) > _SHOWN else ""
                raise UserError(
                    f"`layouts`: {pattern.pattern!r} is found in the name of no variable; names "
                    f"are {', '.join(names[:_SHOWN]) or 'none'}{more}."
                )

    def _checked(self, pattern: str, dims, name: str, shape) -> dtensor.Layout:
        if len(dims) != len(shape):
            raise UserError(
                f"`layouts`: {pattern!r} must have an entry for each of the {len(shape)} axes of "
                f"`{name}`, got {len(dims)}."
            )
        for axis, dim in enumerate(dims):
            if dim is not None and shape[axis] % self.mesh.dim_size(dim):
                raise UserError(
                    f"`layouts`: {pattern!r} cuts axis {axis} of `{name}`, of size {shape[axis]}, "
                    f"along {dim!r}, but its {self.mesh.dim_size(dim)} devices do not divide it."
                )
        return self._layout(dims)

    def _widest(self, shape: Sequence[int]) -> dtensor.Layout:
        """Return each mesh dimension, largest first, on the longest axis that it divides."""
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
        raise UserError(f"`layouts`: {pattern!r} must be a regular expression: {error}.") from error
