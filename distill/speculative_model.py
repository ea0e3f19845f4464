"""A teacher that speaks by its student's drafts, exactly as it would alone."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from distill.model import StudentModel, load_student
from distill.speculative_sampler import SpeculativeSampler
from distill.teacher import load_teacher
from replicator.runs.errors import UserError
from wavenet.model import SpeechModel
from wavenet.speech_model import PassCount, Request

SAME = ("sample_rate_hz", "hop_samples", "gain_db", "features", "speakers")  # of model.json


@dataclasses.dataclass(frozen=True)
class SpeculativeModel(SpeechModel):
    """A WaveNet whose samples its student drafts.

    student: reads what the WaveNet reads.
    """

    student: StudentModel = dataclasses.field(kw_only=True)

    backends: ClassVar = ("auto",)
    primable: ClassVar = False
    refinable: ClassVar = False

    def _drawn(self, request: Request, backend, chunk_samples: int) -> Iterator[np.ndarray]:
        if request.temperature != 1.0:
            raise UserError(f"The temperature must be 1 for drafts, got {request.temperature:g}.")
        self.passes.clear()
        return self._sampler.stream(request, self.passes)

    @functools.cached_property
    def _sampler(self) -> SpeculativeSampler:
        return SpeculativeSampler(self.student.network, self.network)


def speculative(teacher: SpeechModel, student: StudentModel) -> SpeculativeModel:
    """Return the teacher with the student's drafts; UserError for models of other sounds."""
    for name in SAME:
        theirs, ours = teacher.spec[name], student.spec[name]
        if theirs != ours:
            raise UserError(f"A draft needs the model's `{name}`, {theirs}; it has {ours}.")
    fields = {field.name: getattr(teacher, field.name) for field in dataclasses.fields(teacher)}
    return SpeculativeModel(**(fields | {"passes": PassCount()}), student=student)


def load_speculative(path: Path, draft: Path) -> SpeculativeModel:
    """Load the teacher of one run or model folder with the student of another."""
    return speculative(load_teacher(path), load_student(draft))
