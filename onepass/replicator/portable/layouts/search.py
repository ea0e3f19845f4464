"""Search for a layout: inductive tactics first, then single decisions that improve the best.

As in automap (Schaarschmidt et al. 2021, arXiv 2112.02958), decisions concern only arguments, tied
tensors and repeated layers are decided together, and consequences for other arguments are
propagated: one decision about a block's hidden layer cuts its first matrix by columns, its second
by rows, and all moments. Nothing is random. Layouts are compared as partitioned; the best few are
compiled, and the compiled programs decide.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .cost import Cost, Machine, Scale, compiled_cost, estimated_cost, scale_of
from .layout import GIB, MODEL, Cut, Layout, LayoutError, Step, is_possible, whole
from .partition import Partitioner

_USES_DEPTH = 2  # operations; deeper, the first and last layers differ from the others


@dataclasses.dataclass(frozen=True)
class Group:
    """Arguments that are cut together by one decision.

    Attributes:
      indices: indices of the arguments, in call order.
      shape: shape of each argument; for a batch, the greatest common divisor of the inputs' rows.
      dimensions: dimensions of the shape that may be cut.
      num_elements: total number of elements of all arguments.
    """

    indices: tuple[int, ...]
    shape: tuple[int, ...]
    dimensions: tuple[int, ...]
    num_elements: int


def batch_group(step: Step) -> Group:
    """Return the group of a step's inputs, which are cut along their rows."""
    indices = tuple(i for i, tensor in enumerate(step.batch) if tensor.shape)
    shared = math.gcd(*(step.batch[i].shape[0] for i in indices))
    return Group(indices, (shared,), (0,), 0)


def state_groups(step: Step, partitioner: Partitioner) -> list[Group]:
    """Return groups of the captured arguments except scalars, largest group first.

    A weight and its moments have the same name after `weights/`, `first/` and so on. Layers count
    as repeated if their shapes, uses and names, except for numbers, are equal.
    """
    tied: dict[tuple, list[int]] = {}
    for index, tensor in enumerate(step.arguments):
        if index >= len(step.batch) and tensor.shape:
            name = tensor.name.partition("/")[2] if tensor.name in step.slots else tensor.name
            tied.setdefault((name, tensor.shape, tensor.name in step.slots), []).append(index)
    alike: dict[tuple, list[int]] = {}
    for (name, shape, _), indices in tied.items():
        uses = partitioner.uses(_weight(step, indices), _USES_DEPTH)
        alike.setdefault((re.sub(r"\d+", "#", name), shape, uses), []).extend(indices)
    groups = [
        Group(tuple(indices), shape, tuple(range(len(shape))), len(indices) * math.prod(shape))
        for (_, shape, _), indices in alike.items()
    ]
    return sorted(groups, key=lambda group: -group.num_elements)


def _weight(step: Step, indices: list[int]) -> int:
    named = [i for i in indices if step.arguments[i].name.startswith("weights/")]
    return (named or indices)[0]


Cuts = tuple[Cut, ...]
SHORTLIST = 5  # number of layouts that are compiled after the first
STARTS = 3  # number of layouts from which the search descends
WIDTH = 4  # width of the beam of propagated decisions
MOST_ESTIMATES = 500
NEAR = 1.03  # relative precision of simulated times
LEAST_SHARE = 0.01  # of the state; smaller groups are not decided separately


@dataclasses.dataclass(frozen=True)
class Found:
    """A layout, its compiled step and cost, and the number of layouts compared and compiled."""

    layout: Layout
    compiled: Any
    cost: Cost
    compared: int
    compilations: int

    def __str__(self) -> str:
        cost = self.cost
        return (
            f"of {self.compared} layouts compared and {self.compilations} compiled, the best needs "
            f"{cost.memory_bytes / GIB:.3g} GiB per device, sends {cost.sent_bytes / 1e6:.3g} MB "
            f"in {len(cost.collectives)} collectives and takes {1e3 * cost.seconds:.3g} ms, "
            "simulated."
        )


class Search:
    """The search for the best layout of a step over a mesh.

    Args:
      step: the step.
      text: its program in StableHLO.
      mesh: the sizes of the mesh's axes.
      machine: the devices and the network between them.
      compile_step: function from the cuts of the arguments to the compiled step.
    """

    def __init__(
        self,
        step: Step,
        text: str,
        mesh: dict[str, int],
        machine: Machine,
        compile_step: Callable[[Cuts], Any],
    ):
        self._step, self._mesh, self._machine = step, mesh, machine
        self._compile = compile_step
        self._partitioner = Partitioner(step, text, mesh)
        self._scale = Scale()
        self._estimates: dict[Cuts, Cost] = {}
        self._costs: dict[Cuts, Cost] = {}
        self._programs: dict[Cuts, Any] = {}  # as compiled
        self._implied: dict[tuple, Cuts] = {}
        self._batch = batch_group(step)
        self._groups = state_groups(step, self._partitioner)
        self._axes = [axis for axis, size in mesh.items() if size > 1]
        self._order = {axis: i for i, axis in enumerate(mesh)}
        self._whole = whole(step)

    def best(self) -> Found:
        """Return the compiled layout that sends the least among the fastest that fit in memory.

        Raises:
          LayoutError: no layout that was found fits in memory.
        """
        batches = self._batches()
        self._compile_layout(batches[-1])  # sets the scale of estimates
        tactics = {each: None for start in batches for each in self._tactics(start)}
        # The best of every stage, as estimates of layouts with many cuts may be far too low.
        stages = [min([*batches, *tactics], key=self._estimate_cost), *self._widen(batches)]
        for start in sorted(self._estimates, key=self._estimate_cost)[:STARTS]:
            stages.append(self._descend(start))
        ranked = sorted(dict.fromkeys(stages), key=self._estimate_cost)
        smallest = min(self._estimates, key=lambda cuts: self._estimates[cuts].memory_bytes)
        for cuts in ranked[:SHORTLIST]:
            self._compile_layout(cuts)
        if not any(map(self._fits, self._costs.values())):
            self._compile_layout(smallest)
        cuts = self._choose_layout()
        return Found(
            Layout(self._mesh, cuts),
            self._programs[cuts],
            self._costs[cuts],
            len(self._estimates),
            len(self._costs),
        )

    def _choose_layout(self) -> Cuts:
        fitting = {cuts: cost for cuts, cost in self._costs.items() if self._fits(cost)}
        if not fitting:
            raise LayoutError(self._too_large())
        limit = NEAR * min(cost.seconds for cost in fitting.values())
        near = [cuts for cuts, cost in fitting.items() if cost.seconds <= limit]
        return min(near, key=lambda cuts: (fitting[cuts].sent_bytes, fitting[cuts].seconds))

    def _batches(self) -> list[Cuts]:
        every = (self._with(self._whole, self._batch, 0, axes) for axes in self._choices())
        return [cuts for cuts in every if cuts is not None]

    def _tactics(self, cuts: Cuts) -> Iterator[Cuts]:
        """Yield layouts that shard all groups of the state along each choice of axes.

        The last layout cuts only the last dimension of each tensor, along the axis MODEL.
        """
        for axes in self._choices()[1:]:
            yield self._shard_groups(cuts, axes, lambda group: group.dimensions)
        if MODEL in self._axes:
            yield self._shard_groups(cuts, (MODEL,), lambda group: group.dimensions[-1:])

    def _choices(self) -> list[tuple[str, ...]]:
        every = tuple(self._axes)
        return list(dict.fromkeys([(), *((axis,) for axis in every), every]))

    def _shard_groups(
        self, cuts: Cuts, axes: tuple[str, ...], choose: Callable[[Group], tuple[int, ...]]
    ) -> Cuts:
        for group in self._groups:
            by_size = sorted(choose(group), key=lambda d: -group.shape[d])
            made = (self._with(cuts, group, d, axes) for d in by_size)
            cuts = next((each for each in made if each is not None), cuts)
        return cuts

    def _widen(self, beam: list[Cuts]) -> list[Cuts]:
        """Return the best layouts with one, two, ... propagated decisions, found by beam search.

        The first decision of the best sequence, often a cut of every layer's width, need not be
        among the best first decisions.
        """
        decisions = {
            (self._implications(group, dimension, axis), axis): None
            for group in self._large() for dimension in group.dimensions for axis in self._axes
        }  # fmt: skip
        found = [min(beam, key=self._estimate_cost)]
        while len(self._estimates) < MOST_ESTIMATES:
            every = (self._join_cuts(cuts, *each) for cuts in beam for each in decisions)
            wider = {cuts: None for cuts in every if cuts is not None and cuts not in beam}
            beam = sorted(wider, key=self._estimate_cost)[:WIDTH]
            if not beam or self._estimate_cost(beam[0]) >= self._estimate_cost(found[-1]):
                break
            found.append(beam[0])
        return found

    def _descend(self, cuts: Cuts) -> Cuts:
        """Return cuts improved by the best decision for each group in turn, until none helps."""
        decided = [self._batch, *self._large()]
        since = 0  # groups considered since the last change
        while since < len(decided):
            group = decided.pop(0)
            decided.append(group)
            best = min(self._moves(cuts, group), key=self._estimate_cost, default=cuts)
            since += 1
            if self._estimate_cost(best) < self._estimate_cost(cuts):
                cuts, since = best, 0
            if len(self._estimates) > MOST_ESTIMATES:
                break
        return cuts

    def _large(self) -> list[Group]:
        total = sum(group.num_elements for group in self._groups)
        return [group for group in self._groups if group.num_elements >= LEAST_SHARE * total]

    def _moves(self, cuts: Cuts, group: Group) -> Iterator[Cuts]:
        every: list[Cuts | None] = []
        for choice in itertools.product([None, *group.dimensions], repeat=len(self._axes)):
            made: Cuts | None = self._with(cuts, group, None, tuple(self._axes))
            for axis, dimension in zip(self._axes, choice, strict=True):
                made = made and self._with(made, group, dimension, (axis,))
            every.append(made)
        if group is not self._batch:
            for axis, dimension in itertools.product(self._axes, group.dimensions):
                implied = self._implications(group, dimension, axis)
                every += [
                    self._join_cuts(cuts, implied, axis),
                    self._free_cuts(cuts, implied, axis),
                ]
        yield from (each for each in every if each is not None and each != cuts)

    def _implications(self, group: Group, dimension: int, axis: str) -> Cuts:
        key = group.indices, dimension, axis
        if key not in self._implied:
            start = self._with(self._whole, group, dimension, (axis,))
            self._implied[key] = self._whole if start is None else self._alike(start)
        return self._implied[key]

    def _alike(self, start: Cuts) -> Cuts:
        """Return the propagated cuts on which tied tensors agree, and the cut of the batch."""
        found = self._partitioner.propagate_cuts(start)
        cuts = list(start)
        for group in self._groups:
            agreed = {found[index] for index in group.indices if any(found[index])}
            if len(agreed) == 1:
                (cut,) = agreed
                for index in group.indices:
                    cuts[index] = cut
        return tuple(cuts)

    def _with(
        self, cuts: Cuts, group: Group, dimension: int | None, axes: tuple[str, ...]
    ) -> Cuts | None:
        made = list(cuts)
        for index in group.indices:
            made[index] = self._place_axes(cuts[index], dimension, axes)
        return tuple(made) if self._is_possible(made, group.indices) else None

    def _is_possible(self, cuts: Sequence[Cut], indices: Iterable[int]) -> bool:
        shapes = {index: self._step.arguments[index].shape for index in indices}
        return all(is_possible(shape, cuts[i], self._mesh) for i, shape in shapes.items())

    def _place_axes(self, cut: Cut, dimension: int | None, axes: tuple[str, ...]) -> Cut:
        kept = [{*each} - {*axes} for each in cut]
        if dimension is not None:
            kept[dimension] |= {*axes}
        return tuple(tuple(axis for axis in self._mesh if axis in each) for each in kept)

    def _join_cuts(self, cuts: Cuts, implied: Cuts, axis: str) -> Cuts | None:
        made = tuple(
            self._place_axes(cut, new.index((axis,)), (axis,)) if any(new) else cut
            for cut, new in zip(cuts, implied, strict=True)
        )
        return made if self._is_possible(made, range(len(made))) else None

    def _free_cuts(self, cuts: Cuts, implied: Cuts, axis: str) -> Cuts:
        return tuple(
            self._place_axes(cut, None, (axis,)) if any(new) else cut
            for cut, new in zip(cuts, implied, strict=True)
        )

    def _estimate_cost(self, cuts: Cuts) -> tuple:
        if cuts not in self._estimates:
            estimate = self._partitioner.estimate_device(cuts)
            self._estimates[cuts] = estimated_cost(estimate, self._machine, self._scale)
        count = sum(1 for cut in cuts if any(cut))
        named = [[self._order[axis] for axis in axes] for cut in cuts for axes in cut]
        return *self._estimates[cuts].key(self._machine), count, named

    def _compile_layout(self, cuts: Cuts) -> None:
        """Compile a layout and store its cost; the first one sets the scale of estimates."""
        if cuts in self._costs:
            return
        compiled, machine = self._compile(cuts), self._machine
        if not self._costs:
            self._scale = scale_of(self._partitioner.estimate_device(cuts), compiled, machine)
        devices = Layout(self._mesh, cuts).num_devices
        self._programs[cuts] = compiled
        self._costs[cuts] = compiled_cost(compiled, machine, devices)

    def _fits(self, cost: Cost) -> bool:
        limit = self._machine.memory_bytes
        return limit is None or cost.memory_bytes <= limit

    def _too_large(self) -> str:
        least = min(cost.memory_bytes for cost in self._costs.values())
        mesh = "x".join(map(str, self._mesh.values()))
        return (
            f"No layout over {mesh} devices fits in {(self._machine.memory_bytes or 0) / GIB:.3g} "
            f"GiB: the smallest needs {least / GIB:.3g} GiB per device."
        )
