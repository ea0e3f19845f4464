"""Limits of what a network reads: tables of positions and of classes.

XLA and accelerators clamp a gather beyond a table's rows, so every later element would silently get
the last position; the rows that a network reads at a length are therefore compared with those of
its tables.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.networks.conditions import Specs, specs_at
from onepass.networks.network import SMALL, brings_step, one_line, size_text
from onepass.step import NotCausalError, UnsupportedNetworkError, incremental
from onepass.step.program import LENGTHS
from onepass.step.replay import captures_by_name, entries, operations_for, run_graph, static_value
from onepass.step.tracing import Traces, graph_of, layer_names, layer_of, rate_of, specs_of

SLICES = ("Slice", "StridedSlice")
DERIVED = LENGTHS[0]  # the lengths for which `incremental` traces a network


class Tables:
    """The tables of positions of a network."""

    def __init__(
        self, network: Any, call: Callable[..., Any], specs: Sequence[tf.TensorSpec], axes: int
    ) -> None:
        self.call, self._specs, self._axes = call, list(specs), axes
        self._built = call.function if isinstance(call, Traces) else call
        self.of_one_size = hasattr(self._built, "sizes")  # it can be called at no other
        self.no_step = getattr(self._built, "no_step", "")  # why no step can be derived
        self._names = layer_names(network)
        self._known: dict[tuple[int, ...], str] = {}
        self._any: bool | None = None

    def check(self, sizes: Iterable[int | None]) -> None:
        """Raise ValueError if the network cannot take a size, such as for lack of positions."""
        sizes = tuple(sizes)
        fault = "" if None in sizes else self.fault([int(size or 0) for size in sizes])
        if fault:
            raise ValueError(f"`network` cannot take {size_text(sizes)}: {fault}.")

    def fault(self, sizes: Sequence[int]) -> str:
        """Return why the network cannot take a size, [time] or [height, width]; "" if it can."""
        sizes = tuple(sizes)
        built = getattr(self._built, "fault", None)  # only networks built for certain sizes have it
        found = "" if self.of_one_size else self._fault(sizes)
        return found or ("" if built is None else built(sizes))

    def _fault(self, sizes: tuple[int, ...]) -> str:
        if any(all(map(int.__le__, sizes, known)) for known, f in self._known.items() if not f):
            return ""
        if self._any is None:
            with tf.init_scope():
                self._any = self._has_tables()
        if not self._any:
            return ""
        if sizes not in self._known:
            with tf.init_scope():
                self._known[sizes] = self._find_short_table(sizes)
        return self._known[sizes]

    def longest(self, lengths: Sequence[int]) -> int:
        """Return the first of `lengths` that the network can take; the last if it can take none."""
        return next((n for n in lengths if not self.fault([n] * self._axes)), lengths[-1])

    def _has_tables(self) -> bool:
        shorter, longer = rate_of(self.call).lengths(DERIVED)
        short = self._trace_network([shorter]) if self._axes == 1 else ""
        more: Sequence[int] = [longer]
        if isinstance(short, str):
            short, more = self._trace_network([SMALL] * self._axes), [SMALL + 1] * self._axes
        few = [] if isinstance(short, str) else list(_reads(short))
        if not few:
            return False
        long = self._trace_network(more)
        if isinstance(long, str):
            return True
        pairs = zip(few, _reads(long), strict=False)
        return any(a.rows == b.rows and a[2:] != b[2:] for a, b in pairs)

    def _find_short_table(self, sizes: tuple[int, ...]) -> str:
        graph = self._trace_network(sizes)
        if isinstance(graph, str):
            return self._explain_refusal(graph)
        for read in _reads(graph):
            # Bounds of a strided slice may exceed the rows, as in Python.
            if read.last >= read.rows and read.op.type != "StridedSlice":
                return f"{self._table_phrase(read)} and row {read.last} is read"
        return ""

    def _explain_refusal(self, reason: str) -> str:
        short, long = (self._trace_network([SMALL + more] * self._axes) for more in (0, 1))
        if isinstance(short, str):
            return ""  # for any length; another check reports the reason
        if isinstance(long, tf.Graph):
            for read, later in zip(_reads(short), _reads(long), strict=False):
                if read.op.type in SLICES and read.rows == later.rows and later.last > read.last:
                    return self._table_phrase(read)
        return reason

    def _table_phrase(self, read: "_Read") -> str:
        layer = layer_of(read.op.name, self._names)
        return f"the table of positions in its layer `{layer}` has {read.rows} rows"

    def _trace_network(self, sizes: Sequence[int]) -> tf.Graph | str:
        first, *others = self._specs
        specs = [tf.TensorSpec([1, *sizes, *first.shape[1 + self._axes :]], first.dtype)]
        specs += specs_at(others, 1, sizes)
        try:
            return graph_of(self.call, specs).graph
        except (ValueError, TypeError, IndexError, tf.errors.OpError) as error:
            return one_line(error)


def derive_step(network: Any, tables: Tables, **specs: Any) -> Any:
    """Return `incremental(network, ...)`, with an error that names a table that is too short."""
    if tables.no_step and not brings_step(network):
        raise UnsupportedNetworkError(f"{tables.no_step}, so that no step can be derived")
    try:
        return incremental(network, **specs, function=tables.call)
    except NotCausalError:
        raise
    except (ValueError, TypeError, LookupError, tf.errors.OpError) as error:
        fault = "" if tables.of_one_size else tables.fault([max(DERIVED)])
        if fault:
            raise UnsupportedNetworkError(f"{fault}, too few to derive a step from") from error
        if isinstance(error, UnsupportedNetworkError):
            raise
        raise UnsupportedNetworkError(one_line(error)) from error


class _Read(NamedTuple):
    """A read of `num` rows (0 for a slice), up to index `last`, of a table that has `rows`."""

    op: tf.Operation
    rows: int
    last: int
    num: int


def _reads(graph: tf.Graph) -> Iterator[_Read]:
    """Yield the reads of tables in a graph that do not depend on input values."""
    for op in operations_for(graph.outputs):
        rows = entries(op)
        places = None if rows is None else _value(op.inputs[1])
        if op.type in SLICES:
            yield from _reads_of_slice(op)
        elif rows is not None and places is not None and places.size:
            yield _Read(op, int(rows), int(places.max()), places.size)


def _reads_of_slice(op: tf.Operation) -> Iterator[_Read]:
    if _reads_input(op.inputs[0]) or op.inputs[0].shape.rank is None:
        return
    first, second = static_value(op.inputs[1]), static_value(op.inputs[2])
    if first is None or second is None:
        return
    ends = first + second if op.type == "Slice" else second
    if op.type == "StridedSlice":
        if any(op.get_attr(f"{mask}_mask") for mask in ("ellipsis", "new_axis")):
            return
        unset = op.get_attr("end_mask")
        ends = np.array([0 if unset >> n & 1 else end for n, end in enumerate(ends)])
    for rows, end in zip(op.inputs[0].shape, ends, strict=False):
        if rows is not None and end > 0:
            yield _Read(op, int(rows), int(end) - 1, 0)


def _value(tensor: tf.Tensor) -> np.ndarray | None:
    found = static_value(tensor)
    if found is not None or _reads_input(tensor):
        return found
    with tf.device("CPU"), contextlib.suppress(tf.errors.OpError):
        return run_graph(captures_by_name(tensor.graph), [tensor])[0].numpy()
    return None


def _reads_input(tensor: tf.Tensor) -> bool:
    outside = captures_by_name(tensor.graph)
    reads = (op for op in operations_for([tensor]) if op.type == "Placeholder")
    return any(op.outputs[0].name not in outside for op in reads)


# Operations that pass on the values of their first input unchanged.
_SAME = ("Cast", "Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient")


def class_counts(call: Any, specs: Specs, example: Sequence[tf.Tensor]) -> dict[str, int]:
    """Return how many values integer conditions can have, by name, where an embedding shows it."""
    if not any(spec.dtype.is_integer for spec in specs.values()):
        return {}
    with tf.init_scope():
        graph = graph_of(call, specs_of(example)).graph
    names = {tensor.op: name for name, tensor in zip(specs, graph.inputs[1:], strict=False)}
    found: dict[str, int] = {}
    for op in operations_for(graph.outputs):
        known = op.outputs[0].shape[-1] if op.type == "OneHot" else entries(op)
        count = int(known or 0)
        place = 0 if op.type == "OneHot" else 1
        for source in _sources(op.inputs[place].op) if count else ():
            if source in names:
                found[names[source]] = min(found.get(names[source], count), count)
    return found


def _sources(op: tf.Operation) -> list[tf.Operation]:
    waiting, found = [op], []
    while waiting:
        op = waiting.pop()
        if op.type in _SAME:
            waiting.append(op.inputs[0].op)
        elif op.type == "SelectV2":
            waiting += [op.inputs[1].op, op.inputs[2].op]
        else:
            found.append(op)
    return found
