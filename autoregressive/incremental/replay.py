"""Run a traced graph's operations inside another graph, or eagerly."""

from collections.abc import Callable, Container, Mapping, Sequence

import tensorflow as tf

from autoregressive.incremental.at_once import executed, schedule

Execute = Callable[[tf.Operation, Sequence[tf.Tensor]], list[tf.Tensor]]
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def run_op(
    op: tf.Operation,
    inputs: Sequence[tf.Tensor],
    scope: str | None = None,
    execute: Execute = executed,
) -> list[tf.Tensor]:
    """Run an operation on other inputs, in the default graph or eagerly; return its outputs.

    Args:
      op: an operation of any graph.
      inputs: tensors that replace the operation's inputs, one for each.
      scope: prefix of the new operation's name; None: the name has no scopes, so that it differs
        from all nodes that TensorFlow creates when inlining a function.
      execute: function that executes an operation eagerly.
    """
    if scope is None and (groups := _groups(op, inputs)) > 1:
        # Without XLA, not every processor has a kernel for grouped convolutions.
        parts = zip(*(tf.split(each, groups, -1) for each in inputs), strict=True)
        return [tf.concat([run_op(op, part, None, execute)[0] for part in parts], -1)]
    if tf.executing_eagerly():
        return execute(op, inputs)
    graph = tf.compat.v1.get_default_graph()
    attrs = {key: value for key, value in op.node_def.attr.items() if key[0] != "_"}
    for value in attrs.values():
        if value.HasField("func"):
            graph._add_function_recursive(op.graph._get_function(value.func.name))
    dtypes = [output.dtype for output in op.outputs]
    name = op.name.split("/")[-1] if scope is None else scope + op.name
    return list(graph.create_op(op.type, list(inputs), dtypes, name=name, attrs=attrs).outputs)


def _groups(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> int:
    """Return the number of groups of a convolution, or 1."""
    if op.type != "Conv2D" or op.get_attr("data_format") != b"NHWC":
        return 1
    return inputs[0].shape[-1] // inputs[1].shape[2]


def called_graph(op: tf.Operation, attribute: str) -> tf.Graph:
    """Return the graph of a function that an operation calls, such as a loop's `body`."""
    return op.graph._get_function(op.get_attr(attribute).name).graph


def needed(
    fetches: Sequence[tf.Tensor], known: Container[str] = (), assigns: bool = False
) -> list[tf.Operation]:
    """Return the operations that compute `fetches`, in order.

    Args:
      fetches: tensors of one graph.
      known: names of tensors whose values are already known.
      assigns: whether to include assignments to variables that these operations wait for.
    """
    found, waiting = set(), [tensor.op for tensor in fetches if tensor.name not in known]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs if tensor.name not in known)
            before = op.control_inputs if assigns else ()
            waiting.extend(each for each in before if each.type.startswith("Assign"))
    graph = fetches[0].graph if fetches else None
    return [op for op in graph.get_operations() if op in found] if graph else []


def run_graph(
    values: Mapping[str, tf.Tensor],
    fetches: Sequence[tf.Tensor],
    scope: str | None = None,
    assigns: bool = False,
) -> list[tf.Tensor]:
    """Run a graph with function calls inlined, and return the fetched tensors.

    The operations are added to the default graph, or executed eagerly outside of any graph.

    Args:
      values: values of the graph's placeholders, by tensor name.
      fetches: tensors of one graph.
      scope: prefix of the names of all new operations; None: their names have no scopes.
      assigns: whether to run assignments to variables, too.
    """
    known = dict(values)
    if not fetches:
        return []
    at_once = tf.executing_eagerly()
    for op, names, outputs, last in schedule(fetches, known, needed, assigns):
        inputs = [known[name] for name in names]
        if op.type in CALLS:
            body = called_graph(op, "f")
            inner = dict(zip((tensor.name for tensor in body.inputs), inputs, strict=True))
            inside = None if scope is None else f"{scope}{op.name}/"
            made = run_graph(inner, body.outputs, inside, assigns)
            outputs = [tensor.name for tensor in op.outputs]
            made = made[: len(outputs)]  # a differentiated function has more outputs
        else:
            made = run_op(op, inputs, scope)
        known.update(zip(outputs, made, strict=True))
        if at_once:
            del inputs, made
            for name in last:  # frees memory: long sequences have large activations
                del known[name]
    return [known[tensor.name] for tensor in fetches]


def captured(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Return the outer tensors that a graph captures, by the names of their placeholders."""
    return {inner.name: outer for outer, inner in graph.captures}


def inlined(
    function: tf.types.experimental.ConcreteFunction, specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
    """Return the function as one graph with calls inlined and all shapes inferred from `specs`.

    Only its first output is kept.
    """
    graph = function.graph
    names = [tensor.name for tensor in graph.inputs[: len(specs)]]

    def run(*arguments: tf.Tensor) -> tf.Tensor:
        values = captured(graph) | dict(zip(names, arguments, strict=True))
        return run_graph(values, graph.outputs, scope="", assigns=True)[0]

    return tf.function(run, autograph=False).get_concrete_function(*specs)
