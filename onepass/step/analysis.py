"""Analyse a network's graphs for two lengths: a step's operations, and the rows that it keeps."""

from collections.abc import Iterator, Sequence

import tensorflow as tf

# The modules register their rules when they are imported.
from onepass.step import indexing, loops, time_rules
from onepass.step.attention import concerns, pairs
from onepass.step.replay import operations_for, same, static_value
from onepass.step.rules import RULES
from onepass.step.streams import (
    Groups,
    Kind,
    Node,
    NotCausalError,
    Part,
    Refused,
    Stream,
    Table,
    TableRead,
    Turned,
    UnsupportedNetworkError,
)
from onepass.step.tracing import SHAPES, dependent, draws, first_difference, layer_of


class Analysis:
    """The operations of a step, and the past rows that it keeps.

    Attributes:
      parts: the operations of a step in order, each with its `Part`.
      fixed: tensors read in a step that depend only on arguments without a time axis, by name.
      memory: number of past rows to keep of each tensor that a step reads at a delay, by name.
      groups: the groups of tensors with an entry per pair of time steps, such as attention scores.
      lag: number of the output's rows before time step 0, by which a step delays its output.
    """

    def __init__(
        self,
        graphs: Sequence[tf.Graph],
        lengths: tuple[int, int],
        temporal: Sequence[bool],
        names: frozenset[str],
    ) -> None:
        self.graphs, self.lengths, self._names = graphs, lengths, names
        self.inputs = [tensor.name for tensor in graphs[0].inputs[: len(temporal)]]
        self.timed = [index for index, has_time in enumerate(temporal) if has_time]
        self._dynamic = set(dependent(graphs[0], self.timed))
        self._dynamic.update(graphs[0].inputs[index].op for index in self.timed)
        fixed = [index for index, has_time in enumerate(temporal) if not has_time]
        self._fixed = set(dependent(graphs[0], fixed)) - self._dynamic
        self._fixed.update(graphs[0].inputs[index].op for index in fixed)
        self.tensors = {x.name: x for op in graphs[0].get_operations() for x in op.outputs}
        start: list[Kind] = [Stream(1, 0, 0) if has_time else None for has_time in temporal]
        turned: frozenset[str] = frozenset()
        while True:
            self.kinds: dict[str, Kind] = dict(zip(self.inputs, start, strict=True))
            self.parts: list[tuple[tf.Operation, Part]] = []
            self.fixed: dict[str, tf.Tensor] = {}
            self.memory: dict[str, int] = {}
            self.roots: dict[str, str] = {}
            self.groups = Groups(turned)
            try:
                for op, longer in self._pairs():
                    self._add(op, longer)
                break
            except Turned as sign:
                turned |= {sign.group}
        self._check_output()
        self.memory = {name: rows for name, rows in self.memory.items() if rows}

    def root(self, name: str) -> str:
        """Return the name under which a tensor's rows are kept; equal rows are kept once."""
        return self.roots.get(name, name)

    def stream(self, name: str) -> Stream:
        """Return the stream of a tensor; raise TypeError if it has no time axis."""
        kind = self.kinds[name]
        if not isinstance(kind, Stream):
            raise TypeError(f"{name} must have a time axis, it is {kind}.")
        return kind

    def layer(self, op: tf.Operation) -> str:
        """Return the name of an operation's layer."""
        return layer_of(op.name, self._names)

    def sources(self, op: tf.Operation) -> list[tf.Tensor]:
        """Return the tensors an operation reads, which may stand for several in the graph."""
        whole = _whole(op)
        return whole.sources if whole else list(op.inputs)

    def _pairs(self) -> Iterator[tuple[tf.Operation, tf.Operation]]:
        short, long = (operations_for(graph.outputs) for graph in self.graphs)
        first = first_difference(short, long)
        if first is not None:
            raise UnsupportedNetworkError(
                f"{self.layer(first)} has different operations for a longer input, like"
                " a Python loop over time; no step can be derived from it"
            )
        inside: set[tf.Operation] = set()
        both = list(zip(short, long, strict=True))
        for op, _ in both:
            whole = _whole(op)
            inside.update(whole.inside if whole else ())
        yield from (pair for pair in both if pair[0] not in inside)

    def _add(self, op: tf.Operation, longer: tf.Operation) -> None:
        if op.type == "Placeholder":
            return
        tensors = self.sources(op)
        kinds = [self.kinds.get(tensor.name) for tensor in tensors]
        static = frozenset(i for i, x in enumerate(tensors) if x.op not in self._dynamic)
        node = Node((op, longer), self.lengths, kinds, self.layer, static)
        part = self._part(node)
        self.kinds.update(zip((x.name for x in op.outputs), part.kinds, strict=True))
        if op in self._fixed and not any(part.kinds):
            return  # it is computed once, with the first state
        if part.run is not None:  # a tensor without a value is refused where it is read
            self.parts.append((op, part))
            for index, tensor in enumerate(tensors):
                if index not in part.tables and tensor.op in self._fixed:
                    self.fixed[tensor.name] = tensor
        if part.is_alias:
            self.roots[op.outputs[0].name] = self.root(tensors[0].name)
        for index, delays in part.delays.items():
            if index not in part.tables:
                name = self.root(tensors[index].name)
                self.memory[name] = max(self.memory.get(name, 0), *delays)

    def _part(self, node: Node) -> Part:
        op = node.op
        if draws(op):
            text = "draws random numbers of its own; call it without dropout or noise"
            raise NotCausalError(f"{node.layer} {text}")
        grows = any(node.moving(i) for i in range(node.num_outputs))
        is_list = op.type.startswith("TensorList") and bool(node.streams())
        if op not in self._dynamic and op.type not in loops.LOOPS and not is_list:
            return self._static(node) if grows else self._constant(node)
        if op.type == "BatchToSpaceND" and any(node.kinds):
            short, long = (time_rules.Dilated.ending_at(x) for x in (op, node.longer))
            if short is None or long is None:
                raise node.unsupported_error("it does not end a dilated convolution")
            return time_rules.dilated_convolution(node, short, long)
        if op.type in indexing.INDEXED and (whole := indexing.Indexed.ending_at(op)):
            return indexing.index_part(node, whole)
        if concerns(node):
            return pairs(node, self.groups)
        tables = {i: kind for i, kind in enumerate(node.kinds) if isinstance(kind, Table)}
        for index, kind in tables.items():
            node.kinds[index] = kind.as_stream()
        if not node.streams() and op.type not in loops.LOOPS:
            return time_rules.still(node) if grows else self._constant(node)
        part = _apply_rule(node)
        for index, kind in tables.items():
            delays = part.delays.get(index, (0,))
            if len(delays) > 1:
                raise node.unsupported_error("it reads a table of positions at several delays")
            part.tables[index] = TableRead(kind.axes[0], None, delays[0])
        return part

    def _static(self, node: Node) -> Part:
        """Return how a step gets a tensor that grows with the length but ignores the sequence."""
        if not any(isinstance(kind, Table) for kind in node.kinds):
            try:
                if not node.streams() or node.type in SHAPES:
                    return time_rules.still(node)
                if node.type in RULES:
                    return _apply_rule(node)
            except UnsupportedNetworkError:
                pass  # its rows differ from each other
        refused = Refused(f"{node.layer} depends on the length of its input")
        axes = [node.moving(i) for i in range(node.num_outputs)]
        return Part([Table(tuple(each)) if each else refused for each in axes], None)

    def _constant(self, node: Node) -> Part:
        """Return how a step runs an operation whose output depends on neither length nor input."""
        outputs = node.op.outputs
        if not any(node.kinds) and node.type != "Const":
            return Part([None] * len(outputs), time_rules.replay_operation(node))
        short, long = ([static_value(x) for x in op.outputs] for op in (node.op, node.longer))
        if all(same(*both) for both in zip(short, long, strict=True)):
            known = list(zip(short, outputs, strict=True))
            return Part(
                [None] * len(known),
                lambda inputs, call: [tf.constant(x, y.dtype) for x, y in known],
            )
        if node.type in time_rules.LIKE:
            return Part([None], lambda inputs, call: [time_rules.fill_like_input(node)])
        refused = [kind for kind in node.kinds if isinstance(kind, Refused)]
        refused += [Refused(f"{node.layer} depends on the length of its input")]
        return Part([refused[0]] * len(outputs), None)

    def _check_output(self) -> None:
        output = self.graphs[0].outputs[0]
        kind, layer = self.kinds.get(output.name), self.layer(output.op)
        if isinstance(kind, Refused):
            raise kind.error()
        if kind is None or isinstance(kind, Table):
            raise UnsupportedNetworkError("the output does not depend on the input")
        if not isinstance(kind, Stream):
            raise UnsupportedNetworkError(f"{layer} gives the output two axes that grow with time")
        if kind.axis != 1 or kind.is_merged:
            raise UnsupportedNetworkError(
                f"{kind.merged_by or layer} gives the output a rate or order other than [batch,"
                f" time, parameters]: for {self.lengths[0]} inputs it has shape {output.shape}"
            )
        offset, texts = kind.offset or 0, " and ".join(kind.ahead or (layer,))
        if output.shape[1] != self.lengths[0]:
            raise UnsupportedNetworkError(
                f"{texts}: the output must be as long as the input, for {self.lengths[0]} inputs it"
                f" has shape {output.shape}"
            )
        if offset < 0:
            raise NotCausalError(f"{texts}: output t depends on input t + {-offset}", -offset)
        if kind.end < -offset:
            raise NotCausalError(f"{texts}: the last outputs consist of padding")
        root = self.root(output.name)
        self.memory[root] = max(self.memory.get(root, 0), offset)
        self.lag = offset


def _whole(op: tf.Operation) -> time_rules.Dilated | indexing.Indexed | None:
    """Return several operations that count as the one that ends them; None if it is alone."""
    if op.type == "BatchToSpaceND":
        return time_rules.Dilated.ending_at(op)
    return indexing.Indexed.ending_at(op) if op.type in indexing.INDEXED else None


def _apply_rule(node: Node) -> Part:
    if node.type not in RULES:
        node.refuse_kinds()
        raise node.unsupported_error("there is no rule for it; `rule` registers one")
    part = RULES[node.type](node)
    if not isinstance(part, Part):
        raise TypeError(f"the rule for {node.type} must return a Part, got {part!r}.")
    if len(part.kinds) != node.num_outputs:
        raise TypeError(
            f"the rule for {node.type} must have a kind for each of {node.num_outputs} outputs,"
            f" got {len(part.kinds)}."
        )
    return part
