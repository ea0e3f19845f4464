"""A student of any teacher is stored without the code of its networks, and made piece by piece."""

import causal_networks
import numpy as np
import own_models
import pytest
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.foundation.errors import UserError
from onepass.likelihoods import Linear, Reals
from onepass.models import load_stored as load
from onepass.models import save

LENGTH = 24


def student(condition_channels=0):
    """A student of networks that no library has."""
    make = causal_networks.two_inputs if condition_channels else lambda: causal_networks.Gated(2)
    networks = [make() for _ in range(2)]
    return FlowStudent(networks, Linear(256), condition_channels=condition_channels)


@pytest.mark.slow
def test_parts_of_the_noise_give_the_values_of_the_whole():
    made = FlowStudent([own_models.gru(2), causal_networks.Gated(2)], Reals())
    noise = made.noise(3, tf.range(2), LENGTH)
    state, values, start = made.initial_state(2), [], 0
    for size in (1, 7, 3, LENGTH - 11):
        part, state = made.step(noise[:, start : start + size], state)
        values.append(part)
        start += size
    np.testing.assert_allclose(tf.concat(values, 1), made.draw(noise).output, atol=1e-5)
    later = made.noise(3, tf.range(2), 5, start=4)
    np.testing.assert_array_equal(later, noise[:, 4:9])


def test_what_is_no_model_of_a_user_is_named(tmp_path):
    with pytest.raises(ValueError, match="must be an Autoregressive or a FlowStudent, got object"):
        save(object(), tmp_path)
    (tmp_path / "autoregressive.json").write_text('{"kind": "other"}')
    with pytest.raises(UserError, match="a model of the kind 'other', which is unknown"):
        load(tmp_path)
    (tmp_path / "autoregressive.json").write_text("[]")
    with pytest.raises(UserError, match="contains no model that `save` wrote"):
        load(tmp_path)
