"""Count what TensorFlow traces, what XLA compiles and which steps are lowered for the machine."""

import gc
from pathlib import Path
from typing import NamedTuple

from tensorflow.python.framework.func_graph import FuncGraph

from onepass.machine.machine import StepMachine


class Counts(NamedTuple):
    """Numbers since `Compilations` began.

    Attributes:
      traces: graphs of functions, loops and branches that TensorFlow has traced.
      programs: bytes of programs that XLA has compiled and that are still there.
      machines: steps that were lowered.
    """

    traces: int
    programs: int
    machines: int


class Compilations:
    """A counter, as a context manager; `counts` is up to date after it."""

    def __enter__(self):
        gc.collect()  # programs that go meanwhile would hide those that come
        self._programs, self._made, self._before = program_bytes(), {}, {}
        for kind, method in ((FuncGraph, "__init__"), (StepMachine, "_lower_step")):
            self._made[kind], self._before[kind] = 0, (method, getattr(kind, method))
            setattr(kind, method, self._counting(kind, getattr(kind, method)))
        return self

    def _counting(self, kind, function):
        def counting(*arguments, **options):
            self._made[kind] += 1
            return function(*arguments, **options)

        return counting

    def __exit__(self, *_):
        for kind, (method, function) in self._before.items():
            setattr(kind, method, function)
        made = program_bytes() - self._programs
        self.counts = Counts(self._made[FuncGraph], made, self._made[StepMachine])


def program_bytes():
    """Return the executable bytes in memory that are of no file: compiled programs."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, *rest = line.split()
        if "x" in rights and len(rest) == 3:
            first, end = (int(address, 16) for address in addresses.split("-"))
            total += end - first
    return total
