"""Deliberate faults, and whether the quick tests notice them: `python -m tests.mutations`.

Words are names of faults; without any, all are tried. Each fault is put into a copy of the
checkout, in which the quick tests of the files that have to do with it are run. The exit status is
1 if more than one goes unnoticed.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 1  # that may go unnoticed
SECONDS = 1200.0  # for the tests of a fault


class Fault(NamedTuple):
    """A fault: in a file of the library, text and what replaces it, and the tests to run."""

    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]


FAULTS = {
    "rows of a seed share their noise": Fault(
        "onepass/likelihoods/noise.py",
        "key = fold_in(seed, tf.convert_to_tensor(rows))[:, tf.newaxis, :]",
        "key = fold_in(seed, tf.convert_to_tensor(rows) * 0)[:, tf.newaxis, :]",
        ("tests/onepass/likelihoods/test_noise.py",),
    ),
    "the highest level has the mass of its bin alone": Fault(
        "onepass/likelihoods/mixture.py",
        "tf.where(centre >= self._half_bins, above, inside)",
        "tf.where(centre > self._half_bins, above, inside)",
        ("tests/onepass/likelihoods/test_likelihoods.py",),
    ),
    "speculation keeps what follows a wrong guess": Fault(
        "onepass/samplers/speculative.py",
        "first = tf.reduce_min(tf.where(kept, size, index), 1)",
        "first = tf.reduce_max(tf.where(kept, size, index), 1)",
        ("tests/onepass/samplers/test_speculative.py",),
    ),
    "windows begin a row too low": Fault(
        "onepass/samplers/fixed_point.py",
        "top = tf.clip_by_value(before // width - above, 0, height - rows)",
        "top = tf.clip_by_value(before // width - above + 1, 0, height - rows)",
        ("tests/onepass/samplers/test_fixed_point.py",),
    ),
    "one pixel more than given is kept": Fault(
        "pixelcnn/density.py",
        "return tf.where(y * width + x < given.count, given.levels[:, y, x], sampled)",
        "return tf.where(y * width + x <= given.count, given.levels[:, y, x], sampled)",
        ("tests/pixelcnn/sampling/test_pixelcnn_sampler.py",),
    ),
    "a flow's scale has no lower bound": Fault(
        "distill/student.py",
        "return raw[..., 0], tf.maximum(raw[..., 1], self.config.min_log_scale)",
        "return raw[..., 0], raw[..., 1]",
        ("tests/distill/test_student.py",),
    ),
    "accumulated gradients are sums": Fault(
        "onepass/replicator/training/batches.py",
        "return tf.nest.map_structure(lambda value: value / num_microbatches, total)",
        "return total",
        ("tests/onepass/replicator/test_accumulation.py",),
    ),
    "the best checkpoint is deleted with the old ones": Fault(
        "onepass/foundation/run_directory.py",
        "protected = {*self.steps()[-self.keep :], self.best_step()}",
        "protected = {*self.steps()[-self.keep :]}",
        ("tests/onepass/foundation/test_checkpoints.py",),
    ),
    "odds near a border of their bin are coded": Fault(
        "onepass/compression/stream.py",
        "if _bin(t, step, shift / SHIFTS)[1] <= margin:",
        "if _bin(t, step, shift / SHIFTS)[1] <= 0.3 * margin:",
        (
            "tests/onepass/compression/test_margins.py",
            "tests/onepass/compression/test_coded_streams.py",
        ),
    ),
    "the beginning of a token lets a client in": Fault(
        "serving/engine/clients.py",
        "equal = [hmac.compare_digest(value.strip(), token) for token in self._tokens]",
        "equal = [token.startswith(value.strip()) for token in self._tokens]",
        ("tests/serving/test_http.py", "tests/serving/test_connections.py"),
    ),
}


def copy(folder: Path) -> None:
    """Copy the tracked files of the checkout, as they are now."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def passed(folder: Path, tests: tuple[str, ...]) -> bool:
    """Return whether the quick tests of these files pass in a copy.

    Raises:
      RuntimeError: they could not be run.
    """
    words = ["-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
    return done.returncode == 0


def is_noticed(fault: Fault, folder: Path) -> bool:
    """Return whether the tests of a fault fail in a copy that has it, which is then mended."""
    path = folder / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.text, fault.replacement), encoding="utf-8")
    try:
        return not passed(folder, fault.tests)
    finally:
        path.write_text(text, encoding="utf-8")


def main(names: list[str]) -> int:
    """Try the faults of these names, or all of them; return the exit status."""
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder))
        for name in names or FAULTS:
            begin = time.monotonic()
            noticed = is_noticed(FAULTS[name], Path(folder))
            seconds = time.monotonic() - begin
            verdict = "noticed" if noticed else "NOT NOTICED"
            print(f"{verdict}, {seconds:.0f} s: {name}", flush=True)
            unnoticed += [] if noticed else [name]
    return int(len(unnoticed) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
