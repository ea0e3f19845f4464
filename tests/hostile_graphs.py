"""A saved folder, edits by which it would do more than compute, and edits that damage it."""

import contextlib
import hashlib
import json
import os
import struct

import numpy as np
import safetensors.numpy
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import onepass
from onepass import likelihoods

SECRET = "/etc/hostname"


class Network(tf.Module):
    """A network with a loop, and with a function that has a gradient of its own."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.random.stateless_normal([2, 1, 6], [1, 2]))
        self.last = tf.Variable(tf.random.stateless_normal([6, 2], [3, 4]))

    def __call__(self, x):
        h = tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), self.kernel, 1, "VALID")
        rows = tf.transpose(h, [1, 0, 2])
        rows = tf.scan(lambda state, row: 0.5 * state + row, rows, tf.zeros_like(rows[0]))
        return tf.nn.silu(tf.transpose(rows, [1, 0, 2])) @ self.last


def model():
    return onepass.Autoregressive(Network(), likelihoods.Gaussian(levels=64))


@contextlib.contextmanager
def graph_of(folder):
    """The graph of a saved folder, written back at the end of the block."""
    path = folder / "program" / "graph.pb"
    graph = graph_pb2.GraphDef.FromString(path.read_bytes())
    yield graph
    path.write_bytes(graph.SerializeToString())


@contextlib.contextmanager
def description_of(folder):
    """The values of a saved folder's description, written back at the end of the block."""
    path = folder / "autoregressive.json"
    described = json.loads(path.read_text())
    yield described
    path.write_text(json.dumps(described))


@contextlib.contextmanager
def weights_of(folder):
    """The weights of a saved folder by name, written back at the end of the block."""
    path = folder / "program" / "weights.safetensors"
    arrays = safetensors.numpy.load(path.read_bytes())
    yield arrays
    path.write_bytes(safetensors.numpy.save(arrays))


def node_of(tensor):
    return tensor.partition(":")[0]


def end_of(folder, graph, name="call"):
    """The node that a function returns."""
    described = json.loads((folder / "autoregressive.json").read_text())
    output = described["functions"][name]["outputs"][0]
    return next(node for node in graph.node if node.name == node_of(output))


def add_constant(nodes, name, value):
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].type = tf.as_dtype(np.asarray(value).dtype).as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def add_writing(nodes, place, output=""):
    """Add an operation that writes a file; `output` is the output of a constant in a function."""
    add_constant(nodes, "evil/place", str(place))
    add_constant(nodes, "evil/words", "written")
    inputs = [f"evil/place{output}", f"evil/words{output}"]
    nodes.add(name="evil", op="WriteFile", input=inputs)


def writing(folder, place, function="call"):
    """A file is written before a function returns."""
    with graph_of(folder) as graph:
        add_writing(graph.node, place)
        end_of(folder, graph, function).input.append("^evil")


def telling(folder, place):
    """A file is written by the mode of the distribution alone."""
    writing(folder, place, "mode")


def nested(folder, place):
    """A file is written in the body of a loop."""
    with graph_of(folder) as graph:
        function = graph.library.function[-1]
        add_writing(function.node_def, place, ":output:0")
        function.control_ret["evil"] = "evil"
        function.signature.control_output.append("evil")


def reading(folder, place):
    """The network's outputs depend on a file."""
    with graph_of(folder) as graph:
        add_constant(graph.node, "evil/place", SECRET)
        graph.node.add(name="evil", op="ReadFile", input=["evil/place"])
        end_of(folder, graph).input.append("^evil")


def added(op):
    """An edit that adds an operation without inputs."""

    def edit(folder, place):
        with graph_of(folder) as graph:
            graph.node.add(name="evil", op=op)
            end_of(folder, graph).input.append("^evil")

    return edit


def branching(graph):
    return next(node for node in graph.node if node.op in ("While", "StatelessWhile"))


def missing_function(folder, place):
    """A loop names a function that is not in the graph but may be in the process."""
    with graph_of(folder) as graph:
        branching(graph).attr["body"].func.name = "__inference_other_1"


def missing_function_of_a_function(folder, place):
    """A loop in a function names a function that is not in the graph."""
    with graph_of(folder) as graph:
        branching(graph).attr["body"].func.attr["given"].func.name = "other"


def calling_itself(folder, place):
    """A function's loop has that function as its body."""
    with graph_of(folder) as graph:
        function = graph.library.function[0]
        node = function.node_def.add(name="evil", op="If")
        node.attr["then_branch"].func.name = function.signature.name


def of_one_name(folder, place):
    """Two functions have one name, of which a reader may scan one and run the other."""
    with graph_of(folder) as graph:
        graph.library.function.add().CopyFrom(graph.library.function[0])


def of_the_name_of_an_operation(folder, place):
    """A function has the name of an operation that is allowed."""
    with graph_of(folder) as graph:
        graph.library.function.add().signature.name = "MatMul"


def huge_constant(folder, place):
    """A few bytes declare a constant of a terabyte."""
    with graph_of(folder) as graph:
        add_constant(graph.node, "evil", np.float32(1.0))
        shape = graph.node[-1].attr["value"].tensor.tensor_shape
        shape.dim.add(size=2**38)


def handle(folder, place):
    """A constant is a handle of a resource of the process."""
    with graph_of(folder) as graph:
        add_constant(graph.node, "evil", np.float32(1.0))
        dtype = tf.resource.as_datatype_enum
        graph.node[-1].attr["dtype"].type = graph.node[-1].attr["value"].tensor.dtype = dtype


def huge_weight(folder, place):
    """A weight declares a terabyte."""
    with graph_of(folder) as graph:
        node = next(node for node in graph.node if node.name == "weight_0")
        node.attr["shape"].shape.dim[0].size = 2**38


def weight_of_any_shape(folder, place):
    """A weight declares no shape."""
    with graph_of(folder) as graph:
        node = next(node for node in graph.node if node.name == "weight_0")
        node.attr["shape"].shape.dim[0].size = -1


def gradient_of_the_process(folder, place):
    """An operation names a gradient that the process may have registered."""
    with graph_of(folder) as graph:
        end_of(folder, graph).attr["_gradient_op_type"].s = b"MatMul"


def gradient_that_is_none(folder, place):
    """An operation names as its gradient a function that is none."""
    with graph_of(folder) as graph:
        end_of(folder, graph).attr["_gradient_op_type"].s = b"call"


def edges_to_nowhere(folder, place):
    """An operation reads one that does not exist."""
    with graph_of(folder) as graph:
        end_of(folder, graph).input[0] = "nowhere"


def circle(folder, place):
    """Two operations read each other."""
    with graph_of(folder) as graph:
        end = end_of(folder, graph)
        end.input[0] = end.name


def other_type(folder, place):
    """An operation reads numbers of another type than it says."""
    with graph_of(folder) as graph:
        end_of(folder, graph).attr["T"].type = tf.string.as_datatype_enum


def cut_graph(folder, place):
    path = folder / "program" / "graph.pb"
    path.write_bytes(path.read_bytes()[:-7])


def weights_of_another_shape(folder, place):
    with weights_of(folder) as arrays:
        arrays["weight_0"] = arrays["weight_0"].reshape(-1)


def weights_of_another_type(folder, place):
    with weights_of(folder) as arrays:
        arrays["weight_0"] = arrays["weight_0"].view(np.int32)


def missing_weight(folder, place):
    with weights_of(folder) as arrays:
        arrays["other"] = arrays.pop("weight_0")


def more_weights(folder, place):
    with weights_of(folder) as arrays:
        arrays["other"] = np.zeros([1], np.float32)


def header(text, length=None):
    """An edit that replaces the header of the weights by a text, which declares its length."""

    def edit(folder, place):
        path = folder / "program" / "weights.safetensors"
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        made = content[8 : 8 + size] if text is None else text
        declared = struct.pack("<Q", len(made) if length is None else length)
        path.write_bytes(declared + made + content[8 + size :])

    return edit


def cut_weights(folder, place):
    path = folder / "program" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def linked(name):
    """An edit that replaces a file of the program by a link to another one."""

    def edit(folder, place):
        path = folder / "program" / name
        path.rename(folder.parent / name)
        path.symlink_to(folder.parent / name)

    return edit


def piped(folder, place):
    """The weights are a pipe, which would block whoever reads it."""
    path = folder / "program" / "weights.safetensors"
    path.unlink()
    os.mkfifo(path)


def missing(folder, place):
    (folder / "program" / "graph.pb").rename(folder / "program" / "graph.pbtxt")


def described(**values):
    """An edit of the description."""

    def edit(folder, place):
        with description_of(folder) as found:
            found |= values

    return edit


def function_described(**values):
    """An edit of what the description says of the function `call`."""

    def edit(folder, place):
        with description_of(folder) as found:
            found["functions"]["call"] |= values

    return edit


def edit(folder, place, name):
    """Apply an edit to a saved folder; `place` is the file that hostile ones would write."""
    EDITS[name][0](folder, place)
    if name not in UNSEALED:
        seal(folder)


def seal(folder):
    """Describe the files as they are now, as whoever wrote them would."""
    with description_of(folder) as found:
        for name in found["sha256"]:
            content = (folder / "program" / name).read_bytes()
            found["sha256"][name] = hashlib.sha256(content).hexdigest()


NONE = "contains no model that `save` wrote"
# After these, the digests are not made anew.
UNSEALED = (
    "cut graph",
    "cut weights",
    "no digests",
    "linked graph",
    "linked weights",
    "pipe",
    "missing",
)
# What a line says that refuses an edit.
EDITS = {
    "writing": (writing, "disallowed operation: WriteFile."),
    "telling": (telling, "disallowed operation: WriteFile."),
    "nested": (nested, "disallowed operation: WriteFile."),
    "reading": (reading, "disallowed operation: ReadFile."),
    "python": (added("EagerPyFunc"), "disallowed operation: EagerPyFunc."),
    "variable": (added("VarHandleOp"), "disallowed operation: VarHandleOp."),
    "table": (added("HashTableV2"), "disallowed operation: HashTableV2."),
    "call": (added("StatefulPartitionedCall"), "disallowed operation: StatefulPartitionedCall."),
    "unknown operation": (added("Evil"), "disallowed operation: Evil."),
    "missing function": (missing_function, "calls a function that it does not hold"),
    "argument": (missing_function_of_a_function, "calls a function that it does not hold: other."),
    "calling itself": (calling_itself, "holds a function that calls itself"),
    "one name": (of_one_name, "holds two functions of one name"),
    "operation's name": (of_the_name_of_an_operation, "with the name of an operation: MatMul."),
    "huge constant": (huge_constant, "too large"),
    "handle": (handle, "holds a constant of a disallowed type: resource."),
    "huge weight": (huge_weight, "must have 6,597,069,766,704 bytes of weights, got"),
    "weight of any shape": (weight_of_any_shape, NONE),
    "gradient": (gradient_of_the_process, NONE),
    "no gradient": (gradient_that_is_none, NONE),
    "nowhere": (edges_to_nowhere, NONE),
    "circle": (circle, NONE),
    "other type": (other_type, NONE),
    "cut graph": (cut_graph, "is damaged"),
    "weights' shape": (weights_of_another_shape, "weight_0 must be float32 [2, 1, 6], got"),
    "weights' type": (weights_of_another_type, "weight_0 must be float32 [2, 1, 6], got int32"),
    "missing weight": (missing_weight, "weights of the graph and no others"),
    "more weights": (more_weights, "weights of the graph and no others"),
    "header's length": (header(None, 2**63 + 1), NONE),
    "header": (
        header(b'{"weight_0": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, NaN]}}'),
        NONE,
    ),
    "overlap": (
        header(b'{"weight_0": {"dtype": "F32", "shape": [2, 1, 6], "data_offsets": [0, 48]}}'),
        NONE,
    ),
    "no header": (header(b""), NONE),
    "no digests": (described(sha256={}), NONE),
    "cut weights": (cut_weights, "is damaged"),
    "linked graph": (linked("graph.pb"), "must be a plain file, not a link."),
    "linked weights": (linked("weights.safetensors"), "must be a plain file, not a link."),
    "missing": (missing, NONE),
    "pipe": (piped, "must be a plain file."),
    "path": (described(program="../mine/program"), "its program is '../mine/program'."),
    "absolute path": (described(program="/etc"), "its program is '/etc'."),
    "weights": (described(weights=[["trained", "a"]] * 10**6), NONE),
    "weights' names": (described(weights=[["trained", 5]] * 2), NONE),
    "no functions": (described(functions={}), NONE),
    "functions": (described(functions=[1]), NONE),
    "unknown node": (function_described(outputs=["nowhere:0"]), NONE),
    "unknown output": (function_described(outputs=["weight_0:9"]), NONE),
    "numbers": (function_described(outputs=[0]), NONE),
    "weight's index": (function_described(weights=[10**6]), NONE),
    "negative index": (function_described(weights=[-1]), NONE),
    "more fields": (function_described(evil=1), NONE),
    "inputs": (described(inputs=None), NONE),
    "distribution": (described(distribution=[]), NONE),
    "density": (described(distribution={"density": "x"}), NONE),
    "steps": (described(step_rows="x"), NONE),
    "order": (described(order=3), NONE),
    "kind": (described(kind=[]), "which is unknown"),
}
