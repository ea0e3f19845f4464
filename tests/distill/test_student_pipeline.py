"""A student's flows as stages: their gradients are those of the student as a whole."""

import json
import math
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import students
import tensorflow as tf

from distill.losses.divergence import standard_draws
from distill.training import flow_stages, planned_stages
from onepass.planning.pipeline.execution import Pipeline
from onepass.planning.pipeline.export import export_stages
from onepass.planning.pipeline.schedule import KEPT, function_name, schedule
from onepass.replicator.portable.export import named_weights, specs_of
from onepass.replicator.portable.manifest import read_manifest

ROWS, SAMPLES = 2, 40


@pytest.mark.slow
def test_a_conditioned_student_has_the_gradients_of_the_whole(tmp_path):
    student = students.student_of("speakers", flows=(1, 1))

    def loss(drawn, batch):
        return tf.reduce_mean(tf.square(drawn.output - batch["target"]) - drawn.log_scale)

    drawn = standard_draws(student.noise_kind, 1, ROWS, SAMPLES, 2).numpy()
    batch = {
        "noise": drawn[0],
        "target": drawn[1],
        "frames": np.random.default_rng(0).normal(size=(ROWS, 2, 7)).astype(np.float32),
        "speaker": np.array([1, 0], np.int32),
    }
    stages = flow_stages(student, loss, ("target",))
    spec = specs_of({name: array[:1] for name, array in batch.items()})
    export_stages(tmp_path, stages, spec)
    pipeline = Pipeline(tmp_path, schedule("1f1b", 2, ROWS), jax.devices()[:1] * 2)
    value, found = pipeline.gradients(batch)

    @tf.function(jit_compile=True, autograph=False)
    def whole():
        weights = named_weights(student)
        with tf.GradientTape() as tape:
            condition, _ = student.condition(batch["frames"], batch["speaker"], SAMPLES)
            expected = loss(student.draw(batch["noise"], condition), batch)
        gradients = tape.gradient(expected, weights)
        return expected, {name: tf.convert_to_tensor(g) for name, g in gradients.items()}

    expected, gradients = whole()
    assert value == pytest.approx(float(expected), rel=1e-6)
    assert found.keys() == gradients.keys()
    joined = [np.concatenate([np.ravel(a[n]) for n in gradients]) for a in (found, gradients)]
    assert np.linalg.norm(joined[0] - joined[1]) < 1e-6 * np.linalg.norm(joined[1])
    assert pipeline.peaks == [2.0, 1.0]
    planned = planned_stages(student, SimpleNamespace(network=student.flows[1]), SAMPLES)
    outputs = read_manifest(tmp_path)["functions"][function_name(0, "F")]["outputs"]
    passed = [spec["shape"] for spec in outputs if not spec["name"].startswith(KEPT)]
    assert planned["passed_bytes"] == 4 * sum(map(math.prod, passed))
    # Flows of one size; the teacher is as large as one, and has two of three passes.
    assert planned["work"][1] == pytest.approx(5 / 3 * planned["work"][0])


def test_a_student_of_the_residual_is_refused():
    with pytest.raises(ValueError, match="`student` must make the wave, not a residual"):
        flow_stages(students.student_of("residual"), lambda drawn, batch: drawn.output)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_schedule_agrees_on_logical_devices(tmp_path):
    words = ["--flows", "2", "1", "1", "3", "--samples", "64", "--microbatches", "4"]
    command = [sys.executable, "-m", "examples.pipeline", *words, "--json", str(tmp_path / "a")]
    subprocess.run(command, check=True)
    rows = json.loads((tmp_path / "a").read_text())
    assert [row["schedule"] for row in rows] == ["1f1b", "interleaved", "v-half", "v-min", "v-zb"]
    assert all(row["gradients"] < 1e-6 and row["loss"] < 1e-6 for row in rows)
    assert all(row["alive"] == row["simulated"] for row in rows)
