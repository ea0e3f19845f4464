"""Copy a checkpoint from run.py to a run directory."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from onepass.foundation.atomic_files import Arrays, replacing, write_text
from onepass.foundation.checkpoints import Checkpoints
from onepass.foundation.errors import UserError
from onepass.foundation.metrics import read_metrics
from onepass.foundation.run_directory import RunDirectory
from onepass.replicator.portable.manifest import read_manifest


def adopt(folder: Path, workdir: Path, keeps: Iterable[str] = ()) -> int:
    """Copy the newest checkpoint that run.py wrote in `folder` to `workdir`, and return its step.

    A missing run directory is created with the exported configuration. Newer metrics are copied,
    too, as are the files in `keeps` that the run lacks.
    """
    manifest = read_manifest(folder)
    if "training" not in manifest:
        raise UserError(f"{folder} has no training step.")
    checkpoints = Path(folder) / "checkpoints"
    arrays = Checkpoints(checkpoints).newest()[0] if checkpoints.is_dir() else None
    if arrays is None:
        raise UserError(f"There is no checkpoint in {checkpoints}.")
    _check_arrays(arrays, manifest["training"]["slots"])
    run = _run_for(manifest, workdir)
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
    newer = _metrics(folder, newest, step)
    text = _metrics(run.path, -1, newest) + newer
    write_text(run.path / "metrics.jsonl", text)
    return step


def _run_for(manifest: dict, workdir: Path) -> RunDirectory:
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


def _metrics(folder: Path, after: int, until: int) -> str:
    records = [r for r in read_metrics(folder) if after < r["step"] <= until]
    return "".join(f"{json.dumps(record)}\n" for record in records)
