"""Tiny models of speech that nobody trained, as model folders and as bundles, made once."""

import functools
from pathlib import Path

import made_once
import networks
import students
import vocoders

import onepass
import serving
from distill import model as sounds
from distill.config import DistillConfig
from distill.training import KIND as STUDENT
from onepass.foundation.model_folders import save
from onepass.foundation.rules import to_json
from wavenet import model as teachers
from wavenet.config import DataConfig, TrainConfig, WaveNetConfig
from wavenet.training import KIND as TEACHER

BATCH = 3  # of every call: each piece of sound is compiled once
RATE_HZ = 4000
SPEAKERS = ("anna", "ben", "cleo")
MEL = DataConfig(RATE_HZ, ("mel",), mel_bands=7, mel_window_samples=64, level_db=-20.0)
SILENT = DataConfig(RATE_HZ)
STUDENTS = {
    "plain": students.KINDS["plain"],
    "plain, speakers": dict(filter_width=3, noise="normal", speakers=2, speaker_channels=3),
    "residual": students.KINDS["residual"],
}
# Pieces of so many frames are no multiple of the longest queue: the queues turn on the way. Of so
# few gates and so many channels XLA adds the products of one row in another order than of three.
FRAMED = dict(
    residual_channels=32, gate_channels=8, filter_width=3, likelihood="categorical", levels=256,
    feature_channels=7, condition_channels=4, upsample_factors=(4, 5),
)  # fmt: skip
TEACHERS = {
    "softmax, frames": FRAMED,
    "mixture, context, speakers": {**networks.KINDS["mixture, context"], "speakers": 3},
    "vocoder": dict(
        feature_channels=7, upsample_factors=(20,), filter_width=2, components=3, front_width=8,
        conditioner_units=9, bunch_samples=4, prediction_order=4, pitch_taps=3,
        compute_dtype="float64",
    ),
}  # fmt: skip


@functools.cache
def model_folder(kind: str) -> Path:
    """A model folder of a kind of STUDENTS or TEACHERS, weights far from where they start."""
    return made_once.copied_once(f"sound_{kind}", lambda path: _save(kind, path))


def _save(kind: str, path: Path) -> None:
    if kind in STUDENTS:
        students.KINDS[kind] = STUDENTS[kind]
        network = students.student_of(kind)
        stored = {"kind": STUDENT, **to_json(DistillConfig(student=network.config))}
        spec_of = sounds.spec_of
    else:
        network = teacher_of(kind)
        stored = {"kind": TEACHER, **to_json(TrainConfig(network.config))}
        spec_of = teachers._spec
    frames = network.config.feature_channels
    stored |= {
        "preset": "tiny",
        "data": to_json(MEL if frames else SILENT),
        "gain_db": 3.0,
        "speakers": list(SPEAKERS[: max(1, network.config.speakers)]),
        "teacher": "gone",
        "teacher_weights": "none",
    }
    save(network, {**spec_of(stored, path), "step": 3}, stored, path)


def teacher_of(kind: str):
    networks.KINDS[kind] = TEACHERS[kind]
    if "conditioner_units" not in TEACHERS[kind]:
        return networks.network_of(kind)
    config = WaveNetConfig(**networks.SMALL, **TEACHERS[kind])
    return vocoders.vocoder_with(config, MEL.mel(20))


@functools.cache
def model(kind: str):
    return sounds.load(model_folder(kind))


@functools.cache
def bundle_folder(kind: str, *options: str) -> Path:
    """The bundle NAME/1 of `model_folder(kind)`, exported by the command."""

    def make(path):
        words = ["export", model_folder(kind), "--out", path, "--batches", BATCH, *options]
        assert onepass.main([str(word) for word in words]) == 0

    name = "".join((kind, *options)).replace(", ", "_")
    return made_once.copied_once(f"models/{name}/1", make)


@functools.cache
def bundle(kind: str, backend: str = "tensorflow", *options: str):
    return serving.load(bundle_folder(kind, *options), backend)
