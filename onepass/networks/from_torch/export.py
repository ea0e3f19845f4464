"""`export`: describe a PyTorch network as a `Graph`, without TensorFlow."""

import contextlib
import dataclasses
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from onepass.foundation.rules import UserError
from onepass.networks.from_torch.graph import DTYPES, Graph, Input
from onepass.networks.from_torch.tracing import Axes, as_operations, graph_of
from onepass.networks.from_torch.triton_order import import_triton

FEW = 7  # time steps of an example that has only one
Wrappers = torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel


def unwrap_module(module: Any) -> torch.nn.Module:
    """Return the module in a `DataParallel`, or the one that `torch.compile` was given."""
    while isinstance(module, Wrappers) or "_orig_mod" in module._modules:
        module = module.module if isinstance(module, Wrappers) else module._orig_mod
    return module


def check_module(module: torch.nn.Module) -> None:
    """Raise ValueError if a module is TorchScript, or its weights cannot become variables."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            "`module` must be the module that was written in Python, got one of TorchScript, a"
            f" {type(module).__name__}."
        )
    for name, layer in module.named_modules():
        kind, where = type(layer).__name__, f"layer `{name}`" if name else "the module itself"
        if ".quantized" in type(layer).__module__ or "torchao" in type(layer).__module__:
            raise ValueError(f"`module` must not be quantised, but {where} is a quantised {kind}.")
        if isinstance(layer, torch.nn.RNNBase) and layer.proj_size:
            raise ValueError(
                f"`module` must have no projections, got proj_size={layer.proj_size} in {where}."
            )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_meta:
            raise ValueError(f"`module` must have its weights loaded, but `{name}` is on meta.")
        if tensor.device.type != "cpu":
            raise ValueError(
                f"`module` must be on the CPU, but `{name}` is on {tensor.device}; call"
                " module.cpu()."
            )
        if is_traceable_wrapper_subclass(tensor):
            raise ValueError(
                f"`module` must have plain tensors, but `{name}` is a {type(tensor).__name__}."
            )
        if tensor.is_quantized or (isinstance(tensor, torch.nn.Parameter) and "int" in dtype):
            raise ValueError(f"`module` must not be quantised, but `{name}` is {dtype}.")
        if dtype not in DTYPES:
            raise ValueError(
                f"`module` must have weights in float32, but `{name}` is {dtype}; call"
                " module.float()."
            )


@contextlib.contextmanager
def inference(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into eval mode inside the block, and say so if that changes its outputs."""
    training = [each for each in module.modules() if each.training]
    changed = [each for each in training if _differs_in_training(each)]
    if changed:
        warnings.warn(
            f"`module` is in training mode: its {len(changed)} layers of dropout or batch"
            " normalisation are converted as in eval mode.",
            stacklevel=4,
        )
    # By default, experts of transformers sort the tokens of all time steps.
    config: Any = getattr(module, "config", None)
    experts = getattr(config, "_experts_implementation", None)
    module.eval()
    try:
        if experts is not None:
            config._experts_implementation = "batched_mm"
        with torch.no_grad():
            yield
    finally:
        if experts is not None:
            config._experts_implementation = experts
        for each in training:
            each.training = True


def _differs_in_training(layer: torch.nn.Module) -> bool:
    if isinstance(layer, torch.nn.RNNBase):
        return layer.dropout > 0
    drops = "Dropout" in type(layer).__name__ and getattr(layer, "p", True)
    return bool(drops) or "BatchNorm" in type(layer).__name__


class DataAsTensors(TorchFunctionMode):
    """Lets `tensor.data` be the tensor itself, since export cannot trace `weight.data *= mask`."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__self__", None) is torch._C.TensorBase.__dict__["data"]:
            if function.__name__ == "__get__":
                return args[0]
            return None if args[1] is args[0] else args[0].copy_(args[1])
        return function(*args, **(kwargs or {}))


def example_of(given: Any, name: str) -> torch.Tensor:
    """Return an example [batch, ...] of an argument with at least two rows."""
    tensor = given if isinstance(given, torch.Tensor) else None
    if hasattr(given, "__array_interface__"):
        tensor = torch.from_numpy(given)
    if tensor is None or not tensor.dim() or not tensor.numel():
        what = type(given).__name__ if tensor is None else f"shape {list(tensor.shape)}"
        raise ValueError(f"`{name}` must be a tensor [batch, time, ...] of torch, got {what}.")
    tensor = tensor.detach()
    return tensor.repeat(2, *[1] * (tensor.dim() - 1)) if tensor.shape[0] == 1 else tensor


@dataclasses.dataclass
class Arguments:
    """Examples of a module's arguments: the elements, and the conditions by name."""

    elements: torch.Tensor
    conditions: dict[str, torch.Tensor]

    def tensors(self) -> list[torch.Tensor]:
        """Return the examples in order."""
        return [self.elements, *self.conditions.values()]


def arguments_of(module: torch.nn.Module, inputs: Any, conditions: Any) -> Arguments:
    """Return examples of a module's arguments."""
    names = [
        name
        for name, each in inspect.signature(module.forward).parameters.items()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if conditions is not None and not isinstance(conditions, Mapping):
        listed = conditions if isinstance(conditions, list | tuple) else [conditions]
        conditions = dict(zip(names[1:], listed, strict=False))
    for name in conditions or {}:
        if name not in names[1:]:
            raise ValueError(
                f"`conditions` must name arguments of `forward` after the first,"
                f" {', '.join(names[1:]) or 'of which there are none'}, got {name!r}."
            )
    examples = {name: example_of(each, name) for name, each in (conditions or {}).items()}
    elements = example_of(inputs, "inputs")
    one = elements.dim() == 2 and elements.shape[1] == 1
    return Arguments(elements.repeat(1, FEW) if one else elements, examples)


class Called(torch.nn.Module):
    """A module called with elements and conditions in order, and one of its outputs."""

    def __init__(self, module: torch.nn.Module, names: list[str], output: Any) -> None:
        super().__init__()
        self.module, self.names, self.output = module, names, output
        parameters = inspect.signature(module.forward).parameters.values()
        open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
        caches = hasattr(getattr(module, "config", None), "use_cache") and open_ended
        has_cache = caches or any(each.name == "use_cache" for each in parameters)
        self.options = {"use_cache": False} if has_cache else {}

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        """Return the output for the elements and the conditions."""
        named = dict(zip(self.names, arguments[1:], strict=True))
        return output_of(self.module(arguments[0], **named, **self.options), self.output)


def output_of(result: Any, output: Any) -> torch.Tensor:
    """Return the output of a module by name or index; None: the only tensor, or `logits`."""
    result = [result] if isinstance(result, torch.Tensor) else result
    named = dict(result) if isinstance(result, Mapping) else {}
    listed = list(result) if isinstance(result, list | tuple) else list(named.values())
    if isinstance(output, int) and -len(listed) <= output < len(listed):
        found = listed[output]
    else:
        tensors = [each for each in listed if isinstance(each, torch.Tensor)]
        only = tensors[0] if len(tensors) == 1 and output is None else None
        found = named.get("logits" if output is None else output, only)
    if not isinstance(found, torch.Tensor):
        choices = ", ".join(map(repr, named or range(len(listed)))) or "None"
        raise ValueError(f"`output` must be one of the outputs {choices}, got {output!r}.")
    return found


import_triton()


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
    try:
        _trace_module(called, arguments, DYNAMIC)
    except Exception as error:
        lines = [line.strip(" -") for line in str(error).splitlines() if " - " in line]
        return (lines or [_line(error)])[0].split(". ")[0] + "."
    return "its graph does not depend on it."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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
