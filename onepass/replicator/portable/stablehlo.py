"""Convert TensorFlow functions to portable StableHLO artifacts."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.compiler.mlir.stablehlo import stablehlo
from tensorflow.compiler.tf2xla.python import xla

# Matches nested parentheses to the depth of locations; strings may contain any parentheses.
_STRING = r'"(?:[^"\\]|\\.)*"'
_LOCATION = re.compile(
    r" ?\bloc\((?:[^()\"]|" + _STRING + r"|\((?:[^()\"]|" + _STRING + r"|\([^()]*\))*\))*\)"
)
_FRONTEND = re.compile(r"mhlo\.frontend_attributes = \{[^{}]*\}(?:, )?")
_MODULE = re.compile(r"^module @\S+ attributes \{[^{}]*\}", re.MULTILINE)
_MAIN = re.compile(r"func\.func (?:public )?@main\((.*?)\) -> (.*?) \{$", re.MULTILINE)
_TENSOR = re.compile(r"tensor<(?:((?:\d+x)*)([a-z]\w*))>")
_FOREIGN = re.compile(r"\b(?:mhlo|chlo|tf|xla)\.\w+|\bcustom_call @[\w.]+|\bcustom_call\b")
CALL_VERSION = 9  # version of XlaCallModule with a portable artifact
_DTYPES = {
    "f32": tf.float32,
    "f16": tf.float16,
    "bf16": tf.bfloat16,
    "i32": tf.int32,
    "ui32": tf.uint32,
    "i16": tf.int16,
    "ui16": tf.uint16,
    "i8": tf.int8,
    "ui8": tf.uint8,
    "i1": tf.bool,
}


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A function lowered to StableHLO: a portable module of inputs, then captures, in order."""

    artifact: bytes
    captures: list[tf.Tensor]
    outputs: dict[str, tf.TensorSpec]


def lower(
    fn: Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]], inputs: dict[str, tf.TensorSpec]
) -> Lowered:
    """Lower a function to portable StableHLO, or raise ValueError; `inputs` are in call order."""
    names: list[str] = []

    @tf.function(jit_compile=True, autograph=False, input_signature=list(inputs.values()))
    def flat(*arguments: tf.Tensor) -> list[tf.Tensor]:
        outputs = fn(dict(zip(inputs, arguments, strict=True)))
        names[:] = outputs
        return list(outputs.values())

    concrete = flat.get_concrete_function()
    text = portable_text(flat.experimental_get_compiler_ir(*inputs.values())(stage="stablehlo"))
    outputs = {
        name: tf.TensorSpec(tensor.shape, tensor.dtype)
        for name, tensor in zip(names, concrete.outputs, strict=True)
    }
    takes, gives = signature(text)
    captures = list(concrete.captured_inputs)
    # XLA drops unused arguments, but callers pass them by position.
    if len(takes) != len(inputs) + len(captures):
        raise ValueError(
            f"`fn` must use all its {len(inputs) + len(captures)} inputs and "
            f"captures, got {len(takes)} in its StableHLO."
        )
    _check_same("input", inputs, takes[: len(inputs)])
    _check_same("output", outputs, gives)
    return Lowered(serialize_text(text), captures, outputs)


def as_stablehlo(program: Callable, variables: Iterable[tf.Variable]) -> Callable:
    """Return a function that calls a compiled function's StableHLO, with bit-identical results.

    A process that loads it compiles it directly with XLA, which is faster than TensorFlow's
    compilation of the original. `program` takes nests of tensors with static shapes, some of which
    may be None, reads only the given `variables`, and assigns none. When called, the function
    raises the errors of `lower`.
    """
    by_handle = {id(variable.handle): variable for variable in variables}
    calls: dict[Any, tuple[Callable, Any]] = {}

    def call_stablehlo(*arguments: Any) -> Any:
        flat = tf.nest.flatten(arguments)
        specs = tuple(None if t is None else tf.TensorSpec(t.shape, t.dtype) for t in flat)
        if specs not in calls:
            with tf.init_scope():
                given = tf.nest.pack_sequence_as(arguments, specs)
                calls[specs] = _module_call(program, given, by_handle)
        call, structure = calls[specs]
        return tf.nest.pack_sequence_as(structure, call(*(t for t in flat if t is not None)))

    return call_stablehlo


def _module_call(program: Callable, specs: Any, by_handle: Mapping[int, tf.Variable]) -> tuple:
    flat = tf.nest.flatten(specs)
    made: list[Any] = []
    inputs = {str(i): spec for i, spec in enumerate(flat) if spec is not None}

    def fn(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        each = [given.get(str(i)) for i in range(len(flat))]
        made[:] = [program(*tf.nest.pack_sequence_as(specs, each))]
        return {str(i): output for i, output in enumerate(tf.nest.flatten(made[0]))}

    lowered = lower(fn, inputs)
    outputs = list(lowered.outputs.values())

    @tf.function(jit_compile=True, autograph=False)
    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        captures = [by_handle[id(c)] if c.dtype == tf.resource else c for c in lowered.captures]
        return xla.call_module(
            [*tensors, *captures],
            version=CALL_VERSION,
            module=lowered.artifact,
            Tout=[spec.dtype for spec in outputs],
            Sout=[spec.shape for spec in outputs],
            platforms=["CPU"],
            disabled_checks=[xla.call_module_disable_check_platform()],
        )

    return call, made[0]


def portable_text(text: str) -> str:
    """Return StableHLO text without locations and hints; raise ValueError if it is not portable."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#loc"))
    text = _LOCATION.sub("", text)
    text = _MODULE.sub("module @exported", text)
    text = _FRONTEND.sub("", text).replace(" {}", "")
    text = re.sub(r"\bmhlo\.copy\b", "stablehlo.reshape", text)
    text = re.sub(
        r"(stablehlo\.reshape %\w+) : (tensor<[^>]*>)$",
        r"\1 : (\2) -> \2",
        text,
        flags=re.MULTILINE,
    )
    foreign = sorted(set(_FOREIGN.findall(text)))
    if foreign:
        raise ValueError(f"`fn` must have portable operations only, got {', '.join(foreign)}.")
    return text


def signature(text: str) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    """Return the shapes and dtypes of the inputs and of the outputs of `main`, in order."""
    main = _MAIN.search(text)
    if main is None:
        raise ValueError("`text` must hold a function @main.")
    return _specs(main.group(1)), _specs(main.group(2))


def serialize_text(text: str) -> bytes:
    """Return the portable artifact of a StableHLO text, in the oldest supported version."""
    return stablehlo.serialize_portable_artifact_str(text, stablehlo.get_minimum_version())


def _specs(text: str) -> list[tf.TensorSpec]:
    return [
        tf.TensorSpec([int(size) for size in sizes.split("x")[:-1]], _dtype(dtype))
        for sizes, dtype in _TENSOR.findall(text)
    ]


def _dtype(name: str) -> tf.DType:
    if name not in _DTYPES:
        raise ValueError(f"`fn` must have inputs and outputs of {sorted(_DTYPES)}, got {name}.")
    return _DTYPES[name]


def _check_same(
    what: str, named: Mapping[str, tf.TensorSpec], lowered: list[tf.TensorSpec]
) -> None:
    expected = [(tuple(spec.shape), spec.dtype) for spec in named.values()]
    found = [(tuple(spec.shape), spec.dtype) for spec in lowered]
    if expected != found:
        raise ValueError(f"`fn` must keep the order of its {what}s {expected}, got {found}.")
