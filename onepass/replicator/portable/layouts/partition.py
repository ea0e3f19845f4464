"""Partition a step with Shardy, XLA's partitioner, in milliseconds, without compiling it.

The passes that XLA runs determine the consequences of a decision for other tensors (automap's
propagation) and the exchanges between devices; `estimate_device` reads their result's operations.
"""

import dataclasses
import functools
import hashlib
import math
import re
from typing import Any

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.interpreters import mlir

from .layout import Cut, Step, is_possible
from .program import COMPUTE, LINK, Operation

_PROPAGATE = "sdy-propagation-pipeline"
_EXCHANGE = (
    "sdy-close-shardings,func.func(sdy-insert-explicit-reshards{enable-full-version=true},"
    "sdy-reshard-to-collectives)"
)
_COLLECTIVES = {
    "sdy.all_reduce": "all-reduce",
    "sdy.all_gather": "all-gather",
    "sdy.reduce_scatter": "reduce-scatter",
    "sdy.all_to_all": "all-to-all",
    "sdy.collective_permute": "collective-permute",
}
# These allocate no array once fused.
_FREE = {
    *("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota", "stablehlo.reshape"),
    *("stablehlo.convert", "sdy.all_slice", "func.return", "sdy.sharding_constraint"),
}
_AXES = re.compile(r'"(\w+)"(?::\((\d+)\)(\d+))?')  # "x", or a part of it: "x":(before)parts


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A partitioned step: the operations of one device, and their work.

    The name of a collective is the axes along which it joins devices.

    Attributes:
      temporaries_bytes: peak size of temporaries on one device if nothing is fused or reused in
        place.
    """

    program: list[Operation]
    flops: list[float]
    arguments_bytes: int
    temporaries_bytes: int


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
        shapes = (tensor.shape for tensor in self._step.arguments)
        return tuple(
            cut if is_possible(shape, cut, self._mesh) else given
            for shape, cut, given in zip(shapes, follow, cuts, strict=True)
        )

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
        self._flops: list[float] = []

    def estimate(self) -> Estimate:
        attributes = self._main.arg_attrs
        for argument, given in zip(self._main.arguments, attributes, strict=True):
            self._cuts[argument] = str(_sharding(given) or "")
        operations = [each.operation for each in self._main.regions[0].blocks[0].operations]
        for operation in operations:
            self._add(operation)
        arguments = sum(map(self._bytes, self._main.arguments))
        return Estimate(self._program, self._flops, arguments, self._peak(operations))

    def _add(self, operation: Any) -> None:
        attributes = operation.attributes
        shardings = _each(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else []
        if not shardings and "out_sharding" in attributes:
            shardings = [str(attributes["out_sharding"])]
        # Without shardings, every result is whole; `zip` stops after the last result.
        for result, sharding in zip(operation.results, shardings or [""] * 99, strict=False):
            self._cuts[result] = sharding
        waits = {self._made[v] for v in operation.operands if v in self._made}
        if operation.name in _FREE:
            for result in operation.results:
                self._made.update({result: max(waits)} if waits else {})
            return
        kind = _COLLECTIVES.get(operation.name)
        given = sum(map(self._bytes, operation.operands))
        made = sum(map(self._bytes, operation.results))
        inputs = tuple(sorted(waits))
        if kind is None:
            self._program.append(Operation("", operation.name, given + made, inputs, 1, COMPUTE))
        else:
            axes = self._axes(operation)
            joined = max(self._size(axes), 2)
            self._program.append(Operation(axes, kind, given, inputs, joined, LINK))
        self._flops.append(self._work(operation))
        self._made.update(dict.fromkeys(operation.results, len(self._program) - 1))

    def _axes(self, operation: Any) -> str:
        given = operation.attributes
        return " ".join(str(given[name]) for name in given if name != "out_sharding")

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
        return _elements(value) * _width(value) // self._size(self._cuts.get(value, ""))

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
    dimensions = [
        sdy.DimensionShardingAttr.get(
            [sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=closed
        )
        for axes in cut
    ]
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


def _each(attribute: Any) -> list[str]:
    return [str(each) for each in sdy.TensorShardingPerValueAttr(attribute).shardings]


def _shape(value: Any) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _elements(value: Any) -> int:
    return math.prod(_shape(value))


@functools.lru_cache(None)
def _bits(name: str) -> int:
    found = re.search(r"\d+", name)
    return max(8, int(found[0])) if found else 8


def _width(value: Any) -> int:
    return _bits(str(ir.RankedTensorType(value.type).element_type)) // 8


def _uses(value: Any, depth: int, seen: dict[Any, str]) -> str:
    if depth == 0:
        return ""
    if (value, depth) not in seen:
        found = sorted(
            f"{use.owner.name} {use.operand_number} "
            + " ".join(_uses(result, depth - 1, seen) for result in use.owner.results)
            for use in value.uses
            if use.owner.results
        )
        seen[value, depth] = hashlib.sha256("|".join(found).encode()).hexdigest()[:8]
    return seen[value, depth]
