"""`export`: describe a PyTorch network as a `Graph`, without TensorFlow."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onepass.networks.from_torch.triton_order import import_triton

import_triton()
import torch  # noqa: E402

from onepass.foundation.errors import UserError  # noqa: E402
from onepass.networks.from_torch.graph import Graph, Input  # noqa: E402
from onepass.networks.from_torch.modules import (  # noqa: E402
    Arguments,
    Called,
    DataAsTensors,
    arguments_of,
    check_module,
    inference,
    unwrap_module,
)
from onepass.networks.from_torch.recurrent import as_operations  # noqa: E402
from onepass.networks.from_torch.tracing import Axes, graph_of  # noqa: E402

AUTO, DYNAMIC = torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC


def export(
    module: Any,
    *,
    inputs: Any = None,
    conditions: Any = None,
    output: Any = None,
    one_hot: bool = False,
) -> Graph:
    """Return a network as data; the arguments and errors are those of `from_torch`."""
    if isinstance(module, str | Path):
        module = _read(Path(module))
    if isinstance(module, torch.export.ExportedProgram):
        return _describe_program(module, sorted_names(module), output, one_hot)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            "`module` must be a torch.nn.Module, a torch.export.ExportedProgram or the path of a"
            f" .pt2 file, got {type(module).__name__}."
        )
    if inputs is None:
        raise ValueError("`inputs` must be an example of the elements, got None.")
    module = unwrap_module(module)
    check_module(module)
    arguments = arguments_of(module, inputs, conditions)
    called = Called(module, list(arguments.conditions), output)
    with inference(module), as_operations(module):
        _check_outputs(called, arguments)
        try:
            program = _trace_module(called, arguments)
        except Exception as error:  # the kind depends on what torch cannot trace
            raise UserError(f"`module` cannot be exported by torch: {_line(error)}.") from error
        channels = Axes(program).channels_that_vary()
        if channels:
            program = _trace_module(called, arguments, AUTO, channels)
        names = ["inputs", *called.names]
        return _describe_program(program, names, None, one_hot, called, arguments)


def sorted_names(program: torch.export.ExportedProgram) -> list[str]:
    """Return the names of a program's arguments, in order."""
    return [str(name) for name in program.graph_signature.user_inputs]


def _read(path: Path) -> torch.export.ExportedProgram:
    if not path.is_file():
        raise UserError(f"{path}: no such file.")
    try:
        with _quiet():
            return torch.export.load(path)
    except Exception as error:  # torch raises many kinds, depending on which byte is damaged
        raise UserError(f"{path} cannot be read as a .pt2 file: {_line(error)}.") from error


def _check_outputs(called: Called, arguments: Arguments) -> None:
    examples = arguments.tensors()
    try:
        first, second = called(*examples), called(*examples)
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("`output`"):
            raise
        shown = ", ".join(f"{x.dtype} {list(x.shape)}" for x in examples)
        raise ValueError(f"`module` cannot be called with `inputs` {shown}: {_line(error)}") from (
            error
        )
    if not torch.allclose(first, second, 1e-3, 1e-5, equal_nan=True):
        raise ValueError(
            "`module` must return the same outputs for the same inputs, but it draws random"
            " numbers or keeps something from call to call."
        )


def _trace_module(
    called: Called, arguments: Arguments, size: Any = AUTO, fixed: Sequence[int] = ()
) -> Any:
    """Return the module exported with sizes that vary, but for the elements' axes in `fixed`."""
    examples = arguments.tensors()
    sizes: list[dict[int, Any]] = [{axis: AUTO for axis in range(x.dim())} for x in examples]
    sizes[0] |= {0: size, 1: size} | dict.fromkeys(fixed, torch.export.Dim.STATIC)
    with _quiet(), DataAsTensors():
        return torch.export.export(
            called, tuple(examples), dynamic_shapes={"arguments": tuple(sizes)}
        )


def _describe_program(
    program: torch.export.ExportedProgram,
    names: list[str],
    output: Any,
    one_hot: bool,
    called: Called | None = None,
    arguments: Arguments | None = None,
) -> Graph:
    if _writes_in_place(program):
        with _quiet():
            program = program.run_decompositions({})  # as long as the export itself
    axes = Axes(program)
    fixed = axes.find_fixed_size()
    if fixed and called is not None and arguments is not None:
        raise UserError(
            f"`module` must take any {fixed}, but export has fixed it: {_reason(called, arguments)}"
        )
    if fixed:
        raise UserError(
            f"`module` must take any {fixed}; export it with dynamic_shapes, such as"
            " {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} of each input."
        )
    graph = graph_of(program, names, output, axes, one_hot)
    _check_lengths(graph.inputs[0])
    return graph


def _writes_in_place(program: torch.export.ExportedProgram) -> bool:
    graphs = [each.graph for each in program.graph_module.modules() if hasattr(each, "graph")]
    schemas = [getattr(node.target, "_schema", None) for graph in graphs for node in graph.nodes]
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _check_lengths(elements: Input) -> None:
    if elements.largest is not None and elements.largest < 4 * elements.smallest:
        raise UserError(
            "`module` must take any length, but export allows only"
            f" {elements.smallest} to {elements.largest} time steps; a Python loop over time steps"
            " has this effect."
        )


def _reason(called: Called, arguments: Arguments) -> str:
    """Return what torch says if the first two axes of the elements must be dynamic."""
    try:
        _trace_module(called, arguments, DYNAMIC)
    except Exception as error:
        lines = [line.strip(" -") for line in str(error).splitlines() if " - " in line]
        return (lines or [_line(error)])[0].split(". ")[0] + "."
    return "its graph does not depend on it."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about its own calls and about sizes of one."""
    log = logging.getLogger("torch._export.non_strict_utils")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return " ".join(text.split())[:300].rstrip(".")
