"""Stored students of any teacher, as data that runs without the code of their networks."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.networks.trainable import Listed
from onepass.storage.freezing import Frozen
from onepass.storage.frozen import FrozenFunction, FrozenProgram
from onepass.storage.load import StoredCodec, listed_weights, read, readable
from onepass.storage.program import add_codec, check_calls
from onepass.storage.save import rate_of, write


def freeze(student: FlowStudent) -> tuple[Frozen, dict[str, Any]]:
    """Return the networks and the codec of a student, and the names of the networks."""
    frozen, names = Frozen(), []
    for index, call in enumerate(student.calls):
        names.append(f"call_{index}")
        frozen.add(names[-1], call, student.specs)
    add_codec(frozen, student.codec, 2)
    return frozen, {"networks": names}


def save(
    student: FlowStudent,
    folder: str | Path,
    *,
    sample_rate_hz: int | None = None,
) -> Path:
    """Write a student as data that runs without the code that defined its networks.

    Args:
      sample_rate_hz: sample rate of an audio student; None: the one it was loaded with, if any.

    Returns:
      The folder, which `load` reads. Its `program` has a graph of the functions `call_0` and so on,
        one for each network, `encode`, `decode` and `scale`; and the weights.
    """
    spec = {
        "kind": student.kind,
        "condition_channels": student.condition_channels,
        "noise": student.noise_kind,
        "levels": student.codec.levels,
        "log_unit": student.codec.log_unit,
        "sample_rate_hz": rate_of(student, sample_rate_hz),
    }

    def check(program: FrozenProgram, spec: dict[str, Any]) -> None:
        check_calls(student.calls, [program[name] for name in spec["networks"]], student.specs)

    return write(lambda: freeze(student), student, spec, Path(folder), check)


def load(folder: str | Path) -> FlowStudent:
    """Load a student that `save` wrote; it draws the same sequences."""
    with readable(Path(folder)):
        program, spec = read(Path(folder))
        student = FlowStudent(
            [_Network(program[name], listed_weights(program)) for name in spec["networks"]],
            StoredCodec(program, spec["levels"], spec["log_unit"]),
            condition_channels=spec["condition_channels"],
            noise=spec["noise"],
        )
        student.sample_rate_hz = spec["sample_rate_hz"]
        return student


class _Network:
    """A stored function that takes the role of a network."""

    def __init__(self, call: FrozenFunction, listed: Listed):
        self._call, self._listed = call, listed

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        return self._call(*arguments)
