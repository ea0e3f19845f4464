"""Compare what a bundle's program draws with its model, before an export is called done."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.bundle import Program
from onepass.bundles.condition_inputs import COUNT, ELEMENTS
from onepass.bundles.sampling import only_output
from onepass.bundles.signature import LOG_PROB, PLAIN, Arrays, Signature
from onepass.foundation.errors import UserError
from onepass.samplers.passes import MOVED
from onepass.step import UnsupportedNetworkError
from onepass.storage.comparison import TOLERANCES, difference, has_halves

ROWS, LENGTH = 2, 8  # of the draw; arrays of one shape have it, and one row
COUNTS = (COUNT, "num_frames")

# Function of the inputs of `serving_default` and of the elements that the program draws for them.
# It returns what the model draws after those elements and, if the bundle has the signature
# `log_prob`, their log probabilities.
Live = Callable[[Arrays, np.ndarray], tuple[Any, Any]]


def check_draw(folder: Path, graph: Any, signatures: Mapping[str, Signature], live: Live) -> None:
    """Raise UserError unless a program, as it is read back, draws what its model draws."""
    program = Program(folder, graph)
    for scale in (1.0, 0.0):  # of conditions; what a network does not take makes no elements
        inputs = _inputs(signatures[PLAIN], scale)
        outputs = program(PLAIN, inputs)
        elements = only_output(outputs)
        if COUNT in outputs:
            elements = elements[:, : outputs[COUNT].max()]
        if LOG_PROB in signatures:
            elements = elements.astype(signatures[LOG_PROB].inputs[ELEMENTS].dtype)
        try:
            expected = live(inputs, elements)
        except UnsupportedNetworkError as error:
            raise UserError(f"The model cannot be exported: {error}") from error
        except ValueError as error:
            fault = str(error)
            continue
        tolerance = TOLERANCES[2 if has_halves(graph.graph_def) else 4]
        _compare(program, signatures, inputs, elements, expected, tolerance)
        return
    if not _has_conditions(signatures[PLAIN]):
        raise UserError(f"The model cannot be exported: read back, its draw is refused: {fault}")
    warnings.warn(
        f"The bundle's draw was not compared with the model's, which refuses conditions: {fault}",
        stacklevel=6,
    )


def _compare(
    program: Program,
    signatures: Mapping[str, Signature],
    inputs: Arrays,
    elements: np.ndarray,
    expected: tuple[Any, Any],
    tolerance: Any,
) -> None:
    found = {"draw": elements}
    if LOG_PROB in signatures:
        known, given = signatures[LOG_PROB].inputs, {**inputs, ELEMENTS: elements}
        try:
            made = program(LOG_PROB, {name: given[name] for name in known})
        except tf.errors.OpError as error:
            raise UserError(
                "The model cannot be exported: traced for any length, its log-probability fails:"
                f" {' '.join(str(error.message).split())[:200]}"
            ) from error
        found["log-probability"] = made[LOG_PROB]
    for (name, value), right in zip(found.items(), expected, strict=False):
        fault = difference(right, value, tolerance, MOVED if name == "draw" else 0.0)
        if fault:
            raise UserError(f"The model cannot be exported: read back, its {name} {fault}.")


def of_functions(functions: Mapping[str, Any]) -> Live:
    """Return the function that compares a program with the functions that it was written from."""

    def live(inputs: Arrays, elements: np.ndarray) -> tuple[Any, Any]:
        del elements
        outputs = functions[PLAIN](**{name: tf.constant(x) for name, x in inputs.items()})
        return only_output(outputs), None

    return live


def _has_conditions(signature: Signature) -> bool:
    return any(i.dtype.kind == "f" and i.default is None for i in signature.inputs.values())


def _inputs(signature: Signature, scale: float) -> Arrays:
    """Return inputs for a short draw: rows of one seed, random conditions of a given scale."""
    random, inputs = np.random.default_rng(0), {}
    lengths = [int(info.high or LENGTH) for n, info in signature.inputs.items() if n in COUNTS]
    rows, length = ROWS if lengths else 1, min([LENGTH, *lengths])
    for name, info in signature.inputs.items():
        shape = (rows, *(length if size is None else size for size in info.shape[1:]))
        if name == "row":
            value: Any = np.arange(rows)
        elif name in COUNTS:
            value = length
        elif info.default is not None:
            value = info.default
        elif info.dtype.kind == "f":
            low = -np.inf if info.low is None else info.low
            high = np.inf if info.high is None else info.high
            value = np.clip(scale * np.abs(random.normal(size=shape)), low, high)
        else:
            value = random.integers(int(info.low or 0), int(info.high or 0) + 1, shape)
        inputs[name] = np.broadcast_to(value, shape).astype(info.dtype)
    return inputs
