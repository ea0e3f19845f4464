"""Search for a layout: inductive tactics first, then single decisions that improve the best.

As in automap (Schaarschmidt et al. 2021, arXiv 2112.02958), decisions concern only arguments, tied
tensors and repeated layers are decided together, and consequences for other arguments are
propagated. Nothing is random.

Layouts are compared as Shardy, XLA's partitioner, partitions them in milliseconds, without
compiling; the best few are compiled, and the compiled programs decide.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.interpreters import mlir

from onepass.foundation.rules import UserError

from .layout import GIB, MODEL, Cut, Layout, Step, is_possible, whole
from .simulation import (
    COLLECTIVES,
    LINK,
    Network,
    Operation,
    combine_collectives,
    compiled_bytes,
    read_program,
    simulate,
)

_PROPAGATE = "sdy-propagation-pipeline"
_EXCHANGE = (
    "sdy-close-shardings,func.func(sdy-insert-explicit-reshards{enable-full-version=true},"
    "sdy-reshard-to-collectives)"
)
_COLLECTIVES = {f"sdy.{kind.replace('-', '_')}": kind for kind in COLLECTIVES}
# These allocate no array once fused.
_FREE = {
    *("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota", "stablehlo.reshape"),
    *("stablehlo.convert", "sdy.all_slice", "func.return", "sdy.sharding_constraint"),
}
_AXES = re.compile(r'"(\w+)"(?::\((\d+)\)(\d+))?')  # "x", or a part of it: "x":(before)parts
# Floating-point operations and memory bytes per second of a device; bandwidth in Gbit/s and latency
# in seconds between devices. Round numbers, so that the choice does not vary by machine.
RATES = {
    "cpu": (5e10, 1e10, 10.0, 5e-5),
    "gpu": (1e14, 1e12, 800.0, 1e-5),
    "tpu": (1e14, 1e12, 800.0, 1e-5),
}
_USES_DEPTH = 2  # operations; deeper, the first and last layers differ from the others
Cuts = tuple[Cut, ...]
SHORTLIST = 5  # number of layouts that are compiled after the first
STARTS = 3  # number of layouts from which the search descends
WIDTH = 4  # width of the beam of propagated decisions
MOST_ESTIMATES = 500
NEAR = 1.03  # relative precision of simulated times
LEAST_SHARE = 0.01  # of the state; smaller groups are not decided separately


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A partitioned step: the operations of one device, and its memory."""

    program: list[Operation]  # the name of a collective is the axes along which it joins devices
    arguments_bytes: int
    temporaries_bytes: int  # the peak if nothing is fused or reused in place


class Partitioner:
    """Propagates and estimates cuts of a step's arguments over the named axes of a mesh."""

    def __init__(self, step: Step, text: str, mesh: dict[str, int]):
        self._step, self._mesh = step, mesh
        self._context = mlir.make_ir_context()
        with self._context:
            self._module = ir.Module.parse(text)
            _run(self._module.operation, "inline,canonicalize,cse")
        self._seen: dict[Any, str] = {}
        indices = {f"slot/{tensor.name}": i for i, tensor in enumerate(step.arguments)
                  if tensor.name in step.slots}  # fmt: skip
        # For each result, the index of the argument whose next value it is.
        self._next = [indices.get(tensor.name) for tensor in step.outputs]

    def propagate_cuts(self, cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
        """Return the cuts, completed with cuts of other arguments that follow from them."""
        with self._context, ir.Location.unknown():
            passed = self._run_passes(cuts, False, _PROPAGATE)
            found = [_sharding(attributes) for attributes in _main(passed).arg_attrs]
        follow = [_cut(sharding) or cut for sharding, cut in zip(found, cuts, strict=True)]
        tensors = zip(self._step.arguments, follow, cuts, strict=True)
        mesh = self._mesh
        return tuple(cut if is_possible(x.shape, cut, mesh) else given for x, cut, given in tensors)

    def estimate_device(self, cuts: tuple[Cut, ...]) -> Estimate:
        """Return a device's operations and memory for exactly these cuts."""
        with self._context, ir.Location.unknown():
            passed = self._run_passes(cuts, True, f"{_PROPAGATE},{_EXCHANGE}")
            return _Reader(_main(passed), self._mesh).estimate()

    def uses(self, index: int, depth: int) -> str:
        """Return a digest of the operations that use an argument, up to `depth` operations away."""
        argument = _main(self._module).arguments[index]
        with self._context:
            return _uses(argument, depth, self._seen)

    def _run_passes(self, cuts: tuple[Cut, ...], closed: bool, passes: str) -> Any:
        """Return a copy of the module, which must outlive what is read from it, after `passes`.

        With `closed`, they cut no further dimensions of arguments and results.
        """
        module = self._module.operation.clone()
        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in self._mesh.items()]
        block = module.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            sdy.MeshOp("mesh", sdy.MeshAttr.get(axes))
        main = _main(module)
        main.arg_attrs = [_attributes(cut, closed) for cut in cuts]
        results = [
            _attributes(((),) * len(tensor.shape) if index is None else cuts[index], closed)
            for tensor, index in zip(self._step.outputs, self._next, strict=True)
        ]
        main.attributes["res_attrs"] = ir.ArrayAttr.get(results)
        _run(module, passes)
        return module


class _Reader:
    def __init__(self, main: Any, mesh: dict[str, int]):
        self._main, self._mesh = main, mesh
        self._cuts: dict[Any, str] = {}  # sharding of each value
        self._made: dict[Any, int] = {}  # index of the operation that computes each value
        self._program: list[Operation] = []

    def estimate(self) -> Estimate:
        attributes = self._main.arg_attrs
        for argument, given in zip(self._main.arguments, attributes, strict=True):
            self._cuts[argument] = str(_sharding(given) or "")
        operations = [each.operation for each in self._main.regions[0].blocks[0].operations]
        for operation in operations:
            self._add(operation)
        arguments = sum(map(self._bytes, self._main.arguments))
        return Estimate(self._program, arguments, self._peak(operations))

    def _add(self, operation: Any) -> None:
        attributes = operation.attributes
        shardings: list[Any] = []
        if "sdy.sharding" in attributes:
            shardings += sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"]).shardings
        if not shardings and "out_sharding" in attributes:
            shardings = [attributes["out_sharding"]]
        # Without shardings, every result is whole.
        for result, sharding in itertools.zip_longest(operation.results, shardings, fillvalue=""):
            self._cuts[result] = str(sharding)
        waits = {self._made[v] for v in operation.operands if v in self._made}
        if operation.name in _FREE:
            self._made.update(dict.fromkeys(operation.results, max(waits)) if waits else {})
            return
        kind = _COLLECTIVES.get(operation.name)
        given = sum(map(self._bytes, operation.operands))
        inputs = tuple(sorted(waits))
        if kind is None:
            moved = given + sum(map(self._bytes, operation.results))
            added = Operation("", operation.name, moved, inputs, flops=self._work(operation))
        else:
            axes = " ".join(str(attributes[name]) for name in attributes if name != "out_sharding")
            added = Operation(axes, kind, given, inputs, max(self._size(axes), 2), LINK)
        self._program.append(added)
        self._made.update(dict.fromkeys(operation.results, len(self._program) - 1))

    def _size(self, text: str) -> int:
        """Return the product of all axes, or parts of axes, in shardings; each is counted once."""
        named = {
            (axis, int(before or 1), int(parts or self._mesh[axis]))
            for axis, before, parts in _AXES.findall(text)
        }
        size, reached = 1, dict.fromkeys(self._mesh, 1)
        for axis, before, parts in sorted(named):
            low, high = max(before, reached[axis]), before * parts
            if high > low:
                size, reached[axis] = size * (high // low), high
        return size

    def _bytes(self, value: Any) -> int:
        width = _width(str(ir.RankedTensorType(value.type).element_type))
        return _elements(value) * width // self._size(self._cuts.get(value, ""))

    def _work(self, operation: Any) -> float:
        if operation.name not in ("stablehlo.dot_general", "stablehlo.convolution"):
            return 0.0
        left, right = operation.operands
        out = operation.results[0]
        if operation.name == "stablehlo.dot_general":
            dot = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
            summed = math.prod(_shape(left)[d] for d in dot.lhs_contracting_dimensions)
        else:
            numbers = stablehlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])
            summed = _elements(right) // _shape(right)[numbers.kernel_output_feature_dimension]
        # An axis cuts a dimension of two of the three values or, for a batch, of all three.
        parts = self._size(" ".join(self._cuts.get(v, "") for v in (left, right, out)))
        return 2.0 * _elements(out) * summed / parts

    def _peak(self, operations: list[Any]) -> int:
        last = {value: i for i, each in enumerate(operations) for value in each.operands}
        ends: dict[int, int] = {}
        held = peak = 0
        for i, operation in enumerate(operations):
            if operation.name not in _FREE:
                made = {v: self._bytes(v) for v in operation.results}
                held += sum(made.values())
                for value, size in made.items():
                    ends[last.get(value, i)] = ends.get(last.get(value, i), 0) + size
            peak = max(peak, held)
            held -= ends.pop(i, 0)
        return peak


def _run(operation: Any, passes: str) -> None:
    passmanager.PassManager.parse(f"builtin.module({passes})").run(operation)


def _main(module: Any) -> Any:
    block = module.operation.regions[0].blocks[0]
    return next(each for each in block.operations if each.operation.name == "func.func")


def _attributes(cut: Cut, closed: bool) -> Any:
    named = [[sdy.AxisRefAttr.get(axis) for axis in axes] for axes in cut]
    dimensions = [sdy.DimensionShardingAttr.get(axes, is_closed=closed) for axes in named]
    return ir.DictAttr.get({"sdy.sharding": sdy.TensorShardingAttr.get("mesh", dimensions)})


def _sharding(attributes: Any) -> Any:
    has_one = "sdy.sharding" in attributes  # these attributes lack `get`
    return attributes["sdy.sharding"] if has_one else None


def _cut(sharding: Any) -> Cut | None:
    """Return the axes of each dimension; None without a sharding or if part of an axis is used."""
    if sharding is None or ":(" in str(sharding):
        return None
    dimensions = sdy.TensorShardingAttr(sharding).dimension_shardings
    return tuple(
        tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(each).axes)
        for each in dimensions
    )


def _shape(value: Any) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _elements(value: Any) -> int:
    return math.prod(_shape(value))


@functools.cache
def _width(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return max(8, int(found[0])) // 8 if found else 1


def _uses(value: Any, depth: int, seen: dict[Any, str]) -> str:
    if depth == 0:
        return ""
    if (value, depth) not in seen:
        found = []
        for use in (each for each in value.uses if each.owner.results):
            following = (_uses(result, depth - 1, seen) for result in use.owner.results)
            found.append(f"{use.owner.name} {use.operand_number} {' '.join(following)}")
        seen[value, depth] = hashlib.sha256("|".join(sorted(found)).encode()).hexdigest()[:8]
    return seen[value, depth]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device, its memory (None: unlimited), and the network between devices."""

    flops_per_second: float
    bytes_per_second: float
    network: Network
    memory_bytes: float | None = None

    @classmethod
    def of(cls, platform: str, memory_bytes: float | None, link_gbps: float | None) -> "Machine":
        """Return a device of a platform (others: gpu) and its link, or the platform's default."""
        flops, moved, link, latency = RATES.get(platform, RATES["gpu"])
        network = Network(latency, (link_gbps or link) / 8e-9)
        return cls(flops, moved, network, memory_bytes)

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Return the time of a computation, which reads and writes so many bytes."""
        return flops / self.flops_per_second + moved_bytes / self.bytes_per_second


@dataclasses.dataclass(frozen=True)
class Cost:
    """Time of a step, memory and sent bytes per device, and the collectives in order."""

    seconds: float
    memory_bytes: float
    sent_bytes: float
    collectives: tuple[str, ...]

    def key(self, machine: Machine) -> tuple[float, ...]:
        """Return a sort key: excess memory, time to three digits, bytes sent, memory."""
        limit = self.memory_bytes if machine.memory_bytes is None else machine.memory_bytes
        excess = max(self.memory_bytes - limit, 0.0)
        return excess, float(f"{self.seconds:.3g}"), self.sent_bytes, self.memory_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the cost as JSON values."""
        return {
            "seconds": float(f"{self.seconds:.3g}"),
            "memory_bytes": int(self.memory_bytes),
            "sent_bytes": int(self.sent_bytes),
            "collectives": dict(collections.Counter(self.collectives)),
        }


@dataclasses.dataclass(frozen=True)
class Scale:
    """Ratios of the compiled step's computation time and temporaries to an estimate's."""

    seconds: float = 1.0
    temporaries: float = 1.0


def compiled_cost(compiled: Any, machine: Machine, devices: int) -> Cost:
    """Return the cost of a compiled step; its time is divided among computations by their bytes."""
    program = combine_collectives(read_program(compiled.as_text() or "", devices))
    computed = _compiled_seconds(compiled, machine)
    moved = sum(each.size_bytes for each in program if not each.is_collective)
    timed = [
        dataclasses.replace(each, seconds=computed * each.size_bytes / max(moved, 1.0))
        for each in program
    ]
    return _simulate_cost(timed, machine, compiled_bytes(compiled))


def estimated_cost(estimate: Estimate, machine: Machine, scale: Scale) -> Cost:
    """Return the cost of a partitioned step, as if XLA combined independent collectives."""
    timed = []
    for each in estimate.program:
        seconds = scale.seconds * machine.seconds(each.flops, each.size_bytes)
        timed.append(dataclasses.replace(each, seconds=seconds))
    memory = estimate.arguments_bytes + scale.temporaries * estimate.temporaries_bytes
    return _simulate_cost(combine_collectives(_in_rounds(timed)), machine, memory)


def scale_of(estimate: Estimate, compiled: Any, machine: Machine) -> Scale:
    """Return the ratios of the compiled step's time and memory to an estimate's."""
    computations = [each for each in estimate.program if not each.is_collective]
    computed = sum(machine.seconds(each.flops, each.size_bytes) for each in computations)
    more = max(compiled_bytes(compiled) - estimate.arguments_bytes, 0)
    seconds = _compiled_seconds(compiled, machine) / max(computed, 1e-12)
    return Scale(seconds, more / max(estimate.temporaries_bytes, 1))


def _compiled_seconds(compiled: Any, machine: Machine) -> float:
    found = compiled.cost_analysis() or {}
    return machine.seconds(max(found.get("flops", 0.0), 0.0), found.get("bytes accessed", 0.0))


def _simulate_cost(program: list[Operation], machine: Machine, memory_bytes: float) -> Cost:
    timeline = simulate(program, machine.network)
    collectives = tuple(each.kind for each in program if each.is_collective)
    return Cost(timeline.seconds, memory_bytes, timeline.sent_bytes, collectives)


def _in_rounds(program: list[Operation]) -> list[Operation]:
    """Return the program with collectives that follow as many others together and of one name.

    XLA combines them the same way.
    """
    rounds: list[int] = []  # for each operation, the length of the chain of collectives before it
    for each in program:
        after = (rounds[i] + program[i].is_collective for i in each.inputs)
        rounds.append(max(after, default=0))

    def sort_key(i: int) -> tuple:
        each = program[i]
        together = (each.kind, each.name) if each.is_collective else ()
        return rounds[i], each.is_collective, *together

    order = sorted(range(len(program)), key=sort_key)
    now = {old: new for new, old in enumerate(order)}
    made = []
    for i, each in ((i, program[i]) for i in order):
        name = str(sort_key(i)) if each.is_collective else each.name
        inputs = tuple(sorted(now[j] for j in each.inputs))
        made.append(dataclasses.replace(each, name=name, inputs=inputs))
    return made


@dataclasses.dataclass(frozen=True)
class Group:
    """Arguments that are cut together by one decision."""

    indices: tuple[int, ...]  # in call order
    shape: tuple[int, ...]  # that they have; of a batch, the greatest common divisor of the rows
    dimensions: tuple[int, ...]  # that may be cut
    num_elements: int  # of all arguments


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
        named = [i for i in indices if step.arguments[i].name.startswith("weights/")]
        uses = partitioner.uses((named or indices)[0], _USES_DEPTH)
        alike.setdefault((re.sub(r"\d+", "#", name), shape, uses), []).extend(indices)
    groups = [
        Group(tuple(indices), shape, tuple(range(len(shape))), len(indices) * math.prod(shape))
        for (_, shape, _), indices in alike.items()
    ]
    return sorted(groups, key=lambda group: -group.num_elements)


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

    `text` is the step's program in StableHLO; `compile_step` compiles it for the arguments' cuts.
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
        # The inputs of the step, which are cut along their rows.
        indices = tuple(i for i, tensor in enumerate(step.batch) if tensor.shape)
        rows = math.gcd(*(step.batch[i].shape[0] for i in indices))
        self._batch = Group(indices, (rows,), (0,), 0)
        self._groups = state_groups(step, self._partitioner)
        self._axes = [axis for axis, size in mesh.items() if size > 1]
        self._order = {axis: i for i, axis in enumerate(mesh)}
        self._whole = whole(step)

    def best(self) -> Found:
        """Return what sends the least among the fastest that fit; UserError: none fits."""
        rows = (self._with(self._whole, self._batch, 0, axes) for axes in self._choices())
        batches = [cuts for cuts in rows if cuts is not None]
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
        compared, compiled = len(self._estimates), len(self._costs)
        layout = Layout(self._mesh, cuts)
        return Found(layout, self._programs[cuts], self._costs[cuts], compared, compiled)

    def _choose_layout(self) -> Cuts:
        fitting = {cuts: cost for cuts, cost in self._costs.items() if self._fits(cost)}
        if not fitting:
            least = min(cost.memory_bytes for cost in self._costs.values())
            mesh = "x".join(map(str, self._mesh.values()))
            raise UserError(
                f"No layout over {mesh} devices fits in "
                f"{(self._machine.memory_bytes or 0) / GIB:.3g} GiB: the smallest needs "
                f"{least / GIB:.3g} GiB per device."
            )
        limit = NEAR * min(cost.seconds for cost in fitting.values())
        near = [cuts for cuts, cost in fitting.items() if cost.seconds <= limit]
        return min(near, key=lambda cuts: (fitting[cuts].sent_bytes, fitting[cuts].seconds))

    def _tactics(self, cuts: Cuts) -> Iterator[Cuts]:
        """Yield layouts that shard all groups of the state along each choice of axes."""
        for axes in self._choices()[1:]:
            yield self._shard_groups(cuts, axes, lambda group: group.dimensions)
        if MODEL in self._axes:  # cuts only the last dimension of each tensor
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
        """Return the best layouts with one, two, ... propagated decisions, found by beam search."""
        decisions = {
            (self._implications(group, dimension, axis), axis): None
            for group in self._large() for dimension in group.dimensions for axis in self._axes
        }  # fmt: skip
        found = [min(beam, key=self._estimate_cost)]
        while len(self._estimates) < MOST_ESTIMATES:
            every = (self._join_cuts(cuts, new, axis) for cuts in beam for new, axis in decisions)
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
                every += [self._join_cuts(cuts, implied, axis, frees) for frees in (False, True)]
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

    def _join_cuts(self, cuts: Cuts, implied: Cuts, axis: str, frees: bool = False) -> Cuts | None:
        """Return cuts with those that are implied along an axis or, if `frees`, without them."""
        made = list(cuts)
        for i, new in enumerate(implied):
            if any(new):
                dimension = None if frees else new.index((axis,))
                made[i] = self._place_axes(made[i], dimension, (axis,))
        return tuple(made) if self._is_possible(made, range(len(made))) else None

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
