"""The TensorFlow operations that a bundle may use; a SavedModel is a program, and is checked first.

Allowed operations compute from their inputs and from variables, and do nothing else: no file, no
network, no Python, no custom operation. Only the functions that the saver's own nodes reach may
save and restore variables; loading does not run them. TensorFlow finds functions by name in the
whole library, so each name in an object or a node counts as a call.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.manifest import read_plain
from serving.bundles.signature import PLAIN, Signature, TensorInfo

PROGRAM = "saved_model.pb"
LOWERED = "lowered.pb"  # without `serving_default`, with programs as StableHLO
TAG = "serve"
MOST_PROGRAM_BYTES = 2**31 - 1  # protobuf's limit
LARGEST_CONSTANT_BYTES = 2**28  # a few bytes can describe a constant of any size
SAVED_OBJECTS = ("variable", "user_object", "function", "bare_concrete_function", "constant")
SAVED_CLASSES = (
    "_generic_user_object",
    "signature_map",
    "trackable_dict_wrapper",
    "trackable_list_wrapper",
    "trackable_tuple_wrapper",
)
ARITHMETIC = """
    Abs AccumulateNV2 Add AddN AddV2 Angle Ceil ClipByValue Complex ComplexAbs Conj Cumprod
    Cumsum Div DivNoNan Exp Expm1 Floor FloorDiv FloorMod Imag Inv L2Loss Log Log1p Max Maximum
    Mean Min Minimum Mod Mul MulNoNan Neg Pow Prod Real RealDiv Reciprocal Rint Round Rsqrt Sign
    Sqrt Square SquaredDifference Sub Sum TruncateDiv TruncateMod Xdivy Xlogy Xlog1py
"""
FUNCTIONS = """
    Acos Acosh Asin Asinh Atan Atan2 Atanh BesselI0e Betainc Cos Cosh Digamma Elu Erf Erfc Erfinv
    Igamma Igammac LeakyRelu Lgamma LogSoftmax Ndtri Relu Relu6 Selu Sigmoid Sin Sinh Softmax
    Softplus Softsign SparseSoftmaxCrossEntropyWithLogits Tan Tanh
"""
# Of their seeds alone, which are inputs.
RANDOM = """
    StatelessMultinomial StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormalV2
    StatelessRandomUniformFullIntV2 StatelessRandomUniformV2
"""
LOGIC = """
    All Any ApproximateEqual ArgMax ArgMin BitwiseAnd BitwiseOr BitwiseXor Equal Greater
    GreaterEqual Invert IsFinite IsInf IsNan LeftShift Less LessEqual LogicalAnd LogicalNot
    LogicalOr LowerBound NotEqual RightShift Select SelectV2 UpperBound Where
"""
SHAPES = """
    BatchToSpace BatchToSpaceND Bitcast BroadcastArgs BroadcastTo Cast Concat ConcatV2
    DepthToSpace Diag DiagPart EnsureShape ExpandDims Fill Gather GatherNd GatherV2
    InvertPermutation MirrorPad OneHot OnesLike Pack Pad PadV2 ParallelConcat Range Rank Reshape
    Reverse ReverseSequence ReverseV2 Roll ScatterNd Shape ShapeN Size Slice
    Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StridedSlice
    TensorScatterAdd TensorScatterUpdate Tile TopKV2 Transpose Unpack UnsortedSegmentSum
    ZerosLike
"""
LINEAR = """
    AvgPool BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd Conv Conv2D
    Conv2DBackpropInput DepthwiseConv2dNative Einsum FFT FusedBatchNormV3 IFFT IRFFT MatMul
    MatrixBandPart MatrixTriangularSolve MaxPool RFFT
"""
FLOW = """
    Assert Case Const If Identity IdentityN NoOp PartitionedCall Placeholder
    PlaceholderWithDefault PreventGradient StatefulPartitionedCall StatelessCase StatelessIf
    StatelessWhile StopGradient While
"""
LISTS = """
    EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor
    TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
    TensorListReserve TensorListResize TensorListSetItem TensorListSplit TensorListStack
"""
VARIABLES = "ReadVariableOp ResourceGather VarHandleOp"
MODULE, ARTIFACT_VERSION = "XlaCallModule", 4  # the first with a portable artifact as its module
KINDS = (ARITHMETIC, FUNCTIONS, RANDOM, LOGIC, SHAPES, LINEAR, FLOW, LISTS, VARIABLES, MODULE)
ALLOWED = frozenset(" ".join(KINDS).split())
STABLEHLO = """
    abs add and atan2 bitcast_convert broadcast broadcast_in_dim case cbrt ceil clamp compare
    concatenate constant convert convolution cosine divide dot dot_general dynamic_slice
    dynamic_update_slice exponential exponential_minus_one floor gather get_tuple_element if iota
    is_finite log log_plus_one logistic maximum minimum multiply negate not or pad popcnt power
    reduce reduce_window remainder reshape return reverse round_nearest_afz round_nearest_even
    rsqrt scatter select set_dimension_size shift_left shift_right_arithmetic shift_right_logical
    sign sine slice sort sqrt subtract tan tanh transpose tuple while xor
"""
IN_MODULES = {"func.func", "func.call", "func.return"}.union(
    f"stablehlo.{name}" for name in STABLEHLO.split()
)
SAVING = """
    AssignVariableOp DisableCopyOnRead MergeV2Checkpoints RestoreV2 SaveV2 ShardedFilename
    StaticRegexFullMatch StringJoin
"""


def check_program(folder: Path, signatures: Mapping[str, Signature]) -> Any:
    """Return the bundle's program, a MetaGraphDef; raise UserError unless it may be loaded.

    It must consist of allowed operations, and have the signatures that model.json declares. A
    lowered program, which lacks `serving_default`, is preferred.
    """
    path = Path(folder) / LOWERED
    if path.exists():
        signatures = {name: s for name, s in signatures.items() if name != PLAIN}
    else:
        path = Path(folder) / PROGRAM
    graph = _graph(path)
    _check_objects(path, graph)
    _check_operations(path, graph)
    for name, signature in signatures.items():
        _check_signature(path, graph, name, signature)
    return graph


def without(graph: Any, signature: str) -> Any:
    """Return a checked MetaGraphDef without the parts that only this signature runs."""
    outputs = {
        name: {_node_of(info.name) for info in stored.outputs.values()}
        for name, stored in graph.signature_def.items()
    }
    read = {_node_of(source) for node in graph.graph_def.node for source in node.input}
    own = outputs.pop(signature) - read.union(*outputs.values())
    nodes = [node for node in graph.graph_def.node if node.name not in own]
    functions = graph.graph_def.library.function
    calls = _calls({function.signature.name: function.node_def for function in functions})
    reached = _reached(calls, [name for node in nodes for name in _called_by(node)])
    smaller = type(graph)(meta_info_def=graph.meta_info_def, saver_def=graph.saver_def)
    for name in outputs:
        smaller.signature_def[name].CopyFrom(graph.signature_def[name])
    smaller.graph_def.versions.CopyFrom(graph.graph_def.versions)
    smaller.graph_def.node.extend(nodes)
    smaller.graph_def.library.function.extend(f for f in functions if f.signature.name in reached)
    return smaller


def _graph(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    stored = saved_model_pb2.SavedModel()
    try:
        stored.ParseFromString(read_plain(path, MOST_PROGRAM_BYTES))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not a bundle: it has no {PROGRAM}.") from error
    except (OSError, DecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    graphs = stored.meta_graphs
    if len(graphs) != 1 or list(graphs[0].meta_info_def.tags) != [TAG]:
        raise UserError(f"{path} must hold one program, tagged `{TAG}`.")
    return graphs[0]


def _check_objects(path: Path, graph: Any) -> None:
    """Raise UserError for an object that does more, when loaded, than hold variables."""
    if not graph.object_graph_def.nodes:
        raise UserError(f"{path} must be a program of TensorFlow 2.")
    for saved in graph.object_graph_def.nodes:
        kind = saved.WhichOneof("kind")
        if kind not in SAVED_OBJECTS or saved.registered_name:
            raise UserError(f"{path} holds a disallowed object: {kind}.")
        if kind == "user_object" and saved.user_object.identifier not in SAVED_CLASSES:
            raise UserError(f"{path} holds a disallowed object: {saved.user_object.identifier}.")
        if saved.saveable_objects or saved.registered_saver:
            raise UserError(f"{path} holds a disallowed object: saveable.")
    if graph.asset_file_def:
        raise UserError(f"{path} holds a disallowed object: asset.")


def _check_operations(path: Path, graph: Any) -> None:
    """Raise UserError unless calls reach allowed operations alone, and every function is reached.

    Calls can reach the functions that an object, a signature or the graph names, since each of
    these can be called by its name. Functions that save and restore variables are reached from the
    saver's two nodes alone.
    """
    bodies = _functions(path, graph)
    saver = _saver_nodes(graph)
    calls = _calls(bodies)
    called = _reached(calls, [*_object_functions(graph), *_node_functions(graph, saver, False)])
    restoring = _reached(calls, _node_functions(graph, saver, True)) - called
    for name in bodies:
        if name not in called | restoring:
            raise UserError(f"{path} holds a function that nothing calls: {name[:80]}.")
    for name, nodes in {**bodies, "": graph.graph_def.node}.items():
        allowed = ALLOWED.union(SAVING.split()) if name in restoring else ALLOWED
        for node in nodes:
            if node.op not in allowed and node.op not in bodies:
                raise UserError(f"{path} holds a disallowed operation: {node.op}.")
            if node.op == "Const":
                _check_constant(path, node.attr["value"].tensor)
            if node.op == MODULE:
                _check_module(path, node.attr)


def _functions(path: Path, graph: Any) -> dict[str, Any]:
    """Return the nodes of each function of the library by its name, which must be unique."""
    from tensorflow.python.framework import op_def_registry

    bodies: dict[str, Any] = {}
    for function in graph.graph_def.library.function:
        name = function.signature.name
        if name in bodies:
            raise UserError(f"{path} holds two functions of one name: {name[:80]}.")
        if op_def_registry.get(name) is not None:
            raise UserError(f"{path} holds a function with the name of an operation: {name[:80]}.")
        bodies[name] = function.node_def
    return bodies


def _saver_nodes(graph: Any) -> set[str]:
    """Return the nodes that save and restore variables, unless a signature runs them as well."""
    saver = graph.saver_def
    named = {_node_of(saver.save_tensor_name), _node_of(saver.restore_op_name)}
    outputs = [
        info.name
        for signature in graph.signature_def.values()
        for info in signature.outputs.values()
    ]
    sources = {node.name: [_node_of(name) for name in node.input] for node in graph.graph_def.node}
    return named - _reached(sources, [_node_of(name) for name in outputs])


def _node_of(tensor: str) -> str:
    """Return the node of a tensor `name:0` or of a control input `^name`."""
    return tensor.removeprefix("^").partition(":")[0]


def _object_functions(graph: Any) -> list[str]:
    """Return all functions that an object names, listed as callable or not."""
    found = list(graph.object_graph_def.concrete_functions)
    for saved in graph.object_graph_def.nodes:
        found += saved.function.concrete_functions
        found.append(saved.bare_concrete_function.concrete_function_name)
    return found


def _node_functions(graph: Any, saver: set[str], of_saver: bool) -> list[str]:
    """Return all functions that the graph's own nodes call: the saver's, or all others."""
    return [
        name
        for node in graph.graph_def.node
        if (node.name in saver) == of_saver
        for name in _called_by(node)
    ]


def _called_by(node: Any) -> list[str]:
    """Return the functions that a node may call: its operation's name, and its attributes."""
    attributes = [f for value in node.attr.values() for f in (value.func, *value.list.func)]
    return [node.op, *(f.name for f in attributes if f.name)]


def _reached(leads: Mapping[str, Iterable[str]], roots: Iterable[str]) -> set[str]:
    """Return the keys that the roots lead to, themselves included."""
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in leads and name not in reached:
            reached.add(name)
            waiting += leads[name]
    return reached


def _calls(bodies: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the functions that the nodes of each function may call."""
    return {
        name: [called for node in nodes for called in _called_by(node)]
        for name, nodes in bodies.items()
    }


def _check_module(path: Path, attributes: Any) -> None:
    """Raise UserError unless a call's module is an artifact of allowed operations alone."""
    from tensorflow.compiler.mlir.stablehlo import stablehlo
    from tensorflow.python import pywrap_mlir

    try:
        if attributes["version"].i < ARTIFACT_VERSION:
            raise ValueError(attributes["version"].i)
        module = stablehlo.deserialize_portable_artifact_str(attributes["module"].s)
        text = pywrap_mlir.ExperimentalRunPassPipeline(module, "", False)  # as text
    except Exception as error:  # of any type, from the parser
        raise UserError(f"{path} holds a module that is not a portable artifact.") from error
    # Function names are skipped; a string that looks like an operation is refused as well.
    words = re.findall(r"\b[a-zA-Z_]\w*\.\w+", re.sub(r"@[\w.$-]+", "", text))
    for word in words:
        if word not in IN_MODULES:
            raise UserError(f"{path} holds a disallowed operation: {word[:80]}.")


def _check_constant(path: Path, tensor: Any) -> None:
    import tensorflow as tf

    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    bytes_ = math.prod(sizes) * tf.as_dtype(tensor.dtype).size
    if min(sizes, default=0) < 0 or bytes_ > LARGEST_CONSTANT_BYTES:
        raise UserError(f"{path} holds a constant of the shape {sizes}, too large for a bundle.")


def _check_signature(path: Path, graph: Any, name: str, signature: Signature) -> None:
    if name not in graph.signature_def:
        raise UserError(f"{path} has no signature `{name}`, which model.json declares.")
    stored = graph.signature_def[name]
    sides = ((signature.inputs, stored.inputs), (signature.outputs, stored.outputs))
    for declared, found in sides:
        if _described(declared) != {key: _of_proto(info) for key, info in found.items()}:
            raise UserError(f"{path} and model.json differ in the signature `{name}`.")


def _described(infos: Mapping[str, TensorInfo]) -> dict:
    return {name: (info.dtype, info.shape) for name, info in infos.items()}


def _of_proto(info: Any) -> tuple[np.dtype, tuple[int | None, ...]]:
    import tensorflow as tf

    sizes = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
    return np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype), sizes
