"""Networks as their users write them, each through everything that is done with a model."""

import functools

import keras
import numpy as np
import pytest
import users_networks
from runs import eagerly

import onepass
from onepass.testing import Subject, check_law

LENGTH, SEED = 20, 3
LAWS = (
    *("methods_agree", "chunks_are_the_whole", "what_is_saved_is_the_model"),
    *("what_is_exported_is_the_model", "compression_loses_nothing"),
)
WITHOUT_STEP = {"long convolution"}  # it is sampled by the fixed point
INTEGRATION = ("constant table", "recomputed activations")  # the others are slow
MODELS = [
    pytest.param(name, marks=getattr(pytest.mark, "integration" if name in INTEGRATION else "slow"))
    for name in users_networks.MODELS
]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras, as it quantises


@functools.cache
def subject_of(name):
    rounding = 1e-2 if "float16" in name else 1e-4  # of 16 bits
    return Subject(users_networks.model(name), LENGTH, num=2, seed=SEED, tolerance=rounding)


def draw(model, method="auto"):
    return model.sample(2, LENGTH, SEED, method=method)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", MODELS)
def test_a_network_obeys_a_law(name, law):
    reason = check_law(law, subject_of(name))
    assert bool(reason) == (law == "chunks_are_the_whole" and name in WITHOUT_STEP), reason


@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_causal_and_has_a_step_wherever_one_can_be_derived(name):
    model = subject_of(name).model
    found = onepass.check_causal(model.network, inputs=model.symbol_network.inputs)
    assert found.is_causal, found.message
    assert found.has_step == (name not in WITHOUT_STEP), found.message


@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_trained_stored_and_trained_on(name, tmp_path):
    model, elements = users_networks.model(name), subject_of(name).draws
    for number in range(2):
        before = np.asarray(model.log_prob(elements))
        rows, adam = np.repeat(elements, 4, 0), keras.optimizers.Adam(0.01)
        with eagerly():
            onepass.fit(model, rows, steps=2, batch_size=4, optimizer=adam)
        after = np.asarray(model.log_prob(elements))
        assert np.isfinite(after).all() and after.sum() > before.sum()
        drawn = draw(model)
        np.testing.assert_array_equal(drawn, draw(model, "naive"))
        model = onepass.load(onepass.save(model, tmp_path / str(number)))
        np.testing.assert_array_equal(draw(model), drawn)
