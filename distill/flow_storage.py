"""Stored students of any teacher, as programs that run without the code of their networks."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.networks.trainable import Listed
from onepass.storage.load import StoredCodec, listed_weights, read
from onepass.storage.program import add_codec, check_calls, function_of, variables_of
from onepass.storage.save import rate_of, write


class FlowProgram(tf.Module):
    """The networks and the codec of a student as a `tf.Module` to export."""

    def __init__(self, student: FlowStudent):
        super().__init__(name="flow_student")
        self.calls = [function_of(call, student.specs) for call in student.calls]
        self.weights = variables_of(call.get_concrete_function() for call in self.calls)
        add_codec(self, student.codec, 2)


def save(
    student: FlowStudent,
    folder: str | Path,
    *,
    sample_rate_hz: int | None = None,
    trust: bool = False,
) -> Path:
    """Write a student as programs that run without the code that defined its networks.

    Args:
      sample_rate_hz: sample rate of an audio student; None: the one it was loaded with, if any.
      trust: whether to write programs that do more than compute.

    Returns:
      The folder, which `load` reads. Its `program` is a SavedModel with the functions `calls`, one
        for each network, `encode`, `decode` and `scale`.
    """
    spec = {
        "kind": student.kind,
        "condition_channels": student.condition_channels,
        "noise": student.noise_kind,
        "levels": student.codec.levels,
        "log_unit": student.codec.log_unit,
        "sample_rate_hz": rate_of(student, sample_rate_hz),
    }

    def check(program: Any, spec: dict[str, Any]) -> None:
        check_calls(student.calls, list(program.calls), student.specs)

    return write(lambda: FlowProgram(student), student, spec, Path(folder), check, trust)


def load(folder: str | Path) -> FlowStudent:
    """Load a student that `save` wrote; it draws the same sequences."""
    program, spec = read(Path(folder))
    student = FlowStudent(
        [_Network(call, listed_weights(program, spec)) for call in program.calls],
        StoredCodec(program, spec["levels"], spec["log_unit"]),
        condition_channels=spec["condition_channels"],
        noise=spec["noise"],
    )
    student.sample_rate_hz = spec["sample_rate_hz"]
    return student


class _Network:
    """A stored function that takes the role of a network."""

    def __init__(self, call: Any, listed: Listed):
        self._call, self._listed = call, listed

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        return self._call(*arguments)
