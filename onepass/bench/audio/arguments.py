"""The options of `onepass bench audio`."""

import dataclasses

from onepass.bench.options import BenchOptions


@dataclasses.dataclass(frozen=True)
class BenchArguments(BenchOptions):
    """Teachers and students side by side, in one run.

    Samples a second of every sampler of a teacher: naive, XLA cached, Numba cached, C++ bound. Of
    every student: samples a second over the naive and the cached teacher (p) and over TensorFlow's
    own operations, GFLOP/s over the machine's matrix products, and seconds of computing for a
    second of sound (s/s), of the flows alone and from frames to sound; of a student in the
    residual's domain, of each part too.
    """

    networks: tuple[str, ...] = ("a", "b")
    """Which teachers, any of: a, b, p, v."""
    batches: tuple[int, ...] = (1, 4, 8, 16)
    """Batch sizes of the teachers."""
    students: tuple[str, ...] = ("paper", "residual-16k", "draft-16k")
    """Which students, any of: paper, residual-16k, draft-16k (flows that refine
    12 passes of Griffin and Lim's algorithm)."""
    seconds: tuple[float, ...] = (1.0, 5.0)
    """Lengths of the students' sounds."""
    student_batches: tuple[int, ...] = (1, 4)
    """Batch sizes of the students, and of the teacher that they are held against."""
