"""Export training steps and samplers as StableHLO with a manifest, and adopt what run.py trained.

An exported folder contains `manifest.json` and, for every function, a portable artifact and a file
of weights. With a training step it also contains:

    run.py        trains with only JAX and NumPy; `adopt` copies its checkpoints to a run directory
    onepass_run/  copies of the modules of this library that run.py imports
    batches.py    a copy of the module that samples the batches
"""

import dataclasses
import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.mlir.stablehlo import stablehlo
from tensorflow.compiler.tf2xla.python import xla

from onepass.foundation.files import Arrays, make_folder, replacing, write_npz, write_text
from onepass.foundation.metrics import read_metrics
from onepass.foundation.model_folders import variable_names
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import (
    NO_DEFAULTS,
    Checkpoints,
    Keys,
    RunDirectory,
    check_arrays,
)
from onepass.replicator.portable.manifest import (
    copy_runner,
    manifest_of,
    read_manifest,
    write_manifest,
)
from onepass.replicator.training.state import LossFn, TrainState
from onepass.replicator.training.training_run import Recipe, TrainingRun

# Matches nested parentheses to the depth of locations; strings may contain any parentheses.
_STRING = r'"(?:[^"\\]|\\.)*"'
_LOCATION = re.compile(
    r" ?\bloc\((?:[^()\"]|" + _STRING + r"|\((?:[^()\"]|" + _STRING + r"|\([^()]*\))*\))*\)"
)
_FRONTEND = re.compile(r"mhlo\.frontend_attributes = \{[^{}]*\}(?:, )?")
_MODULE = re.compile(r"^module @\S+ attributes \{[^{}]*\}", re.MULTILINE)
_MAIN = re.compile(r"func\.func (?:public )?@main\((.*?)\) -> (.*?) \{$", re.MULTILINE)
_TENSOR = re.compile(r"tensor<(?:\d+x)*([a-z]\w*)>")
_FOREIGN = re.compile(r"\b(?:mhlo|chlo|tf|xla)\.\w+|\bcustom_call @[\w.]+|\bcustom_call\b")
CALL_VERSION = 9  # version of XlaCallModule with a portable artifact
_RESHAPE = re.compile(r"(stablehlo\.reshape %\w+) : (tensor<[^>]*>)$", re.MULTILINE)
_DTYPES = ("f32", "f16", "bf16", "i1", "i32", "ui32", "i16", "ui16", "i8", "ui8")
STEP = "step"
SLOT = "slot/"
PureFn = Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A function lowered to StableHLO: a portable module of inputs, then captures, in order."""

    artifact: bytes
    captures: list[tf.Tensor]
    outputs: dict[str, tf.TensorSpec]


def lower(fn: PureFn, inputs: Mapping[str, tf.TensorSpec]) -> Lowered:
    """Lower a function to portable StableHLO, or raise ValueError; `inputs` are in call order."""
    names: list[str] = []

    @tf.function(jit_compile=True, autograph=False, input_signature=list(inputs.values()))
    def flat(*arguments: tf.Tensor) -> list[tf.Tensor]:
        outputs = fn(dict(zip(inputs, arguments, strict=True)))
        names[:] = outputs
        return list(outputs.values())

    concrete = flat.get_concrete_function()
    text = portable_text(flat.experimental_get_compiler_ir(*inputs.values())(stage="stablehlo"))
    outputs = specs_of(dict(zip(names, concrete.outputs, strict=True)))
    takes, gives = _count_tensors(text)
    captures = list(concrete.captured_inputs)
    count = len(inputs) + len(captures)
    if takes != count:  # XLA drops unused arguments, but callers pass them by position
        rule = f"must use all its {count} inputs and captures"
        raise ValueError(f"`fn` {rule}, got {takes} in its StableHLO.")
    if gives != len(outputs):
        raise ValueError(f"`fn` must compute {len(outputs)} outputs, got {gives} in its StableHLO.")
    return Lowered(serialize_text(text), captures, outputs)


def as_stablehlo(program: Callable, variables: Iterable[tf.Variable]) -> Callable:
    """Return a function that calls a compiled function's StableHLO, with bit-identical results.

    A process that loads it compiles it directly with XLA, which is faster than TensorFlow's
    compilation of the original. `program` takes nests of tensors with static shapes, some of which
    may be None, reads only the given `variables`, and assigns none.
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
    text = _MODULE.sub("module @exported", _LOCATION.sub("", text))
    text = _FRONTEND.sub("", text).replace(" {}", "")
    text = re.sub(r"\bmhlo\.copy\b", "stablehlo.reshape", text)
    text = _RESHAPE.sub(r"\1 : (\2) -> \2", text)
    foreign = sorted(set(_FOREIGN.findall(text)))
    if foreign:
        raise ValueError(f"`fn` must have portable operations only, got {', '.join(foreign)}.")
    return text


def _count_tensors(text: str) -> list[int]:
    """Return the numbers of inputs and of outputs of `main`."""
    main = _MAIN.search(text)
    ends = main.groups() if main else ("", "")
    for name in _TENSOR.findall("".join(ends)):
        if name not in _DTYPES:
            raise ValueError(f"`fn` must have inputs and outputs of {sorted(_DTYPES)}, got {name}.")
    return [len(_TENSOR.findall(end)) for end in ends]


def serialize_text(text: str) -> bytes:
    """Return the portable artifact of a StableHLO text, in the oldest supported version."""
    return stablehlo.serialize_portable_artifact_str(text, stablehlo.get_minimum_version())


def export_function(
    fn: PureFn,
    inputs: Mapping[str, tf.TensorSpec],
    folder: Path,
    name: str,
    *,
    variables: Mapping[str, tf.Variable],
    state: Mapping[str, tf.Variable] = MappingProxyType({}),
    tensor_float_32: bool = True,
) -> None:
    """Write FOLDER/NAME.stablehlo, NAME.npz with the weights, and their entry in the manifest.

    `state` are variables that `fn` may read and that are not stored; callers pass their values.
    Without `tensor_float_32`, an accelerator multiplies in full float32 precision.
    """
    for each, spec in inputs.items():
        if not spec.shape.is_fully_defined():
            raise ValueError(f"`{each}` must have a static shape, got {spec.shape}.")
    folder, experimental = make_folder(folder), tf.config.experimental
    before = experimental.tensor_float_32_execution_enabled()
    experimental.enable_tensor_float_32_execution(tensor_float_32)
    try:
        lowered = lower(fn, inputs)
    finally:
        experimental.enable_tensor_float_32_execution(before)
    captured = _named_captures(lowered.captures, {**variables, **state})
    written = {k: storable(v.numpy()) for k, v in captured.items() if k not in state}
    (folder / f"{name}.stablehlo").write_bytes(lowered.artifact)
    write_npz(folder / f"{name}.npz", written)
    entry = {
        "artifact": f"{name}.stablehlo",
        "weights": f"{name}.npz",
        "inputs": describe_tensors(inputs),
        "captured": describe_tensors(captured),
        "outputs": describe_tensors(lowered.outputs),
    }
    manifest = manifest_of(folder)
    manifest["functions"][name] = entry
    write_manifest(folder, manifest)


def export_training(
    folder: Path,
    state: TrainState,
    loss_fn: LossFn,
    batch_spec: Mapping[str, tf.TensorSpec],
    *,
    batch_module: ModuleType,
    batches: dict[str, Any],
    config: dict[str, Any],
    changeable: Iterable[str] = (),
    frozen: Mapping[str, tf.Variable] = MappingProxyType({}),
    tensor_float_32: bool = True,
) -> Path:
    """Write a training step, run.py, batches.py and a checkpoint to a folder, and return it.

    Args:
      batch_module: the module that is copied to batches.py. It imports only NumPy, and its
        `open_batches(folder, settings)` returns a function from a step to its batch; if that has
        arguments `shard_index` and `num_shards`, each of several processes draws only its rows.
      batches: the argument `settings` of `open_batches`, as JSON values.
      changeable: top-level keys of `config` that may differ from the run directory's.
    """
    folder = new_folder(folder)
    slots = state.slots()
    export_function(
        training_step(state, loss_fn),
        batch_spec,
        folder,
        STEP,
        variables=frozen,
        state=slots,
        tensor_float_32=tensor_float_32,
    )
    manifest = manifest_of(folder) | {
        "config": config,
        "changeable": list(changeable),
        "training": {
            "step": STEP,
            "num_steps": state.num_steps,
            "slots": describe_tensors(slots),
            "batches": batches,
        },
    }
    write_manifest(folder, manifest)
    copy_runner(folder)
    write_text(folder / "batches.py", inspect.getsource(batch_module))
    Checkpoints(folder / "checkpoints").save(int(state.step.numpy()), state.arrays())
    return folder


def new_folder(folder: Path) -> Path:
    """Return the folder, created if missing; raise UserError if it has an exported checkpoint."""
    folder = make_folder(folder)
    if Checkpoints(folder / "checkpoints").steps():
        raise UserError(
            f"{folder} already has checkpoints of an exported run; import them with --adopt "
            "or choose another folder."
        )
    return folder


def named_weights(network: tf.Module) -> dict[str, tf.Variable]:
    """Return the trainable variables by their names in checkpoints, but without `weights/`."""
    return dict(zip(variable_names(network), network.trainable_variables, strict=True))


def named_variables(network: tf.Module) -> dict[str, tf.Variable]:
    """Return all variables: those of `named_weights`, and others by their index."""
    named = named_weights(network)
    known = {variable.ref() for variable in named.values()}
    others = [variable for variable in network.variables if variable.ref() not in known]
    return named | {f"fixed/{n}": variable for n, variable in enumerate(others)}


def specs_of(batch: Mapping[str, Any]) -> dict[str, tf.TensorSpec]:
    """Return the shape and dtype of every array or tensor, by name."""
    return {name: tf.TensorSpec(array.shape, array.dtype) for name, array in batch.items()}


def training_step(state: TrainState, loss_fn: LossFn) -> PureFn:
    """Return a pure function from a batch to metrics and new values of all slots.

    New values are the outputs `slot/NAME`, the current ones if loss or gradient is not finite.
    """

    def step(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        values, metrics = state.update(loss_fn, batch)
        kept = state.skip_nonfinite(values, metrics)
        new_slots = {f"{SLOT}{name}": v for name, v in zip(state.slots(), kept, strict=True)}
        return {**metrics, **new_slots}

    return step


def _named_captures(captures: list[tf.Tensor], variables: Mapping[str, tf.Variable]) -> dict:
    by_handle = {id(variable.handle): name for name, variable in variables.items()}
    found: dict[str, Any] = {}
    for capture in captures:
        name = by_handle.get(id(capture))
        if name is not None:
            found[name] = variables[name]
        elif capture.dtype != tf.resource:
            found[f"constant/{len(found)}"] = capture
        else:
            rule = "must hold every variable that the function reads"
            raise ValueError(f"`variables` {rule}, {capture} is missing.")
    return found


def describe_tensors(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, shape and dtype of each tensor, for a manifest."""
    return [
        {"name": name, "shape": list(t.shape), "dtype": tf.as_dtype(t.dtype).name}
        for name, t in tensors.items()
    ]


def storable(array: np.ndarray) -> np.ndarray:
    """Return the array in a dtype that npz can store: bfloat16 as the uint16 of its bits."""
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array


class _ExportedRun(TrainingRun):
    """A run whose step is exported; its run directory, if any, is only read."""

    def __init__(self, folder: Path, workdir: Path | None, log: Callable[[str], None]) -> None:
        known = workdir is not None and (Path(workdir) / "config.json").exists()
        super().__init__(workdir if known else None, log=log)
        self.folder = new_folder(folder)
        self.config: dict = {}

    def check(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        if self._workdir is not None:
            RunDirectory(self._workdir).check(config, changeable, defaults)

    def claim(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        self.check(config, changeable, defaults)
        self.config = config

    def run_file(self, name: str) -> Path:
        path, known = self.folder / name, self._workdir and self._workdir / name
        if known and known.exists():
            shutil.copyfile(known, path)
        return path

    def restore(self, state: TrainState) -> bool:
        run = self._workdir and RunDirectory(self._workdir)
        arrays = run.checkpoints().newest()[0] if run else None
        if arrays is not None:
            state.restore(arrays)
        return arrays is not None


def export_portable(
    recipe: Recipe, folder: Path, workdir: Path | None = None, log: Callable[[str], None] = print
) -> Path:
    """Write a folder whose `python run.py` trains the model elsewhere, and return the folder.

    The weights are those of the newest checkpoint in `workdir`, or initial ones.
    """
    run = _ExportedRun(folder, workdir, log)
    setup = recipe.set_up(run, recipe.prepare(run))
    if not run.restore(setup.state) and setup.start is not None:
        setup.start()
    batches, settings, write = setup.portable
    write(run.folder / settings["file"])
    specs = specs_of(batches.open_batches(run.folder, settings)(0))
    export_training(
        run.folder,
        setup.state,
        setup.loss,
        specs,
        batch_module=batches,
        batches=settings,
        config=run.config,
        changeable=recipe.changeable,
        frozen=setup.frozen,
        tensor_float_32=setup.tensor_float_32,
    )
    stages = setup.stages(specs)
    if stages:
        write_manifest(run.folder, manifest_of(run.folder) | {"pipeline": stages})
    log(
        f"{run.folder} is ready from step {int(setup.state.step.numpy())}: copy it to a machine "
        f"with JAX, then run `python {run.folder.name}/run.py`."
    )
    return run.folder


def adopt(folder: Path, workdir: Path, keeps: Iterable[str] = ()) -> int:
    """Copy the newest checkpoint that run.py wrote in `folder` to `workdir`, and return its step.

    Newer metrics are copied, too, as are the files in `keeps` that the run lacks.
    """
    manifest = read_manifest(folder)
    if "training" not in manifest:
        raise UserError(f"{folder} has no training step.")
    checkpoints = Path(folder) / "checkpoints"
    arrays = Checkpoints(checkpoints).newest()[0] if checkpoints.is_dir() else None
    if arrays is None:
        raise UserError(f"There is no checkpoint in {checkpoints}.")
    slots = manifest["training"]["slots"]
    check_arrays(arrays, {slot["name"]: (slot["shape"], slot["dtype"]) for slot in slots})
    if (Path(workdir) / "config.json").exists():
        run = RunDirectory.open(workdir)
        run.check(manifest["config"], manifest["changeable"])
        run.lock()
    else:
        run = RunDirectory.create(workdir, manifest["config"])
    try:
        step = _copy_checkpoint(arrays, Path(folder), run)
        for name in keeps:
            source, copy = Path(folder) / name, run.path / name
            if source.exists() and not copy.exists():
                with replacing(copy) as temporary:
                    shutil.copyfile(source, temporary)
        return step
    finally:
        run.unlock()


def _copy_checkpoint(arrays: Arrays, folder: Path, run: RunDirectory) -> int:
    step, checkpoints = int(arrays["step"]), run.checkpoints()
    newest = max(checkpoints.steps(), default=-1)
    if newest >= step:
        raise UserError(f"{run.path} is already at step {newest}; {folder} has step {step}.")
    checkpoints.save(step, arrays)
    records = [record for record in read_metrics(run.path) if record["step"] <= newest]
    records += [record for record in read_metrics(folder) if newest < record["step"] <= step]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    write_text(run.path / "metrics.jsonl", lines)
    return step
