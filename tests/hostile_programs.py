"""A program of a bundle that writes a file, and edits by which one would."""

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2


def hostile_program(folder, place):
    """The file of a SavedModel that writes a file when it is called."""

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, 1])])
        def call(self, x):
            with tf.control_dependencies([tf.io.write_file(str(place), "written")]):
                return tf.identity(x)

    tf.saved_model.save(Module(), str(folder))
    return folder / "saved_model.pb"


def program_of(path):
    stored = saved_model_pb2.SavedModel()
    stored.ParseFromString(path.read_bytes())
    return stored


def edited(path, edit):
    """Apply an edit of a MetaGraphDef to a file of a program."""
    stored = program_of(path)
    edit(stored.meta_graphs[0])
    path.write_bytes(stored.SerializeToString())


# Edits of a program: each has what is dangerous reached in another way.


def functions_of(graph, part):
    return [f for f in graph.graph_def.library.function if part in f.signature.name]


def constant(function, name, value):
    node = function.node_def.add(name=name, op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return f"{name}:output:0"


def restoring_that_writes(graph, place):
    """Variables are written to a file where they should be restored."""
    (function,) = functions_of(graph, "traced_restore")
    node = function.node_def.add(name="evil", op="SaveV2")
    for name, value in (("place", str(place)), ("names", ["a"]), ("slices", [""])):
        node.input.append(constant(function, f"evil/{name}", value))
    node.input.append("Identity:output:0")
    node.attr["dtypes"].list.type.append(tf.float32.as_datatype_enum)
    function.control_ret["evil"] = "evil"
    function.signature.control_output.append("evil")
    next(n for n in reversed(function.node_def) if n.op == "NoOp").input.append("^evil")


def restoring_from_another_file(graph, place):
    """Variables are read from a file of another's."""
    (function,) = functions_of(graph, "traced_restore")
    other = constant(function, "evil", str(place))
    for node in function.node_def:
        if node.op == "RestoreV2":
            node.input[0] = other


def restoring_from_a_name_of_its_own(graph, place):
    """The name that the loader gives goes elsewhere."""
    node = graph.graph_def.node.add(name="evil", op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(str(place)))
    restore = next(n for n in graph.graph_def.node if n.name == graph.saver_def.restore_op_name)
    restore.input[0] = "evil"


def restoring_that_runs_the_saver(graph, place):
    """The node that saves runs before the one that restores."""
    restore = next(n for n in graph.graph_def.node if n.name == graph.saver_def.restore_op_name)
    restore.input.append(f"^{graph.saver_def.save_tensor_name.partition(':')[0]}")


def gradient_that_saves(graph, place):
    """The function that saves is the gradient of an operation."""
    (function,) = functions_of(graph, "traced_save")
    graph.graph_def.library.registered_gradients.add(
        gradient_func=function.signature.name, registered_op_type="evil"
    )


def attribute_of_an_attribute(graph, place):
    """The function that saves is given to a function that calls what it is given."""
    (saving,) = functions_of(graph, "traced_save")
    inner = graph.graph_def.library.function.add()
    inner.signature.name = "inner"
    inner.node_def.add(name="call", op="PartitionedCall").attr["f"].placeholder = "given"
    known = graph.object_graph_def.concrete_functions
    library = graph.graph_def.library.function
    root = next(f for f in library if f.signature.name in known)
    call = root.node_def.add(name="evil", op="PartitionedCall").attr["f"].func
    call.name = "inner"
    call.attr["given"].func.name = saving.signature.name


def default_of_an_attribute(graph, place):
    """The function that saves is the default of what a function calls."""
    (saving,) = functions_of(graph, "traced_save")
    known = graph.object_graph_def.concrete_functions
    library = graph.graph_def.library.function
    root = next(f for f in library if f.signature.name in known)
    attribute = root.signature.attr.add(name="given", type="func")
    attribute.default_value.func.name = saving.signature.name


EDITS = {
    restoring_that_writes: "SaveV2",
    restoring_from_another_file: "RestoreV2 of another file",
    restoring_from_a_name_of_its_own: "RestoreV2 of another file",
    restoring_that_runs_the_saver: "",
    gradient_that_saves: "",
    attribute_of_an_attribute: "",
    default_of_an_attribute: "",
}
