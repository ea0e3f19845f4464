"""Several channels per time: independent of each other, given the times before."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from laws import own_networks
from laws.own_networks import CODES

import onepass
from onepass.foundation.rules import UserError
from onepass.likelihoods import Gaussian
from onepass.model import Autoregressive
from onepass.replicator.training.config import OptimizerConfig
from onepass.step import NotCausalError
from onepass.training.fit import fit

layers = keras.layers


@pytest.fixture(params=["stereo", "attention of channels", "codes", "reals"])
def model(request):
    return own_networks.model(request.param)


def elements_of(model, rows=2, time=9):
    draws, channels = np.random.default_rng(0), model.layout.channels
    if model.distribution.levels == CODES:
        return draws.integers(0, CODES, [rows, time, channels])
    return draws.uniform(-0.9, 0.9, [rows, time, channels]).astype(np.float32)


def test_outputs_are_the_parameters_of_one_channel_after_the_other(model):
    x = elements_of(model)
    read = model.symbol_network.read(model.symbols(x))
    before = np.full_like(read[:, :1], model.symbol_network.reading.start)
    outputs = model.network(np.concatenate([before, read[:, :-1]], 1))
    expected = tf.reshape(outputs, [*x.shape, model.distribution.num_parameters])
    parameters = model.conditionals(x)
    np.testing.assert_allclose(parameters, expected, rtol=1e-5, atol=1e-5)
    nats = model.log_prob(x)
    assert nats.shape == x.shape
    expected = model.distribution.log_prob(parameters, model.symbols(x)) - model.codec.log_unit
    np.testing.assert_allclose(nats, expected, rtol=1e-5, atol=1e-5)


def test_a_channel_depends_on_all_channels_of_the_past_and_on_none_of_its_own_time(model):
    x = elements_of(model)
    changed = x.copy()
    changed[:, 4, 0] = x[:, 5, 0] if model.distribution.levels != CODES else (x[:, 4, 0] + 1) % 5
    one, other = (np.asarray(model.conditionals(each)) for each in (x, changed))
    np.testing.assert_allclose(one[:, :5], other[:, :5], rtol=1e-6, atol=1e-6)
    for channel in range(model.layout.channels):
        assert not np.allclose(one[:, 5, channel], other[:, 5, channel])


def test_tokens_of_channels_are_chosen_by_top_k_and_a_temperature_per_row():
    model = own_networks.model("codes")
    options = {"top_k": 2, "temperature": [1.0, 0.0]}
    drawn = model.sample(2, 6, seed=1, method="naive", **options)
    best = np.argsort(model.conditionals(drawn), -1)
    assert (best[..., -2:] == drawn[..., None]).any(-1).all()
    np.testing.assert_array_equal(best[1, ..., -1], drawn[1])


@pytest.mark.usefixtures("eager")
def test_rows_of_different_lengths_are_trained_on(model):
    x = elements_of(model, 6, 30)
    lengths = [30, 3, 0, 17, 30, 1]
    rows = [each[:length] for each, length in zip(x, lengths, strict=True)]
    nats = model.log_prob(rows).numpy()
    still = OptimizerConfig(learning_rate=1e-12, warmup_steps=1)
    outcome = fit(model, rows, steps=1, evaluate=rows, batch_size=6, optimizer=still)
    mean = -nats.sum() / (sum(lengths) * model.layout.channels)
    assert outcome.best_score == pytest.approx(mean, rel=1e-4)


def test_channels_have_noise_of_their_own():
    model = own_networks.model("stereo")
    drawn = model.sample(2, 20, seed=1)
    assert not np.allclose(drawn[..., 0], drawn[..., 1])


@pytest.mark.usefixtures("eager")
def test_training_lowers_the_loss():
    model = own_networks.MODELS["codes"]()
    x = np.tile(np.arange(12)[:, None] % CODES, [1, 3])[None]
    before = float(tf.reduce_mean(model.log_prob(x)))
    fit(model, x, steps=8, optimizer=OptimizerConfig(learning_rate=0.1, warmup_steps=2))
    assert float(tf.reduce_mean(model.log_prob(x))) > before + 0.1


def test_a_network_that_reads_another_channel_of_the_same_time_is_shifted_too():
    """One that looks at the next time is refused as with one channel."""

    def ahead(x):
        return tf.concat([tf.roll(x, -1, 1), x], -1)

    with pytest.raises(NotCausalError, match=r"input t \+ 1|change with the length"):
        Autoregressive(ahead, Gaussian(16), inputs=tf.TensorSpec([None, None, 2]))


OF_TWO, ONE = r"must be \[batch, time, 2\], got", "must have one channel"
REFUSED = {
    "a channel too many": (lambda m: m.log_prob(np.zeros([2, 4, 3])), OF_TWO),
    "no channels": (lambda m: m.log_prob(np.zeros([2, 4])), OF_TWO),
    "fit": (lambda m: fit(m, np.zeros([2, 4, 3]), steps=1), OF_TWO),
    "prefix": (lambda m: m.sample(2, 4, prefix=np.zeros([2])), r"`prefix` .*\[n, 2\], got \[2\]"),
    "prefix of others": (
        lambda m: m.sample(2, 4, prefix=np.zeros([2, 2, 3])),
        "`prefix` " + OF_TWO,
    ),
    "stop": (lambda m: m.sample(2, 4, stop=0.0), "`stop` needs one channel per time step, got 2"),
    "draft": (lambda m: m.sample(2, 4, method="speculative", draft=m), "one channel .*, got 2"),
    "distill": (lambda m: onepass.distill(m, np.zeros([2, 4]), steps=1), "`teacher` " + ONE),
    "compress": (lambda m: onepass.compress(m, np.zeros([2, 4, 2])), "`model` " + ONE),
    "export": (lambda m: onepass.export(m, "models/mine/1"), "`model` " + ONE),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_meaning_for_channels_is_named(kind):
    call, text = REFUSED[kind]
    with pytest.raises((ValueError, UserError), match=text) as caught:
        call(own_networks.model("stereo"))
    assert "\n" not in str(caught.value)
