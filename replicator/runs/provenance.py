"""Where figures and models come from: git revision and machine."""

import os
import platform
import subprocess
from pathlib import Path


def git_revision() -> str:
    """The git revision of this checkout; `unknown` outside one."""
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine_name() -> str:
    """A phrase such as `2 cores of AMD EPYC`."""
    return f"{os.cpu_count()} cores of {processor()}"
