"""The TensorFlow operations that a program may use, which are checked before it runs.

Allowed operations compute only from their inputs and from variables: no files, no network, no
Python, no custom operations. Only the functions that the saver's own nodes reach may save and
restore variables.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onepass.foundation.errors import UserError
from onepass.foundation.plain_files import read_plain
from onepass.foundation.program_functions import Reach, calls_of, node_of, reach

PROGRAM = "saved_model.pb"
TAG = "serve"
MOST_PROGRAM_BYTES = 2**31 - 1  # protobuf's limit
LARGEST_CONSTANT_BYTES = 2**28  # checked because a few bytes can describe a constant of any size
SAVED_OBJECTS = (
    *("variable", "user_object", "function", "bare_concrete_function"),
    *("constant", "captured_tensor"),  # data: a node of the graph, a tensor of a function
)
CONSTANT = "tf.TrackableConstant"  # TensorFlow's own class of a constant that a function captures
SAVED_CLASSES = (
    "_generic_user_object",
    "signature_map",
    "trackable_dict_wrapper",
    "trackable_list_wrapper",
    "trackable_tuple_wrapper",
)
ARITHMETIC = """
    Abs AccumulateNV2 Add AddN AddV2 Angle Ceil ClipByValue Complex ComplexAbs Conj Cross Cumprod
    Cumsum CumulativeLogsumexp Div DivNoNan Exp Expm1 Floor FloorDiv FloorMod Imag Inv L2Loss Log
    Log1p Max Maximum Mean Min Minimum Mod Mul MulNoNan Neg Pow Prod Real RealDiv Reciprocal Rint
    Round Rsqrt Sign Sqrt Square SquaredDifference Sub Sum TruncateDiv TruncateMod Xdivy Xlogy
    Xlog1py
"""
FUNCTIONS = """
    Acos Acosh Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e Betainc Cos Cosh
    Digamma Elu Erf Erfc Erfinv Igamma Igammac LeakyRelu Lgamma LogSoftmax Ndtri Polygamma Relu
    Relu6 Selu Sigmoid Sin Sinh Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign
    SparseSoftmaxCrossEntropyWithLogits Tan Tanh Zeta
"""
# What the gradients of functions with a gradient of their own are made of.
GRADIENTS = """
    AvgPoolGrad BiasAddGrad BroadcastGradientArgs Conv2DBackpropFilter
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput EluGrad
    FusedBatchNormGradV3 IgammaGradA InvGrad LeakyReluGrad MaxPoolGrad MirrorPadGrad
    ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad
    SqrtGrad StridedSliceGrad TanhGrad
"""
# Random operations that depend only on seeds, which are inputs.
RANDOM = """
    StatelessMultinomial StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormalV2
    StatelessRandomUniformFullIntV2 StatelessRandomUniformV2
"""
LOGIC = """
    All Any ApproximateEqual ArgMax ArgMin BitwiseAnd BitwiseOr BitwiseXor Bucketize
    CheckNumerics CheckNumericsV2 DebugNumericSummaryV2 Equal Greater
    GreaterEqual Invert IsFinite IsInf IsNan LeftShift Less LessEqual LogicalAnd LogicalNot
    LogicalOr LowerBound NotEqual RightShift Select SelectV2 UpperBound Where
"""
SHAPES = """
    BatchToSpace BatchToSpaceND Bitcast BroadcastArgs BroadcastTo Cast Concat ConcatV2
    DepthToSpace Diag DiagPart EnsureShape ExpandDims Fill Gather GatherNd GatherV2
    InvertPermutation LinSpace MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 MirrorPad OneHot
    OnesLike Pack Pad PadV2 ParallelConcat Range Rank Reshape
    Reverse ReverseSequence ReverseV2 Roll ScatterNd Shape ShapeN Size Slice
    Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StridedSlice
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile
    TopKV2 Transpose Unpack UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum
    ZerosLike
"""
LINEAR = """
    AvgPool AvgPool3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd Cholesky Conv Conv2D
    Conv2DBackpropInput Conv3D DepthwiseConv2dNative Einsum FFT FFT2D FusedBatchNormV3 IFFT IFFT2D
    IRFFT IRFFT2D LogMatrixDeterminant MatMul MatrixBandPart MatrixDeterminant MatrixExponential
    MatrixInverse MatrixSolve MatrixTriangularSolve MaxPool MaxPool3D Qr RFFT RFFT2D
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
MODULE, ARTIFACT_VERSION = "XlaCallModule", 4  # the first whose module is a portable artifact
KINDS = (
    ARITHMETIC,
    FUNCTIONS,
    GRADIENTS,
    RANDOM,
    LOGIC,
    SHAPES,
    LINEAR,
    FLOW,
    LISTS,
    VARIABLES,
    MODULE,
)
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
    DisableCopyOnRead MergeV2Checkpoints SaveV2 ShardedFilename StaticRegexFullMatch StringJoin
"""
RESTORE = "RestoreV2"
RESTORING = f"AssignVariableOp {RESTORE}"


def scanned_program(folder: Path) -> bytes:
    """Return the bytes of FOLDER/saved_model.pb; raise UserError if it may do more than compute."""
    path = Path(folder) / PROGRAM
    content = _content(path)
    _scan_graph(path, content)
    return content


def scanned_graph(path: Path) -> Any:
    """Return a file's program, a MetaGraphDef; raise UserError if it may do more than compute."""
    return _scan_graph(path, _content(path))


def _scan_graph(path: Path, content: bytes) -> Any:
    graph = _graph(path, content)
    _check_objects(path, graph)
    _check_operations(path, graph)
    return graph


def _content(path: Path) -> bytes:
    try:
        return read_plain(path, MOST_PROGRAM_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not a bundle: it has no {PROGRAM}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def _graph(path: Path, content: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    stored = saved_model_pb2.SavedModel()
    try:
        stored.ParseFromString(content)
    except DecodeError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    graphs = stored.meta_graphs
    if len(graphs) != 1 or list(graphs[0].meta_info_def.tags) != [TAG]:
        raise UserError(f"{path} must hold one program, tagged `{TAG}`.")
    return graphs[0]


def _check_objects(path: Path, graph: Any) -> None:
    if not graph.object_graph_def.nodes:
        raise UserError(f"{path} must be a program of TensorFlow 2.")
    for saved in graph.object_graph_def.nodes:
        kind = saved.WhichOneof("kind")
        known = ("", CONSTANT) if kind == "constant" else ("",)
        if kind not in SAVED_OBJECTS or saved.registered_name not in known:
            raise UserError(f"{path} holds a disallowed object: {kind}.")
        if kind == "user_object" and saved.user_object.identifier not in SAVED_CLASSES:
            raise UserError(f"{path} holds a disallowed object: {saved.user_object.identifier}.")
        if saved.saveable_objects or saved.registered_saver:
            raise UserError(f"{path} holds a disallowed object: saveable.")
    if graph.asset_file_def:
        raise UserError(f"{path} holds a disallowed object: asset.")


def _check_operations(path: Path, graph: Any) -> None:
    """Raise UserError unless all operations are allowed, and every function can be called.

    Functions that save or restore variables must be reached only from the saver's two nodes. Saving
    is never run; restoring, which loading runs, reads only the program's own variables.
    """
    functions = _functions(path, graph)
    found = reach(graph, functions)
    for name, function in {**functions, "": graph.graph_def}.items():
        if name and name not in found.called | found.saving | found.restoring:
            raise UserError(f"{path} holds a function that nothing calls: {name[:80]}.")
        allowed = ALLOWED | _of_saver(found, name) | functions.keys()
        for node in function.node_def if name else function.node:
            if node.op not in allowed:
                raise UserError(f"{path} holds a disallowed operation: {node.op}.")
            if node.op == "Const":
                _check_constant(path, node.attr["value"].tensor)
            if node.op == MODULE:
                _check_module(path, node.attr)
    _check_restoring(path, graph, {name: functions[name] for name in found.restoring})


def _of_saver(found: Reach, name: str) -> frozenset[str]:
    if not name or name in found.called:
        return frozenset()
    return frozenset((RESTORING if name in found.restoring else SAVING).split())


def _check_restoring(path: Path, graph: Any, functions: Mapping[str, Any]) -> None:
    """Raise UserError unless variables are restored only from the file that the loader names.

    The file name must be the first argument of the function that reads, which only the saver calls.
    """
    saver = graph.saver_def
    nodes = {node.name: node for node in graph.graph_def.node}
    restore = nodes.get(node_of(saver.restore_op_name))
    named = nodes.get(node_of(saver.filename_tensor_name))
    inside = {name for names in calls_of(functions).values() for name in names}
    for name, function in functions.items():
        readers = [node for node in function.node_def if node.op == RESTORE]
        first = [argument.name for argument in function.signature.input_arg[:1]]
        if readers and not (
            restore is not None
            and restore.attr["f"].func.name == name
            and name not in inside
            and named is not None
            and named.op == "Placeholder"
            and list(restore.input[:1]) == [named.name]
            and all(list(node.input[:1]) == first for node in readers)
        ):
            raise UserError(f"{path} holds a disallowed operation: {RESTORE} of another file.")


def _functions(path: Path, graph: Any) -> dict[str, Any]:
    from tensorflow.python.framework import op_def_registry

    found: dict[str, Any] = {}
    for function in graph.graph_def.library.function:
        name = function.signature.name
        if name in found:
            raise UserError(f"{path} holds two functions of one name: {name[:80]}.")
        if op_def_registry.get(name) is not None:
            raise UserError(f"{path} holds a function with the name of an operation: {name[:80]}.")
        found[name] = function
    return found


def _check_module(path: Path, attributes: Any) -> None:
    from tensorflow.compiler.mlir.stablehlo import stablehlo
    from tensorflow.python import pywrap_mlir

    try:
        if attributes["version"].i < ARTIFACT_VERSION:
            raise ValueError(attributes["version"].i)
        module = stablehlo.deserialize_portable_artifact_str(attributes["module"].s)
        text = pywrap_mlir.ExperimentalRunPassPipeline(module, "", False)  # to text
    except Exception as error:  # the parser raises many types
        raise UserError(f"{path} holds a module that is not a portable artifact.") from error
    # Function names are ignored; a string that looks like an operation is refused too.
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
