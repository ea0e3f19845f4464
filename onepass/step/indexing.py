"""Rules for gathers and scatters by indices, along axes other than time.

Indices of several axes are often joined from the numbers of the batch and time axes and from
computed ones. Such a join and the operation that reads it count as one: a step numbers its own
rows.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from onepass.step.replay import run_op, static_value
from onepass.step.rules import rule
from onepass.step.streams import Call, Kind, Node, Part, Stream, Table, moving_axes
from onepass.step.time_rules import align_streams, alignment, rowwise

UPDATES = tuple(f"TensorScatter{name}" for name in ("Update", "Add", "Sub", "Max", "Min"))
# The operations, each with the number of the input that holds the indices.
INDEXED = {"GatherNd": 1, "ScatterNd": 0} | dict.fromkeys(UPDATES, 1)


@dataclasses.dataclass(frozen=True)
class Indexed:
    """A gather or scatter whose indices `joined` (Pack or ConcatV2) joins along their last axis."""

    op: tf.Operation
    joined: tf.Operation

    @classmethod
    def ending_at(cls, op: tf.Operation) -> "Indexed | None":
        """Return the gather or scatter with its join; None if there is none to treat as one."""
        joined = op.inputs[INDEXED[op.type]].op
        if joined.type not in ("Pack", "ConcatV2") or len(joined.inputs) < 2:
            return None
        rank = joined.outputs[0].shape.rank
        is_pack = joined.type == "Pack"
        axis = joined.get_attr("axis") if is_pack else static_value(joined.inputs[-1])
        if axis is None or int(axis) % rank != rank - 1:
            return None
        if any(each.type not in INDEXED for each in joined.outputs[0].consumers()):
            return None
        whole = cls(op, joined)
        return whole if len(whole.computed_parts) < len(whole.parts) else None

    @property
    def parts(self) -> list[tf.Tensor]:
        """The tensors that are joined."""
        return list(self.joined.inputs if self.joined.type == "Pack" else self.joined.inputs[:-1])

    @property
    def computed_parts(self) -> list[tf.Tensor]:
        """Those of `parts` whose values are not known when the graph is traced."""
        return [each for each in self.parts if static_value(each) is None]

    @property
    def values(self) -> list[tf.Tensor]:
        """The tensor that is gathered from, or that is scattered to and the scattered rows."""
        place = INDEXED[self.op.type]
        others = [x for i, x in enumerate(self.op.inputs) if i != place]
        return others[:1] if self.op.type == "ScatterNd" else others  # without its shape

    @property
    def sources(self) -> list[tf.Tensor]:
        """All tensors that a step reads."""
        return [*self.values, *self.computed_parts]

    @property
    def inside(self) -> set[tf.Operation]:
        """The operations before the last one."""
        return {self.joined}


@dataclasses.dataclass(frozen=True)
class Lead:
    """The axis of a join along which its rows are time steps: `outer * rows * inner` entries."""

    axis: int
    outer: int
    inner: int
    rows: int

    def times(self, values: np.ndarray) -> np.ndarray:
        """Return an array with the lead axis split in three, time first."""
        before, after = values.shape[: self.axis], values.shape[self.axis + 1 :]
        split = values.reshape([*before, self.outer, self.rows, self.inner, *after])
        return np.moveaxis(split, len(before) + 1, 0)

    def of_rows(self, times: np.ndarray) -> np.ndarray:
        """Return the array of which `times` would give [rows, ...], for any number of rows."""
        moved = np.moveaxis(times, 0, self.axis + 1)
        before, after = moved.shape[: self.axis], moved.shape[self.axis + 3 :]
        return moved.reshape([*before, self.outer * len(times) * self.inner, *after])

    def number_rows(self, shape: tuple[int, ...], rows: int, is_merged: bool) -> np.ndarray:
        """Return row numbers as indices of an axis that has the same axes merged, or not."""
        if not is_merged:
            number = np.arange(rows).reshape([rows, *[1] * (len(shape) - 1)])
            return np.broadcast_to(number, [rows, *shape[1:]])
        flat = np.arange(self.outer * rows * self.inner)
        flat = flat.reshape([*[1] * self.axis, -1, *[1] * (len(shape) - 3 - self.axis)])
        each = dataclasses.replace(self, rows=rows).times(flat)
        return np.broadcast_to(each, [rows, *shape[1:]])


def index_part(node: Node, whole: Indexed) -> Part:
    """Return how a step runs a gather or scatter with its join; the node's inputs are `sources`."""
    node.refuse_kinds()
    if any(isinstance(kind, Table) for kind in node.kinds):
        raise node.unsupported_error("it indexes a table of positions")
    streams = node.streams()
    lead = _lead(node, whole)
    unmerged = [dataclasses.replace(stream, outer=1, inner=1) for stream in streams]
    offset, end, ahead = align_streams(node, unmerged)
    delays = alignment(node, offset)
    number = len(whole.values)
    columns = _Columns(node, whole, lead)
    moved = node.moving(0)
    is_merged = columns.is_merged if node.type == "ScatterNd" else node.type == "GatherNd"
    like = Stream(0, offset, end, ahead=ahead)
    if is_merged and moved:
        by = next((stream.merged_by for stream in streams if stream.merged_by), "")
        like = dataclasses.replace(like, outer=lead.outer, inner=lead.inner, merged_by=by)
    if node.type in UPDATES and isinstance(node.kinds[0], Stream):
        first = node.kinds[0]
        like = dataclasses.replace(like, outer=first.outer, inner=first.inner)
    kind = node.derive_kind(0, like)

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        given = [delays[0] for delays in inputs]
        values, index = given[:number], columns.join_columns(given[number:], call.rows)
        if node.type == "ScatterNd":
            shape = node.op.outputs[0].shape.as_list()
            shape[moved[0]] = call.rows * (lead.outer * lead.inner if columns.is_merged else 1)
            return [tf.scatter_nd(index, values[0], tf.constant(shape, index.dtype))]
        return run_op(node.op, [values[0], index, *values[1:]])

    return Part([kind], run, delays)


def _lead(node: Node, whole: Indexed) -> Lead:
    longer = node.longer.inputs[INDEXED[node.type]]
    axes = moving_axes(whole.joined.outputs[0], longer)
    found = [kind for kind in node.kinds[len(whole.values) :] if isinstance(kind, Stream)]
    if len(axes) != 1 or not found or len({(each.outer, each.inner) for each in found}) > 1:
        raise node.unsupported_error("its indices are not computed for each time step")
    outer, inner = found[0].outer, found[0].inner
    size = whole.joined.outputs[0].shape[axes[0]]
    return Lead(axes[0], outer, inner, size // (outer * inner))


class _Columns:
    """The parts of a join: computed ones, and known ones as functions of the number of rows."""

    def __init__(self, node: Node, whole: Indexed, lead: Lead) -> None:
        self._whole, self._lead, self.is_merged = whole, lead, False
        self._dtype, self._is_pack = whole.joined.outputs[0].dtype, whole.joined.type == "Pack"
        self._known: dict[int, list[np.ndarray | None]] = {}
        for number, tensor in enumerate(whole.parts):
            value = static_value(tensor)
            if value is not None:
                columns = [value] if self._is_pack else list(np.moveaxis(value, -1, 0))
                self._known[number] = [self._column(node, each) for each in columns]
        if not any(each is None for known in self._known.values() for each in known):
            raise node.unsupported_error("no index numbers its time steps")

    def _column(self, node: Node, value: np.ndarray) -> np.ndarray | None:
        """Return one row of a column that is equal at all times; None if it numbers them."""
        lead = self._lead
        times = lead.times(value)
        if np.array_equal(times, np.broadcast_to(times[:1], times.shape)):
            return times[:1]
        for is_merged in (False, True):
            if np.array_equal(times, lead.number_rows(times.shape, lead.rows, is_merged)):
                self.is_merged = is_merged
                return None
        raise node.unsupported_error(
            "its indices depend on the time in another way than by counting it"
        )

    def join_columns(self, computed: list[tf.Tensor], rows: int) -> tf.Tensor:
        parts, waiting = [], list(computed)
        for number, tensor in enumerate(self._whole.parts):
            if number not in self._known:
                parts.append(waiting.pop(0))
                continue
            lead_shape = tensor.shape.as_list()[: None if self._is_pack else -1]
            shape = (rows, *self._lead.times(np.empty(lead_shape, bool)).shape[1:])
            columns = [
                self._lead.of_rows(self._fill_column(each, shape, rows))
                for each in self._known[number]
            ]
            whole = columns[0] if self._is_pack else np.stack(columns, -1)
            parts.append(tf.constant(whole, self._dtype))
        return (tf.stack if self._is_pack else tf.concat)(parts, -1)

    def _fill_column(
        self, column: np.ndarray | None, shape: tuple[int, ...], rows: int
    ) -> np.ndarray:
        if column is None:
            return self._lead.number_rows(shape, rows, self.is_merged)
        return np.broadcast_to(column, shape)


@rule("GatherV2", "ResourceGather")
def _gather(node: Node) -> Part:
    table, indices = node.kinds[0], node.kinds[1]
    if isinstance(table, Stream):
        axis = int(node.static(2)) % node.op.inputs[0].shape.rank
        is_shared = table.axis < node.op.get_attr("batch_dims")  # every row has its own indices
        if axis == table.axis or (isinstance(indices, Stream) and not is_shared):
            raise node.refusal_error("reads time steps by index (GatherV2)")
    return rowwise(node)


@rule("GatherNd", *UPDATES)
def plain_indices(node: Node) -> Part:
    """Return how a step runs a gather or update whose indices concern axes before time alone."""
    first, indices = node.kinds[0], node.op.inputs[1]
    if isinstance(first, Stream) and (
        node.kinds[1] is not None or first.axis < int(indices.shape[-1])
    ):
        raise node.unsupported_error("it reads or writes time steps by index")
    return rowwise(node)


@rule("ScatterNd")
def scatter_part(node: Node) -> Part:
    """Return how a step runs a scatter whose indices concern axes before time alone."""
    node.refuse_kinds(but=[2])
    stream = node.kinds[1]
    if not isinstance(stream, Stream) or node.kinds[0] is not None or stream.is_merged:
        raise node.unsupported_error("it writes time steps by index")
    kind: Kind = node.derive_kind(0, stream)
    shape, axes = node.op.outputs[0].shape.as_list(), node.moving(0)

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = [call.rows if axis in axes else size for axis, size in enumerate(shape)]
        index = inputs[0][0]
        return [tf.scatter_nd(index, inputs[1][0], tf.constant(sizes, index.dtype))]

    return Part([kind], run)
