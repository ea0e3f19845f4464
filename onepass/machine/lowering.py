"""Lower the graph of one step to instructions."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.machine.assembly import Assembly, Branches, Op
from onepass.machine.formulas import FUNCTIONS, fold_constants
from onepass.machine.kernels import pad_channels
from onepass.machine.values import (
    KNOWN,
    Any_Value,
    Buffer,
    Constant,
    Unlowerable,
    Value,
    axes_of,
    broadcast,
    contiguous,
    indices,
    is_wide,
    rearrange_value,
)
from onepass.step.replay import CALLS, called_graph, operations_for, run_op

Rule = Callable[["Lowering", tf.Operation, list[Any]], Sequence[Any]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function from lowered inputs to lowered outputs for operations of these types."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


@dataclasses.dataclass(frozen=True)
class Resource:
    """The handle of a variable, through which operations read it."""

    handle: Any


@dataclasses.dataclass(frozen=True)
class Slot:
    """An integer at run time: the double at `place` plus `add`, modulo `modulo` if not 0."""

    place: Value
    add: int = 0
    modulo: int = 0


class Lowering:
    """Lowers a step: visits its operations and collects instructions."""

    def __init__(self, before: "Lowering | None" = None, position: int = 0) -> None:
        self.assembly: Assembly = Assembly() if before is None else before.assembly
        # Variables and their values.
        self.read: list[tuple[Any, tf.DType, np.ndarray]] = [] if before is None else before.read
        # States that could be the position.
        self.candidates: set[Buffer] = set() if before is None else before.candidates
        # The first candidate at which rows are written.
        self.counter: Buffer | None = None if before is None else before.counter
        # States that increase by one in every step, of any branch so far; None: of none so far.
        self.counters: set[Buffer] | None = None if before is None else before.counters
        self._position = position  # at which branches are chosen
        self.packed: dict[Buffer, list[Any_Value]] = {}  # the scalars that form a small vector
        self.joined: dict[tuple, Value] = {}  # concatenations, by their parts
        self._slots: dict[tuple[int, int], Slot] = {}
        # Booleans that were computed in doubles, by the place of the floats that they became.
        self._truths: dict[tuple[int, int], Value] = {}

    def graph(
        self, graph: tf.Graph, fetches: Sequence[tf.Tensor], known: dict[str, Any]
    ) -> list[Any]:
        """Lower what `fetches` need and return them lowered; raise Unlowerable if it cannot."""
        values = dict(known)
        for op in operations_for(fetches, values):
            inputs = [values[tensor.name] for tensor in op.inputs]
            try:
                outputs = self._outputs(op, inputs)
            except Unlowerable as error:
                if error.args[1:]:  # the error already names the operation
                    raise
                message = f"{op.type} of {origin(op)}: {error.args[0]}"
                raise Unlowerable(message, op.type) from None
            values.update(zip((tensor.name for tensor in op.outputs), outputs, strict=False))
        return [values[tensor.name] for tensor in fetches]

    def call(self, body: tf.Graph, inputs: Sequence[Any]) -> list[Any]:
        """Lower the graph of a function for lowered arguments, and return its outputs lowered."""
        known = dict(zip((x.name for x in body.inputs), inputs, strict=True))
        return self.graph(body, body.outputs, known)

    def choose(self, index: Any_Value) -> int:
        """Return the number of the branch that an index chooses at this lowering's position.

        The index is known, or an entry of a constant table at the position modulo its length.
        """
        if isinstance(index, Constant):
            return int(index.array)
        branches = self._branches(index)
        if self.assembly.branches not in (None, branches):
            raise Unlowerable("branches that are chosen in different ways")
        self.assembly.branches = branches
        return branches.which[self._position % len(branches.which)]

    def _branches(self, index: Value) -> Branches:
        made = self.assembly.instructions
        for each in (x for x in made if x.op is Op.READ and x.out.buffer is index.buffer):  # type: ignore[union-attr]
            table = self.assembly.constants.get(each.reads[0].buffer)
            *_, add, modulo, _ = each.numbers
            is_position = each.reads[1].buffer in self.candidates and not add
            if table is not None and is_position and modulo == table.size:
                return Branches(each.reads[1].buffer, tuple(map(int, table)))
        raise Unlowerable("branches that are not chosen by the position alone")

    def _outputs(self, op: tf.Operation, inputs: list[Any]) -> Sequence[Any]:
        if op.type in CALLS:
            return self.call(called_graph(op, "f"), inputs)
        found = RULES.get(op.type)
        if found is not None:
            return found(self, op, inputs)
        if inputs and all(isinstance(each, Constant) for each in inputs):
            return _evaluate_constants(op, inputs)
        raise Unlowerable("the step machine has no rule for it")

    def variable(self, resource: Resource, dtype: tf.DType) -> np.ndarray:
        """Return the current value of a variable, and record that it was read."""
        for handle, kind, array in self.read if self.assembly.branches else ():
            if handle is resource.handle and kind == dtype:
                return array
        with tf.init_scope():
            tensor = tf.raw_ops.ReadVariableOp(resource=resource.handle, dtype=dtype)
        array = np.asarray(tensor)
        self.read.append((resource.handle, dtype, array))
        return array

    def value(self, given: Any_Value) -> Value:
        """Return a constant as a value in memory; a value is returned unchanged."""
        if given.size == 0:
            raise Unlowerable("a tensor without entries")
        return given if isinstance(given, Value) else self.assembly.value_of(given)

    def materialise_value(self, value: Value) -> Value:
        """Return a contiguous copy of a value; a contiguous value is returned unchanged."""
        if value.contiguous:
            return value
        out = contiguous(value.shape, value.dtype)
        return self.copy_value(out, value)

    def copy_value(
        self, out: Value, value: Value, stays: bool = False, fills: bool = False
    ) -> Value:
        """Copy entries to `out`; without `stays` and `fills`, an equal earlier copy will do."""
        axes = axes_of(value.shape, out.strides, value.strides)
        if len(axes) > 3:
            if not value.contiguous:
                value = self.gather_entries(value, np.array(indices(value)))
            axes = axes_of(value.shape, out.strides, value.strides)
            if len(axes) > 3:
                raise Unlowerable("a copy along more than three axes")
        axes = [(1, 0, 0)] * (3 - len(axes)) + axes
        sizes, outs, ins = zip(*axes, strict=True)
        inner = sizes[2] == 1  # a single number
        outs, ins = (*outs[:2], 1 if inner else outs[2]), (*ins[:2], 1 if inner else ins[2])
        numbers = [2 if out.wide else 1, *sizes, *outs, *ins]
        return self.assembly.add(Op.COPY, out, [value], numbers, stays, fills)

    def gather_entries(self, value: Value, places: np.ndarray) -> Value:
        """Return the entries at given indices of a value's buffer."""
        out = contiguous(places.shape, value.dtype)
        table = Value(self.assembly.stored_indices(places), 0, (1,), (1,), np.dtype(np.int32))
        base = dataclasses.replace(value, start=0)
        numbers = [2 if value.wide else 1, places.size]
        return self.assembly.add(Op.GATHER, out, [base, table], numbers)

    def arrange_entries(
        self, given: Any_Value, function: Callable[[np.ndarray], np.ndarray]
    ) -> Any_Value:
        """Apply a function that only selects and reorders entries to a value."""
        if isinstance(given, Constant):
            return Constant(function(given.array))
        made = rearrange_value(given, function)
        return made if isinstance(made, Value) else self.gather_entries(given, made)

    def map(self, name: str, *given: Any_Value) -> Any_Value:
        """Apply a function; the result is boolean, or has the last argument's dtype."""
        function = FUNCTIONS[name]
        dtype = np.dtype(bool) if function.truth else given[-1].dtype
        if all(isinstance(each, Constant) for each in given):
            arrays = [each.array for each in given if isinstance(each, Constant)]
            return Constant(fold_constants(name, arrays).astype(dtype))
        shape = np.broadcast_shapes(*(each.shape for each in given))
        operands = [self.value(each) for each in given]
        wide = any(each.wide for each in operands)
        operands = [self.doubles(each) if wide else each for each in operands]
        if dtype not in KNOWN:
            raise Unlowerable(f"numbers of type {dtype.name}")
        out = contiguous(shape, np.float64 if wide else dtype)
        made = self._map_operands(function.code, out, [broadcast(each, shape) for each in operands])
        if wide and not is_wide(dtype):
            exact = made
            made = self.floats(exact, dtype)
            if function.truth:
                self._truths[made.buffer.number, made.start] = exact
        made = dataclasses.replace(made, dtype=dtype)
        self._remember_slot(name, given, made)
        return made

    def _map_operands(self, code: int, out: Value, operands: list[Value]) -> Value:
        marks = {each.filled for each in operands} - {None}
        apart = marks.pop() if len(marks) == 1 and not out.wide else None
        out = dataclasses.replace(out, filled=apart)
        for _ in range(2):
            shapes = [each.strides for each in operands]
            axes = axes_of(out.shape, out.strides, *shapes, apart=apart)
            steps = axes[-1][2:] if axes else ()
            fits = len(axes) <= 2 and (out.wide or all(step in (0, 1) for step in steps))
            if fits:
                break
            operands = [
                each if not any(each.strides) else self.materialise_value(each) for each in operands
            ]
        else:
            raise Unlowerable("arguments that are broadcast along three axes")
        axes = [(1, 0, *[0] * len(operands))] * (2 - len(axes)) + axes
        outer, inner = axes
        unused = 3 - len(operands)
        numbers = [code, outer[0], inner[0], outer[1], *outer[2:], *[0] * unused]
        numbers += [*inner[2:], *[1] * unused]
        limited = None
        if apart is not None:
            limited = 2 if out.strides[apart] == inner[1] and out.shape[apart] == inner[0] else 1
        op = Op.MAP_DOUBLES if out.wide else Op.MAP
        return self.assembly.add(op, out, operands, numbers, limited=limited)

    def doubles(self, value: Value) -> Value:
        """Convert a value to doubles."""
        if value.wide:
            return value
        truth = self._truths.get((value.buffer.number, value.start))
        if truth is not None and truth.shape == value.shape and value.contiguous:
            return truth
        return self._convert_value(contiguous(value.shape, np.float64), value)

    def floats(self, value: Value, dtype: np.dtype) -> Value:
        """Convert a value to float32 words, which also store booleans."""
        if not value.wide:
            return value
        return self._convert_value(contiguous(value.shape, dtype), value)

    def _convert_value(self, out: Value, value: Value) -> Value:
        axes = axes_of(out.shape, out.strides, value.strides)
        if len(axes) > 2:
            return self._convert_value(out, self.materialise_value(value))
        axes = [(1, 0, 0)] * (2 - len(axes)) + axes
        (outer, _, outer_step), (inner, _, step) = axes
        numbers = [out.wide, outer, inner, outer_step, step]
        return self.assembly.add(Op.CONVERT, out, [value], numbers)

    def product(self, given: Value, matrix: np.ndarray) -> Value:
        """Return the product of a value [rows, inputs] and a constant matrix, [rows, outputs]."""
        rows, inputs = given.shape
        outputs = matrix.shape[1]
        if inputs > 1 and given.strides[1] != 1:
            given = self.materialise_value(given)
        if given.wide or not np.issubdtype(matrix.dtype, np.floating):
            raise Unlowerable("a product of doubles or whole numbers")
        out = contiguous([rows, outputs], np.float32, pitch=pad_channels(outputs))
        weights = self.assembly.packed_matrix(matrix)
        bias = self.assembly.store_constants(np.zeros(pad_channels(outputs)), False)
        reads = [given]
        reads += [Value(each, 0, (1,), (1,), np.dtype(np.float32)) for each in (weights, bias)]
        pitch = given.strides[0] if rows > 1 else 0
        numbers = [
            inputs,
            pad_channels(outputs) // pad_channels(1),
            rows,
            pitch,
            pad_channels(outputs),
        ]
        return self.assembly.add(Op.PRODUCT, out, reads, numbers)

    def slot(self, value: Value) -> Slot:
        """Return the `Slot` through which the machine reads a scalar integer."""
        key = (value.buffer.number, value.start)
        return self._slots.get(key, Slot(self.doubles(value)))

    def counts(self, buffer: Buffer) -> bool:
        """Return whether a state is the position; the first candidate asked about becomes it."""
        if self.counter is None and buffer in self.candidates:
            self.counter = buffer
        return self.counter is buffer

    def _remember_slot(self, name: str, given: Sequence[Any_Value], made: Value) -> None:
        """Record that an integer is another integer plus a constant, or modulo a constant."""
        if made.size != 1 or not np.issubdtype(made.dtype, np.integer) or len(given) != 2:
            return
        first, second = given
        if name == "Add" and isinstance(first, Constant):
            first, second = second, first
        if not isinstance(first, Value) or not isinstance(second, Constant):
            return
        old, number = self.slot(first), int(second.array.reshape(-1)[0])
        if name == "Add" and not old.modulo:
            new = dataclasses.replace(old, add=old.add + number)
        elif name == "Sub" and not old.modulo:
            new = dataclasses.replace(old, add=old.add - number)
        elif name == "FloorMod" and not old.modulo and number > 0:
            new = dataclasses.replace(old, modulo=number)
        else:
            return
        self._slots[made.buffer.number, made.start] = new


def origin(op: tf.Operation) -> str:
    """Return the name of an operation in the user's network."""
    try:
        return op.get_attr("_origin").decode()
    except ValueError:
        return op.name


def _evaluate_constants(op: tf.Operation, inputs: Sequence[Constant]) -> list[Constant]:
    with tf.init_scope():
        tensors = [
            tf.constant(each.array, tensor.dtype)
            for each, tensor in zip(inputs, op.inputs, strict=True)
        ]
        return [Constant(each.numpy()) for each in run_op(op, tensors)]
