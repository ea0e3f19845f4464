"""Find lookups in tables with a limited number of entries."""

import tensorflow as tf

from onepass.step.replay import captures_by_name, operations_for
from onepass.step.sizes import static_value


def entries(op: tf.Operation) -> int | None:
    """Return the number of entries of the table that a lookup reads; None if unknown or no lookup.

    The operation may be any of a graph, such as a read of a variable through its handle.
    """
    if op.type == "GatherV2":
        axis = static_value(op.inputs[2])
        return None if axis is None else op.inputs[0].shape[int(axis)]
    if op.type != "ResourceGather":
        return None
    outside = captures_by_name(op.graph).get(op.inputs[0].name)
    data = getattr(outside, "_handle_data", None)
    return data.shape_and_type[0].shape.dim[0].size if data else None


def fits(graph: tf.Graph) -> bool:
    """Return whether every lookup with constant indices in a graph stays within its table."""
    for op in operations_for(graph.outputs):
        size = entries(op)
        chosen = None if size is None else static_value(op.inputs[1])
        if size is not None and chosen is not None and chosen.size and chosen.max() >= size:
            return False
    return True
