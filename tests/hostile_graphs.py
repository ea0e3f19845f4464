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
    return node


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


FILE = "disallowed operation: WriteFile."
NONE = "contains no model that `save` wrote"
# Edits of the graph, by what a line says that refuses each.
GRAPHS = {
    "nested": FILE,
    "reading": "disallowed operation: ReadFile.",
    "missing function": "calls a function that it does not hold",
    "argument": "calls a function that it does not hold: other.",
    "calling itself": "holds a function that calls itself",
    "one name": "holds two functions of one name",
    "operation's name": "with the name of an operation: MatMul.",
    "huge constant": "too large",
    "handle": "holds a constant of a disallowed type: resource.",
    "huge weight": "must have 6,597,069,766,704 bytes of weights, got",
    **dict.fromkeys(("weight of any shape", "gradient", "no gradient"), NONE),
    **dict.fromkeys(("nowhere", "circle", "other type"), NONE),
}
# Operations without inputs that are added.
ADDED = ("EagerPyFunc", "VarHandleOp", "HashTableV2", "StatefulPartitionedCall", "Evil")
GRAPHS |= {op: f"disallowed operation: {op}." for op in ADDED}


def change_graph(name, graph, end, place):
    """Edit a graph, of which `end` is the node that the function `call` returns."""
    functions = graph.library.function
    branching = next((node for node in graph.node if node.op.endswith("While")), None)
    weight = next((node for node in graph.node if node.name == "weight_0"), None)
    if name in ("huge constant", "handle"):
        constant = add_constant(graph.node, "evil", np.float32(1.0))
    match name:
        case "nested":  # in the body of a loop
            add_writing(functions[-1].node_def, place, ":output:0")
            functions[-1].control_ret["evil"] = "evil"
            functions[-1].signature.control_output.append("evil")
        case "reading":
            add_constant(graph.node, "evil/place", SECRET)
            graph.node.add(name="evil", op="ReadFile", input=["evil/place"])
            end.input.append("^evil")
        case "missing function":  # which may be in the process
            branching.attr["body"].func.name = "__inference_other_1"
        case "argument":
            branching.attr["body"].func.attr["given"].func.name = "other"
        case "calling itself":
            node = functions[0].node_def.add(name="evil", op="If")
            node.attr["then_branch"].func.name = functions[0].signature.name
        case "one name":  # of which a reader may scan one and run the other
            functions.add().CopyFrom(functions[0])
        case "operation's name":
            functions.add().signature.name = "MatMul"
        case "huge constant":  # of a few bytes that declare a terabyte
            constant.attr["value"].tensor.tensor_shape.dim.add(size=2**38)
        case "handle":  # of a resource of the process
            dtype = tf.resource.as_datatype_enum
            constant.attr["dtype"].type = constant.attr["value"].tensor.dtype = dtype
        case "huge weight":
            weight.attr["shape"].shape.dim[0].size = 2**38
        case "weight of any shape":
            weight.attr["shape"].shape.dim[0].size = -1
        case "gradient":  # which the process may have registered
            end.attr["_gradient_op_type"].s = b"MatMul"
        case "no gradient":
            end.attr["_gradient_op_type"].s = b"call"
        case "nowhere":
            end.input[0] = "nowhere"
        case "circle":
            end.input[0] = end.name
        case "other type":
            end.attr["T"].type = tf.string.as_datatype_enum
        case _:
            graph.node.add(name="evil", op=name)
            end.input.append("^evil")


# Edits of the weights.
WEIGHTS = {
    "weights' shape": "weight_0 must be float32 [2, 1, 6], got",
    "weights' type": "weight_0 must be float32 [2, 1, 6], got int32",
    **dict.fromkeys(("missing weight", "more weights"), "weights of the graph and no others"),
}


def change_weights(name, arrays):
    """Edit weights by name."""
    weight = arrays["weight_0"]
    match name:
        case "weights' shape":
            arrays["weight_0"] = weight.reshape(-1)
        case "weights' type":
            arrays["weight_0"] = weight.view(np.int32)
        case "missing weight":
            arrays["other"] = arrays.pop("weight_0")
        case _:
            arrays["other"] = np.zeros([1], np.float32)


def with_header(content, header=None, length=None):
    """The bytes of weights with another header, which declares its length."""
    (size,) = struct.unpack("<Q", content[:8])
    made = content[8 : 8 + size] if header is None else header
    declared = struct.pack("<Q", len(made) if length is None else length)
    return declared + made + content[8 + size :]


def header_of(**fields):
    fields = {"dtype": "F32", "shape": [2, 1, 6]} | fields
    return json.dumps({"weight_0": fields}).encode()


# What becomes of the bytes of a file, after which digests are made anew.
BYTES = {
    "header's length": lambda content: with_header(content, length=2**63 + 1),
    "header": lambda content: with_header(
        content, header_of(shape=[np.nan], data_offsets=[0, np.nan])
    ),
    "overlap": lambda content: with_header(content, header_of(data_offsets=[0, 48])),
    "no header": lambda content: with_header(content, b""),
}
# Edits of files after which they are not.
LINK = "must be a plain file, not a link."
FILES = {
    **dict.fromkeys(("cut graph.pb", "cut weights.safetensors"), "is damaged"),
    **dict.fromkeys(("linked graph.pb", "linked weights.safetensors"), LINK),
    "piped weights.safetensors": "must be a plain file.",
    "missing graph.pb": NONE,
}


def change_file(name, folder):
    kind, file = name.split()
    path = folder / "program" / file
    match kind:
        case "cut":
            path.write_bytes(path.read_bytes()[:-4])
        case "linked":
            path.rename(folder.parent / file)
            path.symlink_to(folder.parent / file)
        case "piped":  # which would block its reader
            path.unlink()
            os.mkfifo(path)
        case _:
            path.unlink()


PROGRAM = "its program is '{}'."
DESCRIBED = {
    "no digests": {"sha256": {}},
    "path": {"program": "../mine/program"},
    "absolute path": {"program": "/etc"},
    "weights": {"weights": [["trained", "a"]] * 10**6},
    "weights' names": {"weights": [["trained", 5]] * 2},
    "no functions": {"functions": {}},
    "functions": {"functions": [1]},
    "inputs": {"inputs": None},
    "distribution": {"distribution": []},
    "density": {"distribution": {"density": "x"}},
    "steps": {"step_rows": "x"},
    "order": {"order": 3},
    "kind": {"kind": []},
}
# What is described of the function `call`.
OF_CALL = {
    "unknown node": {"outputs": ["nowhere:0"]},
    "unknown output": {"outputs": ["weight_0:9"]},
    "numbers": {"outputs": [0]},
    "weight's index": {"weights": [10**6]},
    "negative index": {"weights": [-1]},
    "more fields": {"evil": 1},
}
# All edits, by what a line says that refuses each.
EDITS = {"writing": FILE, "telling": FILE, **GRAPHS, **WEIGHTS, **FILES}
EDITS |= dict.fromkeys((*BYTES, *DESCRIBED, *OF_CALL), NONE)
EDITS |= {name: PROGRAM.format(DESCRIBED[name]["program"]) for name in ("path", "absolute path")}
EDITS |= {"kind": "which is unknown"}


def edit(folder, place, name):
    """Apply an edit to a saved folder; `place` is the file that hostile ones would write."""
    if name in ("writing", "telling"):
        writing(folder, place, "call" if name == "writing" else "mode")
    elif name in GRAPHS:
        with graph_of(folder) as graph:
            change_graph(name, graph, end_of(folder, graph), place)
    elif name in WEIGHTS:
        with weights_of(folder) as arrays:
            change_weights(name, arrays)
    elif name in BYTES:
        path = folder / "program" / "weights.safetensors"
        path.write_bytes(BYTES[name](path.read_bytes()))
    elif name in FILES:
        change_file(name, folder)
    else:
        with description_of(folder) as found:
            called = found["functions"]["call"]
            found |= DESCRIBED.get(name, {})
            called |= OF_CALL.get(name, {})
    if name not in (*FILES, "no digests"):
        seal(folder)


def seal(folder):
    """Describe the files as they are now, as whoever wrote them would."""
    with description_of(folder) as found:
        for name in found["sha256"]:
            content = (folder / "program" / name).read_bytes()
            found["sha256"][name] = hashlib.sha256(content).hexdigest()
