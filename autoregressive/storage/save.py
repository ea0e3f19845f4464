"""`save`: a model's programs and what is known of them, in a folder."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from autoregressive.model import Autoregressive
from autoregressive.storage.program import STEP_ROWS, Program
from likelihoods.capabilities import pixel_channels
from replicator.runs.atomic_files import write_text
from replicator.runs.errors import UserError

SPEC_FILE, PROGRAM_FOLDER = "autoregressive.json", "program"
# Operations that call back into the Python process that made them.
PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


def save(model: Autoregressive, folder: str | Path) -> Path:
    """Write a model as programs that need none of the code that defined it.

    Args:
      model: with today's weights.
      folder: made if missing; a model that is there is replaced.
    Returns:
      The folder. `load` reads it; `program` in it is a SavedModel with the functions `call`,
      `steps` and `initial_states` (of 1 and of 8 rows), `log_prob`, `draw`, `mode`, `noise`,
      `encode`, `decode` and `scale`.
    Raises:
      UserError: a part of the model cannot be stored; the message says why.
    """
    folder = Path(folder)
    with_step = model.symbol_network.has_step
    try:
        program = Program(model, with_step)
        _check_python(program)
        tf.saved_model.save(program, str(folder / PROGRAM_FOLDER))
    except UserError:
        raise
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise UserError(f"The model cannot be stored: {_first_line(error)}") from error
    write_text(folder / SPEC_FILE, json.dumps(_spec(model, with_step), indent=2) + "\n")
    return folder


def _spec(model: Autoregressive, with_step: bool) -> dict[str, Any]:
    network, distribution = model.symbol_network, model.distribution
    condition = network.condition
    return {
        "kind": "autoregressive",
        "order": model.order,
        "inputs": _described(network.inputs),
        "condition": None if condition is None else _described(condition),
        "distribution": {
            "name": type(distribution).__name__,
            "levels": distribution.levels,
            "num_parameters": distribution.num_parameters,
            "noise_channels": distribution.noise_channels,
            "channels": pixel_channels(distribution),
        },
        "log_unit": model.codec.log_unit,
        "step_rows": list(STEP_ROWS) if with_step else [],
    }


def _described(spec: tf.TensorSpec) -> dict[str, Any]:
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _check_python(program: Program) -> None:
    graphs = [program.call.get_concrete_function().graph]
    graphs.append(program.log_prob.get_concrete_function().graph)
    graphs.append(program.draw.get_concrete_function().graph)
    for graph in graphs:
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        for node in nodes:
            if node.op in PYTHON:
                raise UserError(
                    f"The model cannot be stored: {node.name} runs Python code (`tf.py_function`)."
                )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
