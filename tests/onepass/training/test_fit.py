"""`fit`: the same weights in memory, in a work directory, and after a stop in between."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import fit_models
import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_models import ADAM, WAVES, Line, Squared, drawn, squared, trained, untrained
from processes import TensorflowProcess

from onepass.foundation.rules import UserError
from onepass.likelihoods import Categorical, Gaussian
from onepass.likelihoods.codec import Integers, Reals
from onepass.model import Autoregressive
from onepass.replicator.training.loop import DivergedError
from onepass.training.fit import fit


@pytest.fixture(scope="module")
def in_memory():
    return trained()[0]


def test_training_lowers_the_loss():
    model = untrained()
    before = float(tf.reduce_mean(model.log_prob(WAVES)))
    outcome = fit(model, WAVES, steps=40, optimizer=ADAM)
    assert outcome.step == 40 and outcome.reason == "done"
    assert float(tf.reduce_mean(model.log_prob(WAVES))) > before + 0.01


@pytest.mark.usefixtures("eager")
def test_a_run_that_failed_goes_on_as_if_nothing_had_happened(tmp_path):
    def failing(step):
        if step == 4:
            raise RuntimeError("the disk is gone")
        return drawn(step)

    options = {"workdir": tmp_path, "evaluate": lambda model: 0.0, "evaluate_every": 3}
    with pytest.raises(RuntimeError, match="the disk is gone"):
        trained(batches=failing, **options)
    weights, outcome = trained(batches=drawn, **options)
    assert outcome.step == 6
    np.testing.assert_array_equal(weights, trained()[0])


@pytest.mark.integration
def test_a_run_that_was_killed_is_the_uninterrupted_one_bit_for_bit(in_memory, tmp_path):
    process = TensorflowProcess(fit_models.__file__, tmp_path / "log", tmp_path / "run")
    assert process.ended(300) == -signal.SIGKILL, process.output()
    weights, outcome = trained(
        batches=drawn, workdir=tmp_path / "run", evaluate=lambda model: 0.0, evaluate_every=3
    )
    assert outcome.step == 6
    np.testing.assert_array_equal(weights, in_memory)


def test_nothing_is_written_in_memory(in_memory, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    weights, outcome = trained(evaluate=WAVES, evaluate_every=2)
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(weights, in_memory)
    assert outcome.best_step == 6  # of a loss that falls


FED = "The network reads elements as numbers -1 to 1, shifted by one; before the first it reads 0."


@pytest.mark.usefixtures("eager")
def test_more_steps_go_on_from_the_last_of_a_run_that_version_0_2_began(tmp_path):
    said, in_memory = [], trained()[0]
    trained(steps=3, workdir=tmp_path, log=said.append)
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    assert stored.keys() == {"kind", "optimizer", "weights", "batches", "loop"}
    del stored["optimizer"]["rematerialise"]  # as if a later version had added it
    file.write_text(json.dumps(stored))
    np.testing.assert_array_equal(trained(workdir=tmp_path, log=said.append)[0], in_memory)
    assert (tmp_path / "checkpoints" / "step_00000006.npz").exists()
    assert said == [FED, "6 weights", FED, "6 weights, resuming from step 3"]
    weights, outcome = trained(workdir=tmp_path)
    assert outcome.reason == "finished before"
    np.testing.assert_array_equal(weights, in_memory)


@pytest.mark.usefixtures("eager")
def test_another_run_is_not_written_over(tmp_path):
    trained(steps=1, workdir=tmp_path)
    with pytest.raises(UserError, match="another configuration"):
        trained(steps=1, workdir=tmp_path, batch_size=3)


@pytest.mark.usefixtures("eager")
def test_iterables_datasets_and_functions_give_the_same_weights():
    parts = [WAVES[:4], WAVES[4:8], WAVES[8:]]
    expected = trained(batches=parts)[0]
    dataset = tf.data.Dataset.from_tensor_slices(WAVES).batch(4)
    for batches in (dataset, lambda step: parts[step % 3], [{"elements": p} for p in parts]):
        np.testing.assert_array_equal(trained(batches=batches)[0], expected)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("decay", "steps", "jump"),
    [
        ("cosine", (4, 8), "from 0 to 0.005 at step 5,"),
        ("cosine", (8, 4), None),  # nothing is left to train
        ("cooldown", (4, 8), "from 0 to 0.01 at step 5,"),
        ("halve", (4, 8), None),
        ("constant", (4, 8), None),
    ],
)
def test_a_run_of_another_length_says_how_its_rate_jumps(tmp_path, decay, steps, jump):
    adam = dataclasses.replace(ADAM, decay=decay, cooldown_steps=2)
    said, lines = [], []
    trained(steps=steps[0], optimizer=adam, workdir=tmp_path, log=said.append)
    trained(steps=steps[1], optimizer=adam, workdir=tmp_path, log=lines.append)
    found = [line for line in said + lines if "learning rate jumps" in line]
    assert len(found) == (jump is not None) and all(jump in line for line in found)
    if jump is not None:
        assert found[0].startswith(f"num_steps was {steps[0]} and is {steps[1]} now: ")


def test_own_loss_schedule_and_score():
    seen = []

    def loss(model, batch):
        seen.append(sorted(batch))
        assert batch["step"].shape == batch["row"].shape == [12]
        return -tf.reduce_mean(model.log_prob(batch["elements"]) * batch["weight"])

    batches = [{"elements": WAVES, "weight": np.float32([[0.5]] * 12)}]
    weights, outcome = trained(
        batches=batches,
        loss=loss,
        schedule=lambda step: 0.0 * tf.cast(step, tf.float32),
        evaluate=lambda model: 1.5,
        evaluate_every=3,
    )
    assert seen[0] == ["elements", "row", "step", "weight"]
    np.testing.assert_array_equal(weights, Line(3).kernel)  # at a rate of 0
    assert outcome.best_score == 1.5


@pytest.mark.slow
def test_an_optimiser_of_keras_resumes_exactly(tmp_path):
    whole = trained(optimizer=keras.optimizers.Adam(1e-2))[0]
    moved = whole != Line(3).kernel.numpy()
    assert moved[..., 1:].all()  # the weight of a lone component has no gradient
    trained(steps=3, optimizer=keras.optimizers.Adam(1e-2), workdir=tmp_path)
    resumed = trained(optimizer=keras.optimizers.Adam(1e-2), workdir=tmp_path)[0]
    np.testing.assert_array_equal(resumed, whole)


@pytest.mark.slow
def test_parts_of_held_out_data_count_by_their_rows():
    model = untrained()

    def score(**options):
        return fit(model, WAVES, steps=1, evaluate_every=1, **options).best_score

    still = {"optimizer": keras.optimizers.SGD(0.0)}
    expected = -float(tf.reduce_mean(model.log_prob(WAVES)))
    parts = [WAVES[:5], WAVES[5:]]
    for evaluate in (WAVES, parts, tf.data.Dataset.from_tensor_slices(WAVES).batch(7)):
        assert score(evaluate=evaluate, batch_size=5, **still) == pytest.approx(expected, rel=1e-6)


BAD = {
    "nan": (np.full([4, 8], np.nan), "`elements` must be finite, got nan at [0, 0]."),
    "infinite": (np.full([4, 8], np.inf), "`elements` must be finite, got inf"),
    "range": ([WAVES, 3.0 * WAVES], "`elements` must be in [-1, 1] for 256 levels, got "),
    "rank": (WAVES[..., None], "`elements` must be [batch, time], got shape [12, 40, 1]."),
    "text": (np.array([["a"]]), "`elements` must be numbers, got <U1."),
    "no rows": (WAVES[:0], "`elements` must not be empty, got shape [0, 40]."),
    "no time": (WAVES[:, :0], "`elements` must not be empty, got shape [12, 0]."),
    "empty batch": ([WAVES, WAVES[:0]], "`elements` must not be empty"),
    "no batches": ([], "The batches ended after 0"),
    "rows": ([WAVES[0], WAVES[1] * np.nan], "`elements` must be finite, got nan at [1, 0]."),
    "ends": (iter([WAVES, WAVES]), "The batches ended after 2"),
    "other rows": ((WAVES, np.zeros([3, 40, 1])), "`condition` must have 12 rows, as `elements`"),
    "later rows": ([{"elements": WAVES, "x": np.zeros(3)}], "`x` must have 12 rows"),
    "condition": ((WAVES, np.full([12, 40, 1], np.nan)), "`condition` must be finite, got nan"),
    "three": ((WAVES, WAVES, WAVES), "elements, or elements and a condition, got 3 arrays"),
    "no key": ({"x": WAVES}, "a batch must have the key `elements`, got ['x']."),
    "none": (None, "`batches` must be arrays, an iterable, a tf.data.Dataset or a function"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_data_is_one_line(kind):
    batches, line = BAD[kind]
    with pytest.raises(ValueError) as caught:
        trained(batches=batches)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_integers_that_no_level_stands_for_and_numbers_beyond_float32_are_named():
    network = keras.Sequential([keras.Input([None], dtype="int32"), keras.layers.Embedding(16, 16)])
    model = Autoregressive(network, Categorical(16), codec=Integers(16))
    for wrong in (16, 2**32 + 1, -1):
        with pytest.raises(ValueError, match=r"`elements` must be in \[0, 15\] for 16 levels, got"):
            fit(model, np.full([4, 8], wrong), steps=1)
    model = Autoregressive(Line(), Gaussian(levels=None), codec=Reals())
    with pytest.raises(ValueError, match="must be finite, got 1e\\+300"):
        fit(model, np.full([4, 8], 1e300), steps=1)


HALVES = {"optimizer": dataclasses.replace(ADAM, accumulate=2)}


@pytest.mark.usefixtures("eager")
def test_microbatches_give_the_weights_of_a_loss_over_the_global_batch():
    expected = trained(loss=squared)[0]
    np.testing.assert_allclose(trained(loss=Squared(), **HALVES)[0], expected, rtol=0, atol=5e-6)


@pytest.mark.usefixtures("eager")
def test_a_loss_that_draws_its_own_numbers_may_be_shared():
    def noisy(model, batch):
        noise = tf.random.normal([], seed=1) * tf.reduce_sum(model.network.kernel)
        return noise - tf.reduce_mean(model.log_prob(batch["elements"]))

    assert trained(loss=noisy, **HALVES)[1].step == 6


@pytest.mark.usefixtures("eager")
def test_a_loss_that_is_not_finite_ends_training_with_the_weights_before_it():
    def loss(model, batch):
        bad = tf.where(batch["step"][0] == 2, float("nan"), 1.0)
        return -bad * tf.reduce_mean(model.log_prob(batch["elements"]))

    model = untrained()
    with pytest.raises(DivergedError) as caught:
        fit(model, WAVES, steps=6, loss=loss, optimizer=ADAM, batch_size=4)
    assert str(caught.value) == (
        "Step 3 had loss nan and gradient norm nan and was not applied; the model has the weights "
        "before it. Try a lower learning rate."
    )
    assert np.isfinite(model.network.kernel.numpy()).all()


@pytest.mark.usefixtures("eager")
def test_the_log_says_what_the_network_is_fed():
    lines, tokens = [], keras.Input([None], dtype="int32")
    network = keras.Model(tokens, keras.layers.Embedding(10, 10)(tokens))
    model = Autoregressive(network, Categorical(10), codec=Integers(10))
    fit(model, np.full([4, 8], 3), steps=1, log=lines.append)
    fed = "The network reads symbols 0 to 9, shifted by one; before the first it reads 5."
    assert lines[0] == fed


@pytest.mark.parametrize("optimizer", [ADAM, keras.optimizers.Adam])
@pytest.mark.usefixtures("eager")
def test_weights_in_float64_are_trained_and_in_float16_refused_in_one_line(optimizer):
    for floats in ("float64", "float16"):  # as under keras.config.set_floatx
        inputs = keras.Input([None, 1], dtype=floats)
        network = keras.Model(inputs, keras.layers.Dense(2, dtype=floats)(inputs))
        model = Autoregressive(network, Gaussian(levels=256))
        given = optimizer if optimizer is ADAM else optimizer(0.01)
        options = {"steps": 3, "optimizer": given, "evaluate": WAVES, "evaluate_every": 2}
        before = network.get_weights()
        if floats == "float64":
            assert np.isfinite(fit(model, WAVES, **options).best_score)
            assert all((x != y).any() for x, y in zip(before, network.get_weights(), strict=True))
        else:
            with pytest.raises(ValueError) as caught:
                fit(model, WAVES, **options)
            assert "in float32 or float64 to be trained, got float16" in str(caught.value)
            assert "\n" not in str(caught.value)


ON_NUMPY = """
import keras, onepass

inputs = keras.Input([None, 1])
network = keras.Model(inputs, keras.layers.Dense(2)(inputs))
for call in (
    lambda: onepass.Autoregressive(network, onepass.likelihoods.Gaussian(256)),
    lambda: onepass.check_causal(lambda x: network(x)),
    lambda: onepass.incremental(network),
):
    try:
        call()
    except onepass.UserError as error:
        print(error)
"""


@pytest.mark.integration
def test_keras_on_another_backend_is_one_line():
    environment = {**os.environ, "KERAS_BACKEND": "numpy"}  # which needs no further package
    command = [sys.executable, "-c", ON_NUMPY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    line = "`network` must compute with TensorFlow, but Keras uses numpy; set KERAS_BACKEND=tensor"
    assert [found[: len(line)] for found in done.stdout.splitlines()] == [line] * 3
