"""Provenance of measurements and models: git revision and machine."""

import os
import platform
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def git_revision() -> str:
    """Return this checkout's git revision; `unknown` without one, even in another repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--show-toplevel", "HEAD"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    top, _, revision = done.stdout.strip().rpartition("\n")
    is_own = done.returncode == 0 and Path(top).resolve() == CHECKOUT
    return revision if is_own else "unknown"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine_name() -> str:
    """Return a description of this machine, such as `2 cores of AMD EPYC`."""
    return f"{os.cpu_count()} cores of {processor()}"
