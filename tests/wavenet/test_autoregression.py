"""The shipped networks through the library's own parts: the same seed, the same sound."""

import numpy as np
import pytest
import tensorflow as tf
from networks import condition_of, levels_of, network_of
from vocoders import frames_of, vocoder_of

import onepass
from onepass.foundation.rules import UserError
from onepass.machine import weights
from onepass.trained import Trained
from wavenet.config import DataConfig
from wavenet.density import Density
from wavenet.front import SoundFront
from wavenet.model import SoundSampler
from wavenet.samplers.generation import Request, generate
from wavenet.samplers.symbols import autoregressive

BATCH, SAMPLES, SEED = 2, 46, 3
BUNCHES = "prediction, pitch, bunches of 4"


def sound_of(network, samples=SAMPLES, batch=BATCH):
    """Frames, speaker and condition of so many samples, None each where there is none."""
    config, frames, speaker = network.config, None, None
    if config.feature_channels:
        frames = np.asarray(frames_of(network, batch, samples), np.float32)
    if config.speakers:
        speaker = np.arange(batch, dtype=np.int32) % config.speakers
    condition = None
    if frames is not None or speaker is not None:
        condition = network.condition(frames, speaker, samples)
    return frames, speaker, condition


def drawn_by(network, backend, samples=SAMPLES, batch=BATCH):
    frames, speaker, _ = sound_of(network, samples, batch)
    request = Request(samples, SEED, tuple(range(batch)), frames, speaker)
    return generate(network, request, backend)


def drawn(network, method, samples=SAMPLES, batch=BATCH):
    model = autoregressive(network)
    condition = sound_of(network, samples, batch)[2]
    sound = model.sample(batch, samples, SEED, condition, method=method)
    return network.codec.encode(sound).numpy()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (network_of, "softmax, speakers"),
        (network_of, "mixture, context"),
        (vocoder_of, BUNCHES),
    ],
    ids=["softmax, speakers", "context", "vocoder"],
)
def test_a_sound_is_that_of_the_model_of_arrays_to_the_bit(make, kind):
    network = make(kind)
    np.testing.assert_array_equal(drawn(network, "auto"), drawn_by(network, "auto"))


@pytest.mark.parametrize("kind", ["mixture, context", "softmax, speakers"])
def test_log_probabilities_are_those_of_the_density(kind):
    network = network_of(kind)
    levels = levels_of(network, 1, 64)
    speaker = 0 if network.config.speakers else None
    expected = Density(network).log_prob(levels[0], speaker=speaker)
    given = condition_of(network, 1, 64)
    found = autoregressive(network).log_prob(network.codec.decode(levels), given)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("eager")
def test_a_wavenet_is_trained_on_an_array_in_memory():
    model = autoregressive(network_of("mixture"))
    waves = 0.3 * np.sin(np.arange(64) * np.linspace(0.1, 0.4, 6)[:, None])
    before = float(tf.reduce_mean(model.log_prob(waves)))
    outcome = onepass.fit(
        model, waves, steps=6, batch_size=2, evaluate=waves, log=lambda line: None
    )
    assert outcome.step == 6 and -outcome.best_score > before
    assert float(tf.reduce_mean(model.log_prob(waves))) == pytest.approx(-outcome.best_score, 1e-5)


@pytest.mark.parametrize("kind", ["mixture", "softmax, speakers"])
def test_narrow_weights_draw_one_sound_in_any_chunks_and_evaluate_says_their_cost(
    kind, monkeypatch
):
    monkeypatch.setattr(weights, "WORTH_NARROWING", 1)
    network = network_of(kind)
    speakers = ("one", "two", "three")[: network.config.speakers]
    front = SoundFront(DataConfig(), 1, 0.0, speakers)
    model = Trained(SoundSampler(network, None), front, {"kind": "wavenet"})
    options = {"speaker": "two"} if speakers else {}
    sound = model.sample(2, SAMPLES, SEED, weights="int8", **options)
    parts = list(model.stream(2, SAMPLES, SEED, weights="int8", chunk=8, **options))
    np.testing.assert_array_equal(np.concatenate(parts, 1), sound)
    alone = model.sample(1, SAMPLES, SEED, weights="int8", **options)
    np.testing.assert_array_equal(alone, sound[:1])
    exact = model.log_prob(sound, **options)
    found = model.log_prob(sound, weights="int8", **options)
    assert 0 < np.abs(exact - found).max() < 1
    if not speakers:
        cost = onepass.evaluate(model, sound, weights="int8").cost
        assert cost.mean == pytest.approx(float((exact - found).mean()), abs=1e-5)
    begun = {"prefix": sound[0, :9]} | options
    continued = model.sample(1, SAMPLES, SEED, weights="int8", **begun)
    np.testing.assert_array_equal(continued, sound[:1])
    for other in ({"method": "cached"}, {"method": "naive"}):
        with pytest.raises(UserError, match="`weights` must be float32 for ") as refused:
            model.stream(1, SAMPLES, SEED, weights="int8", **options, **other)
        assert "\n" not in str(refused.value)
