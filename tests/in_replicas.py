"""The `check_*` functions of a file, called in a process that has four logical CPUs."""

import importlib
import os
import pickle
import sys
from pathlib import Path

from processes import run_together

LOGICAL_CPUS = 4


class Checks:
    def __init__(self, results):
        self._results = results

    def __call__(self, name):
        result = self._results[name]
        if isinstance(result, Exception):
            raise result
        return result


def run_checks(module, folder, timeout_seconds=200, engine="tensorflow"):
    """Returns the Checks of a module of this folder, from a process that had to end in time."""
    output = Path(folder) / f"{module}.pickle"
    script = Path(__file__).resolve()
    [(status, log)] = run_together(script, folder, [{}], timeout_seconds, [module, output, engine])
    assert status == 0, log[-3000:]
    return Checks(pickle.loads(output.read_bytes()))


def main(name, output, engine):
    if engine == "jax":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={LOGICAL_CPUS}"
        os.environ["JAX_PLATFORMS"] = "cpu"
    else:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
        )
    module = importlib.import_module(name)
    checks = {k: getattr(module, k) for k in dir(module) if k.startswith("check_")}
    results = {name.removeprefix("check_"): result(check) for name, check in checks.items()}
    Path(output).write_bytes(pickle.dumps(results))


def result(check):
    try:
        return check()
    except Exception as error:  # raised again in the test
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error


if __name__ == "__main__":
    main(*sys.argv[1:])
