"""A stored model needs no code of its own, and gives the same numbers."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import causal_networks
import numpy as np
import pytest
import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.likelihoods import Categorical, Gaussian
from onepass.likelihoods.distribution import Tabulated
from onepass.model import Autoregressive
from onepass.storage import load, models, save

PROGRAM = """
import sys
import numpy as np
from onepass.storage import load

model = load(sys.argv[1])
np.save(sys.argv[2], model.sample(2, 12, seed=5))
"""


class Triangle(Tabulated):
    """A distribution of a test: the nearer to its centre, the more probable a level is."""

    levels, num_parameters = 16, 1

    def log_prob(self, parameters, symbols):
        every = tf.range(16, dtype=tf.float32)
        centre = 8.0 + 4.0 * tf.tanh(parameters)
        table = tf.nn.log_softmax(-tf.abs(every - centre))
        return tf.reduce_sum(tf.one_hot(symbols, 16) * table, -1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    model = Autoregressive(causal_networks.convolved(1, 1), Triangle())
    folder = tmp_path_factory.mktemp("stored") / "model"
    return model, save(model, folder, sample_rate_hz=8000)


@pytest.mark.integration
def test_another_process_draws_the_same_without_the_code(stored, tmp_path):
    model, folder = stored
    result = tmp_path / "drawn.npy"
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(result)], check=True)
    np.testing.assert_array_equal(np.load(result), model.sample(2, 12, seed=5))


def test_penalties_weigh_the_logits_that_the_live_model_has(tmp_path):
    model = Autoregressive(causal_networks.convolved(1, 5), Categorical(5))
    loaded = load(save(model, tmp_path / "model"))
    options = {"prefix": [1, 2, 3], "repetition_penalty": 2.0}
    drawn = model.sample(2, 40, seed=5, **options)
    np.testing.assert_array_equal(loaded.sample(2, 40, seed=5, **options), drawn)


class Modeless(Triangle):
    """A distribution whose most probable level nobody knows."""

    def mode(self, parameters):
        raise NotImplementedError


@pytest.mark.slow
def test_a_distribution_without_a_mode_is_stored(tmp_path):
    model = Autoregressive(causal_networks.Gated(1), Modeless())
    loaded = load(save(model, tmp_path))
    np.testing.assert_array_equal(loaded.sample(2, 9, seed=1), model.sample(2, 9, seed=1))
    with pytest.raises(NotImplementedError, match="`mode` must be a method of Modeless"):
        loaded.distribution.mode(tf.zeros([1, 1, 1]))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match="contains no model that `save` wrote"):
        load(tmp_path / "nothing")


def test_what_is_loaded_is_the_model_with_its_sample_rate(stored, tmp_path):
    model, folder = stored
    loaded = load(folder)
    assert loaded.sample_rate_hz == 8000
    for options in ({}, {"prefix": model.sample(2, 3, seed=4), "temperature": [0.5, 1.0]}):
        drawn = model.sample(2, 9, seed=5, **options)
        np.testing.assert_array_equal(loaded.sample(2, 9, seed=5, **options), drawn)
    with pytest.raises(ValueError, match=r"`sample_rate_hz` must be .* at least 1, got -1"):
        save(model, tmp_path / "wrong", sample_rate_hz=-1)


def test_a_stored_model_in_float64_can_be_stored_again(tmp_path):
    inputs = causal_networks.FLOAT64
    model = Autoregressive(causal_networks.Dilated(2), Gaussian(levels=16), inputs=inputs)
    again = load(save(load(save(model, tmp_path / "one", sample_rate_hz=8000)), tmp_path / "two"))
    assert again.sample_rate_hz == 8000
    rows = {"temperature": [1.0, 0.0]}  # the second takes modes
    np.testing.assert_array_equal(again.sample(2, 9, 1, **rows), model.sample(2, 9, 1, **rows))


class Summing(tf.Module):
    """A network with a step of its own, whose state is the sum of all before, and their number."""

    def __init__(self):
        super().__init__()
        self.gain = tf.Variable([0.3, -0.7])

    def __call__(self, x, condition):
        return self.parameters(tf.cumsum(x, 1), condition)

    def parameters(self, total, condition):
        return total * self.gain + condition

    def initial_state(self, batch):
        return {"sum": tf.zeros([batch, 1, 1]), "count": tf.zeros([batch], tf.int32)}

    def step(self, inputs, state, condition=None):
        total = state["sum"] + tf.cumsum(inputs, 1)
        after = {"sum": total[:, -1:], "count": state["count"] + inputs.shape[1]}
        return self.parameters(total, condition), after


def test_a_step_of_a_users_own_is_stored_and_taken_through_several_times_at_once(tmp_path):
    model = Autoregressive(Summing(), Gaussian(levels=64), condition_channels=2)
    stepped = load(save(load(save(model, tmp_path / "one")), tmp_path / "two")).network
    generator = np.random.default_rng(0)
    inputs, condition = (
        tf.constant(generator.normal(size=[3, 5, channels]), tf.float32) for channels in (1, 2)
    )
    state = stepped.initial_state(3)
    outputs, _ = causal_networks.steps(stepped, state, [inputs, condition], (4, 1))
    whole = model.network(inputs, condition)
    np.testing.assert_allclose(outputs, whole, rtol=1e-5, atol=1e-5)


def small(size):
    """A model of `size` symbols, which draws other symbols than one of another size."""
    table = tf.Variable(tf.random.stateless_normal([size, size], [size, 1]))
    return Autoregressive(
        lambda x: tf.gather(table, x),
        Categorical(size),
        inputs=tf.TensorSpec([None, None], tf.int32),
    )


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


CALLS = ("rename", "replace", "open", "mkdir")
CODES = (errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EACCES)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def saving_fails(model, folder, number, monkeypatch):
    """Save while the given call of the system fails; return whether it was made, and the error."""
    left, code = [number], CODES[number % len(CODES)]

    def failing(call):
        def fail(*arguments, **options):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return fail

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, failing(getattr(os, name)))
        try:
            save(model, folder)
        except UserError as error:
            return True, str(error)
    return left[0] < 0, ""


def test_saving_that_fails_at_any_call_of_the_system_leaves_the_old_model(tmp_path, monkeypatch):
    old = save(small(3), tmp_path / "old")
    (old / "notes").write_text("mine")
    new = small(5)
    frozen = models.freeze(new, True)  # once, and checked by what is drawn at the end
    monkeypatch.setattr(models, "freeze", lambda *_: frozen)
    monkeypatch.setattr(models, "check_written", lambda *_: None)
    before, errors, number, was_made = contents(old), 0, 0, True
    while was_made:
        folder = shutil.copytree(old, tmp_path / str(number))
        was_made, error = saving_fails(new, folder, number, monkeypatch)
        if error:
            assert "\n" not in error and error.startswith("Cannot ")
            assert contents(folder) == before
        errors, number = errors + bool(error), number + 1
    assert errors > 2
    assert (folder / "notes").read_text() == "mine" and len(entries(folder)) == 3
    np.testing.assert_array_equal(load(folder).sample(1, 9, 1), new.sample(1, 9, 1))


KILLED = """
import os, signal, sys
from test_storage import small
from onepass.storage import save

count, folder = int(sys.argv[1]), sys.argv[2]
rename = os.rename

def replace(*given):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*given)
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = os.rename = replace
save(small(5), folder)
"""


@pytest.mark.integration
@pytest.mark.parametrize(("count", "levels"), [(1, 3), (2, 5)])
def test_saving_that_is_killed_on_either_side_of_its_rename_leaves_a_whole_model(
    count, levels, tmp_path
):
    folder = save(small(3), tmp_path / "mine")
    words = [sys.executable, "-c", KILLED, str(count), str(folder)]
    here = Path(__file__).resolve()
    paths = os.pathsep.join(str(path) for path in here.parents[:4])
    ended = subprocess.run(words, check=False, env=os.environ | {"PYTHONPATH": paths})
    assert ended.returncode == -signal.SIGKILL
    expected = small(levels).sample(1, 9, 1)
    np.testing.assert_array_equal(load(folder).sample(1, 9, 1), expected)
    np.testing.assert_array_equal(
        load(save(small(4), folder)).sample(1, 9, 1), small(4).sample(1, 9, 1)
    )
    assert len(entries(folder)) == 2


def test_a_model_that_does_not_come_back_is_not_saved_and_leaves_the_old_one(tmp_path, monkeypatch):
    folder = save(small(3), tmp_path / "mine")
    before = (folder / "autoregressive.json").read_bytes()
    write = models.freeze

    def wrong(model, with_step):
        frozen, more = write(model, with_step)
        specs = models.network_specs(model)
        frozen.add("call", lambda x: 2.0 * model.symbol_network.call(x), specs)
        return frozen, more

    monkeypatch.setattr(models, "freeze", wrong)
    with pytest.raises(UserError, match=r"cannot be stored: read back, its network differs by"):
        save(small(5), folder)
    assert (folder / "autoregressive.json").read_bytes() == before
    assert entries(folder) == ["autoregressive.json", "program"]
    with pytest.raises(UserError, match="cannot be stored"):
        save(small(5), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_description_that_names_another_program_is_refused(tmp_path):
    folder = save(small(3), tmp_path / "mine")
    file = folder / "autoregressive.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"program": "../mine/program"}))
    with pytest.raises(UserError, match=r"its program is '\.\./mine/program'\."):
        load(folder)
    file.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"^[^\n]*contains no model[^\n]*$"):
        load(folder)


class ByLength(tf.Module):
    """A network whose graph for any length is wrong, as that of Keras' `TimeDistributed`."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_normal([4, 4], [1, 2]))

    def __call__(self, x):
        known = x.shape[1]
        parameters = tf.gather(self.table, x)
        return parameters[:, :2] if known is None else parameters


def test_a_network_whose_graph_depends_on_the_length_is_stored_for_several(tmp_path):
    inputs = tf.TensorSpec([None, None], tf.int32)
    model = Autoregressive(ByLength(), Categorical(4), inputs=inputs)
    drawn = model.sample(2, 70, 3)
    loaded = load(save(load(save(model, tmp_path / "one")), tmp_path / "two"))
    np.testing.assert_array_equal(loaded.sample(2, 70, 3), drawn)
    np.testing.assert_allclose(loaded.log_prob(drawn), model.log_prob(drawn), atol=1e-5)
    with pytest.raises(ValueError, match=r"cannot take 2,000 time steps: .* at most 512"):
        loaded.log_prob(np.zeros([1, 2000], np.int32))
