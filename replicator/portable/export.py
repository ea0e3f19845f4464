"""Training steps and samplers as StableHLO with a manifest, for machines without TensorFlow.

A folder holds `manifest.json`, a portable artifact and perhaps a weights file for every function,
and, where there is a training step, `run.py` (portable_run.py), which trains with JAX and numpy
alone and writes checkpoints that `adopt` brings back into a run directory, and `batches.py`, the
module that draws the batches: the same one that the trainer draws them with.
"""

import contextlib
import importlib.resources
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from replicator.portable.stablehlo import lower
from replicator.runs.atomic_files import Arrays, write_npz, write_text
from replicator.runs.checkpoints import Checkpoints
from replicator.runs.errors import UserError
from replicator.runs.model_folder import variable_names
from replicator.runs.run_directory import RunDirectory
from replicator.training.state import LossFn, TrainState

FORMAT = 1
MANIFEST = "manifest.json"
STEP = "step"
SLOT = "slot/"
PureFn = Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]]


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
    """Writes FOLDER/NAME.stablehlo, NAME.npz with the weights, and their entry in the manifest.

    Args:
      fn: from a dict of tensors to a dict of tensors; it reads variables and assigns none.
      inputs: the shape and dtype of each input, static, in call order.
      folder: made if missing; its manifest keeps what other functions it has.
      name: of the function.
      variables: what `fn` may read, under the names that the weights file gives them.
      state: what it may read too, but is not written: the caller's to keep and to give.
      tensor_float_32: let an accelerator multiply float32 in TensorFloat32; off asks for all 24
        bits.

    Raises ValueError if `fn` has 64-bit inputs or outputs, operations without a portable form, or
    reads a variable that was not given.
    """
    _check_specs(inputs)
    folder = _make_folder(folder)
    with _tensor_float_32(tensor_float_32):
        lowered = lower(fn, dict(inputs))
    captured = _named_captures(lowered.captures, {**variables, **state})
    written = {k: storable(v.numpy()) for k, v in captured.items() if k not in state}
    (folder / f"{name}.stablehlo").write_bytes(lowered.artifact)
    write_npz(folder / f"{name}.npz", written)
    entry = {
        "artifact": f"{name}.stablehlo",
        "weights": f"{name}.npz",
        "inputs": _described(inputs),
        "captured": _described(captured),
        "outputs": _described(lowered.outputs),
    }
    manifest = _manifest(folder)
    manifest["functions"][name] = entry
    _write_manifest(folder, manifest)


def export_training(
    folder: Path,
    state: TrainState,
    loss_fn: LossFn,
    batch_spec: Mapping[str, tf.TensorSpec],
    *,
    drawing: ModuleType,
    batches: dict[str, Any],
    config: dict[str, Any],
    changeable: Iterable[str] = (),
    frozen: Mapping[str, tf.Variable] = MappingProxyType({}),
    tensor_float_32: bool = True,
) -> Path:
    """The folder, with training step, run.py, batches.py and the present state as a checkpoint.

    Args:
      folder: new or empty of checkpoints.
      state: what the step moves on; its `num_steps` is how far run.py trains.
      loss_fn: of a batch.
      batch_spec: static shape and dtype of every entry of a batch.
      drawing: the module that becomes batches.py; it imports NumPy alone, and what its
        `open_batches(folder, settings)` gives is a function from a step to its batch.
      batches: those settings, as JSON-able values.
      config: of the run; `adopt` compares it with that of the run directory.
      changeable: top-level keys of `config` in which the two may differ.
      frozen: by name, the variables that the loss reads and training leaves alone.
      tensor_float_32: see `export_function`.

    Raises UserError if the folder holds checkpoints, ValueError as `export_function`.
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
    manifest = _manifest(folder) | {
        "config": config,
        "changeable": list(changeable),
        "training": {
            "step": STEP,
            "num_steps": state.num_steps,
            "slots": _described(slots),
            "batches": batches,
        },
    }
    _write_manifest(folder, manifest)
    # Read, not imported: JAX need not be here.
    source = importlib.resources.files("replicator.portable").joinpath("run.py")
    write_text(folder / "run.py", source.read_text(encoding="utf-8"))
    write_text(folder / "batches.py", inspect.getsource(drawing))
    Checkpoints(folder / "checkpoints").save(int(state.step.numpy()), state.arrays())
    return folder


def new_folder(folder: Path) -> Path:
    """The folder, made if missing; UserError if a run was exported to it before."""
    folder = _make_folder(folder)
    if Checkpoints(folder / "checkpoints").steps():
        raise UserError(
            f"{folder} already holds checkpoints of an exported run; bring them back "
            "or choose another folder."
        )
    return folder


def restore(
    state: TrainState, workdir: Path | None, config: dict[str, Any], changeable: Iterable[str]
) -> None:
    """Sets the state from the newest checkpoint of a run, if there is such a run and it has one.

    Raises UserError if it is a run of another configuration; arguments as for `export_training`.
    """
    if workdir is None or not (Path(workdir) / "config.json").exists():
        return
    run = RunDirectory.open(workdir)
    run.check(config, tuple(changeable))
    arrays, _ = run.checkpoints().newest()
    if arrays is not None:
        state.restore(arrays)


def next_command(folder: Path, state: TrainState) -> str:
    """What to do next with a folder that was exported, as a line."""
    return (
        f"{folder} is ready from step {int(state.step.numpy())}: carry it to a machine with JAX, "
        f"then `python {Path(folder).name}/run.py`."
    )


def named_weights(network: tf.Module) -> dict[str, tf.Variable]:
    """Every trainable variable under the name that checkpoints give it after `weights/`."""
    return dict(zip(variable_names(network), network.trainable_variables, strict=True))


def specs_of(batch: Arrays) -> dict[str, tf.TensorSpec]:
    """The shape and dtype of every array."""
    return {name: tf.TensorSpec(array.shape, array.dtype) for name, array in batch.items()}


def training_step(state: TrainState, loss_fn: LossFn) -> PureFn:
    """A pure function from a batch to the metrics and, as `slot/NAME`, the new value of each slot.

    All slots keep their values where the loss or the gradient is not finite.
    """

    def step(batch):
        values, metrics = state.update(loss_fn, batch)
        kept = state.skip_nonfinite(values, metrics)
        new_slots = {f"{SLOT}{name}": v for name, v in zip(state.slots(), kept, strict=True)}
        return {**metrics, **new_slots}

    return step


def read_manifest(folder: Path) -> dict[str, Any]:
    """What FOLDER/manifest.json holds, or a UserError that names it."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an exported folder: no {MANIFEST}.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path} is not of format {FORMAT}, which this version reads.")
    return manifest


def adopt(folder: Path, workdir: Path) -> int:
    """The step of the newest checkpoint of an exported run, now in the run directory too.

    The run directory is made, with the exported configuration, if it is missing. Lines of metrics
    beyond those it has come along.

    Args:
      folder: where run.py trained.
      workdir: the run directory.

    Raises UserError if the checkpoint is damaged or does not fit, if the run has another
    configuration or is as far already, or if it is in use.
    """
    manifest = read_manifest(folder)
    if "training" not in manifest:
        raise UserError(f"{folder} holds no training step.")
    checkpoints = Path(folder) / "checkpoints"
    arrays = Checkpoints(checkpoints).newest()[0] if checkpoints.is_dir() else None
    if arrays is None:
        raise UserError(f"There is no checkpoint in {checkpoints}.")
    _check_arrays(arrays, manifest["training"]["slots"])
    run = _run_for(manifest, workdir)
    try:
        return _copy_checkpoint(arrays, Path(folder), run)
    finally:
        run.unlock()


def _copy_checkpoint(arrays: Arrays, folder: Path, run: RunDirectory) -> int:
    step, checkpoints = int(arrays["step"]), run.checkpoints()
    newest = max(checkpoints.steps(), default=-1)
    if newest >= step:
        raise UserError(f"{run.path} is at step {newest} already; {folder} has step {step}.")
    checkpoints.save(step, arrays)
    newer = _metrics(folder / "metrics.jsonl", newest, step)
    text = _metrics(run.path / "metrics.jsonl", -1, newest) + newer
    write_text(run.path / "metrics.jsonl", text)
    return step


def _run_for(manifest: dict, workdir: Path) -> RunDirectory:
    """The run directory, locked."""
    if not (Path(workdir) / "config.json").exists():
        return RunDirectory.create(workdir, manifest["config"])
    run = RunDirectory.open(workdir)
    run.check(manifest["config"], manifest["changeable"])
    run.lock()
    return run


def _check_arrays(arrays: Arrays, slots: list[dict]) -> None:
    for slot in slots:
        array = arrays.get(slot["name"])
        if array is None or list(array.shape) != slot["shape"] or array.dtype != slot["dtype"]:
            raise UserError(
                f"The checkpoint does not fit its manifest: `{slot['name']}` must be "
                f"{slot['dtype']} {slot['shape']}."
            )


def _metrics(path: Path, after: int, until: int) -> str:
    """The lines of a metrics.jsonl with after < step <= until."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = ""
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):  # the half line of a killed process
            kept += f"{line}\n" if after < json.loads(line)["step"] <= until else ""
    return kept


def _named_captures(captures: list[tf.Tensor], variables: Mapping[str, tf.Variable]) -> dict:
    """The variable, or the constant, that each captured input is, by name, in order."""
    names = {id(variable.handle): name for name, variable in variables.items()}
    found: dict[str, Any] = {}
    for capture in captures:
        if capture.dtype == tf.resource:
            if id(capture) not in names:
                raise ValueError(
                    "`variables` must hold every variable that the function reads, "
                    f"{capture} is missing."
                )
            found[names[id(capture)]] = variables[names[id(capture)]]
        else:
            found[f"constant/{len(found)}"] = capture
    return found


def _described(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(t.shape), "dtype": tf.as_dtype(t.dtype).name}
        for name, t in tensors.items()
    ]


def _check_specs(inputs: Mapping[str, tf.TensorSpec]) -> None:
    for name, spec in inputs.items():
        if not spec.shape.is_fully_defined():
            raise ValueError(f"`{name}` must have a static shape, got {spec.shape}.")


def storable(array: np.ndarray) -> np.ndarray:
    """The array in a dtype that npz knows: bfloat16 as the uint16 of its bits."""
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array


def _manifest(folder: Path) -> dict[str, Any]:
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    return {
        "format": FORMAT,
        "functions": {},
        "versions": {"tensorflow": tf.__version__, "numpy": np.__version__},
    }


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _make_folder(folder: Path) -> Path:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}.") from error
    return Path(folder)


@contextlib.contextmanager
def _tensor_float_32(allowed: bool) -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
