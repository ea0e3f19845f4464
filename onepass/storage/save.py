"""`save`: write a model's program and its specification to a folder.

A SavedModel holds the gradients of a network's own functions, such as those of `recompute_grad`,
but not the gradients of these gradients. It keeps their names, though, and a process that knows a
function of that name takes it for the gradient: the model, loaded and trained there, cannot be
stored again, since such a function may be one that TensorFlow cannot trace.
"""

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from onepass.foundation.allowed_operations import PROGRAM, scanned_program
from onepass.foundation.arguments import whole_number
from onepass.foundation.atomic_files import write_errors, write_text
from onepass.foundation.errors import UserError
from onepass.foundation.folders import make_folder, sweep
from onepass.foundation.model_spec import PROGRAM_FOLDERS, SAVED_FILE, program_name
from onepass.foundation.tensorflow_state import named_for_tensorflow
from onepass.likelihoods.distribution import (
    Distribution,
    closed_form,
    cumulative_of,
    is_normal,
    pixel_channels,
    table_of,
    tempers,
    with_density,
)
from onepass.model import Autoregressive
from onepass.networks.conditions import ONLY, Frames, Memory, is_at_rate, only_rate
from onepass.networks.elements import filler
from onepass.networks.symbols import settings_of
from onepass.networks.trainable import frozen_among
from onepass.samplers.fixed_point import MOVED
from onepass.storage.load import network_of, program_in
from onepass.storage.program import STEP_ROWS, Program, check_calls, difference

NAME = "_gradient_op_type"  # attribute of an operation with a gradient of its own


def forget_gradients(path: Path) -> None:
    """Remove the names of gradients that a program does not hold."""
    stored = SavedModel.FromString(path.read_bytes())
    unknown = [node for graph in stored.meta_graphs for node in _unknown(graph.graph_def)]
    for node in unknown:
        del node.attr[NAME]
    if unknown:
        path.write_bytes(stored.SerializeToString(deterministic=True))


def _unknown(graph: Any) -> Iterator[Any]:
    library = graph.library
    known = {each.registered_op_type for each in library.registered_gradients}
    for nodes in (graph.node, *(function.node_def for function in library.function)):
        for node in nodes:
            if NAME in node.attr and node.attr[NAME].s.decode() not in known:
                yield node


# Operations that call Python functions of the process that created them.
PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


def save(
    model: Autoregressive,
    folder: str | Path,
    *,
    sample_rate_hz: int | None = None,
    trust: bool = False,
) -> Path:
    """Write a model as a program that runs without the code that defined it.

    Args:
      sample_rate_hz: sample rate in Hz of an audio model; None: the model's, if it has one.
      trust: whether to write a program that does more than compute, which is loaded only with
        `trust=True`, too.

    Returns:
      The folder. `load` reads it; its `program` is a SavedModel with the functions `call`,
      `log_prob`, `draw`, `noise`, `encode`, `decode` and `scale`, and others, such as `steps` and
      `mode`, if the model has them.
    """
    model.follow(by_trace=True)
    network = model.symbol_network
    # A step whose state depends on a length or on conditions is derived after loading instead.
    fixed = [each for each in model.conditions.values() if not is_at_rate(each)]
    with_step = network.has_step and not getattr(network, "has_horizon", False) and not fixed
    spec = _spec(model, with_step) | {"sample_rate_hz": rate_of(model, sample_rate_hz)}
    check = functools.partial(check_written, model)
    return write(lambda: Program(model, with_step), model, spec, Path(folder), check, trust)


def check_written(model: Autoregressive, program: Any, spec: dict[str, Any]) -> None:
    """Raise UserError unless a program gives the network's outputs, log-probabilities and draws."""
    network, own = network_of(program, spec), model.symbol_network
    specs = [own.inputs, *model.conditions.values()]
    check_calls([own.call], [network], specs, 1 if model.order == "time" else 2)
    if model.layout.rank != 2:
        return
    sizes = [2, 5]
    symbols = tf.zeros(sizes, tf.int32 if model.distribution.levels else tf.float32)
    dtype = program.log_prob.concrete_functions[0].inputs[0].dtype
    parameters = tf.cast(
        tf.random.stateless_normal([*sizes, model.distribution.num_parameters], [0, 1]), dtype
    )
    noise = model.distribution.noise(0, tf.range(sizes[0]), 0, sizes[1])
    pairs: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
        "log-probability": (model.distribution.log_prob, program.log_prob, (symbols,)),
        "draw": (model.distribution.sample, program.draw, (noise, tf.constant(1.0))),
    }
    for name, (live, stored, given) in pairs.items():
        moved = MOVED if name == "draw" else 0.0
        fault = difference(live(parameters, *given), stored(parameters, *given), moved=moved)
        if fault:
            raise UserError(f"The model cannot be stored: read back, its {name} {fault}.")


def rate_of(model: Any, sample_rate_hz: int | None) -> int | None:
    """Return the sample rate in Hz to store with a model; None if none is given or known."""
    rate_hz = model.sample_rate_hz if sample_rate_hz is None else sample_rate_hz
    if rate_hz is not None:
        rate_hz = whole_number(rate_hz, "sample_rate_hz")
    if rate_hz is not None and model.order != "time":
        raise ValueError(f"`sample_rate_hz` must be None for images, got {rate_hz}.")
    if sample_rate_hz is not None and filler(model.codec).dtype.kind in "iu":
        raise ValueError(
            f"`sample_rate_hz` must be None for a model of integers, got {sample_rate_hz}; an audio"
            " model has codec=onepass.likelihoods.Linear or MuLaw."
        )
    return rate_hz


def write(
    make: Callable[[], tf.Module],
    model: Any,
    spec: dict[str, Any],
    folder: Path,
    check: Callable[[Any, dict[str, Any]], None],
    trust: bool = False,
) -> Path:
    """Write a program and its specification to a folder, and return it.

    The program is written next to the one that the folder has, and read back. Last, one rename
    replaces the specification, which names the program. A process that ends before or after it
    leaves a whole model, and what is not named is removed by the next call.
    """
    made, before = not folder.exists(), program_name(folder)
    name = next(each for each in PROGRAM_FOLDERS if each != before)
    try:
        with write_errors(folder), _in_graphs():
            shutil.rmtree(make_folder(folder) / name, ignore_errors=True)
            sweep(folder)
            with named_reasons("stored"):
                program = make()
                _check_python(program)
                _write_program(program, make_folder(folder / name), folder)
            frozen = frozen_among(program.weights, model)  # as indices: variables have no such flag
            spec = spec | ({"frozen": frozen} if frozen else {}) | {"program": name}
            if lengths := getattr(program, "lengths", None):
                spec["lengths"] = lengths
            with named_reasons("stored"):
                if not trust:
                    _check_scan(folder / name)
                check(program_in(folder / name), json.loads(json.dumps(spec)))
            write_text(folder / SAVED_FILE, json.dumps(spec, indent=2) + "\n")
    except BaseException:
        shutil.rmtree(folder if made else folder / name, ignore_errors=True)
        raise
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _in_graphs() -> Iterator[None]:
    """Let functions run as graphs inside the block, also where they run eagerly to be debugged."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _write_program(program: tf.Module, place: Path, folder: Path) -> None:
    try:
        with named_for_tensorflow(place) as name:
            tf.saved_model.save(program, name)
    except tf.errors.OpError as error:
        line = " ".join(str(error.message).replace(str(place), str(folder)).split())
        raise OSError(line[:300]) from error
    forget_gradients(place / PROGRAM)


def _check_scan(place: Path) -> None:
    try:
        scanned_program(place)
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from error
        reason = str(error).removeprefix(f"{place / PROGRAM} ")
        raise UserError(
            f"The model cannot be stored: it {reason} With `trust=True` it is stored, and loaded"
            " only with `trust=True`."
        ) from error


@contextlib.contextmanager
def named_reasons(verb: str) -> Iterator[None]:
    """Convert an error raised inside the block to a UserError, "The model cannot be {verb}"."""
    try:
        yield
    except UserError:
        raise
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise UserError(f"The model cannot be {verb}: {line}") from error


def _spec(model: Autoregressive, with_step: bool) -> dict[str, Any]:
    network, distribution = model.symbol_network, model.distribution
    condition = only_rate(model.conditions) if model.order == "time" else None
    named = {} if condition is not None and ONLY in model.conditions else model.conditions
    described = {name: _describe_spec(each) for name, each in named.items()}
    return {
        "kind": model.kind,
        "order": model.order,
        "inputs": _describe_spec(network.inputs),
        "condition": None if condition is None else _describe_spec(condition),
        **({"conditions": described} if described else {}),
        **settings_of(network),
        "distribution": {
            "name": type(distribution).__name__,
            "levels": distribution.levels,
            "num_parameters": distribution.num_parameters,
            "noise_channels": distribution.noise_channels,
            "channels": pixel_channels(distribution),
            "density": _density(distribution) if model.layout.rank != 3 else "none",
            "tempers": tempers(distribution),
            "has_cumulative": cumulative_of(distribution) is not None,
            "has_table": table_of(distribution) is not None,
            **closed_form(distribution),
        },
        "log_unit": model.codec.log_unit,
        "step_rows": list(STEP_ROWS) if with_step else [],
    }


def _density(distribution: Distribution) -> str:
    if with_density(distribution) is None:
        return "none"
    return "normal" if is_normal(distribution) else "any"


def _describe_spec(spec: tf.TensorSpec) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": "memory"} if isinstance(spec, Memory) else {}
    if isinstance(spec, Frames):
        kind = {"kind": "frames", "hop": spec.hop, "extra": spec.extra}
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name, **kind}


def _check_python(program: tf.Module) -> None:
    parts = tf.nest.flatten(list(vars(program).values()))
    for function in (part for part in parts if hasattr(part, "get_concrete_function")):
        definition = function.get_concrete_function().graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        for node in nodes:
            if node.op in PYTHON:
                raise UserError(
                    f"The model cannot be stored: {node.name} runs Python code (`tf.py_function`)."
                )
