"""What a network is fed: codecs by default, the start symbol, and the scale of its numbers."""

import causal_networks
import keras
import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.likelihoods import Bernoulli, Categorical, FromTFP, Gaussian
from onepass.likelihoods.codec import Integers, Linear, MuLaw, Reals
from onepass.model import Autoregressive
from onepass.storage import save
from onepass.training.fit import fit

layers = keras.layers
TOKENS = 6


def of_tokens(rows=TOKENS, width=3):
    keras.utils.set_random_seed(0)
    stack = layers.Embedding(rows, width), layers.Conv1D(width, 3, padding="causal")
    return causal_networks.token_network(*stack, layers.Dense(TOKENS))


def of_numbers(outputs=2):
    keras.utils.set_random_seed(1)
    front = layers.Conv1D(4, 2, padding="causal", activation="tanh")
    return causal_networks.wave_network(front, layers.Dense(outputs))


def of_pixels():
    return causal_networks.MaskedImage(1, 2)


def categorical_of_tfp(logits):
    import tensorflow_probability as tfp  # loads slowly

    return tfp.distributions.Categorical(logits=logits)


def poisson_of_tfp(logits):
    import tensorflow_probability as tfp  # loads slowly

    rate = tf.exp(logits[..., 0])
    return tfp.distributions.Poisson(rate)


# --- codecs by default


@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (lambda: Categorical(TOKENS), TOKENS),
        (Bernoulli, 1),
        (lambda: FromTFP(categorical_of_tfp, 6, 6), 6),
    ],
    ids=["categorical", "bernoulli", "of tfp"],
)
def test_tokens_are_integers_by_default(make, outputs):
    distribution = make()
    model = Autoregressive(of_numbers(outputs), distribution)
    assert model.codec == Integers(distribution.levels)
    drawn = model.sample(2, 5, seed=1, method="naive")
    assert drawn.dtype == np.int32 and drawn.max() < distribution.levels
    assert model.log_prob(drawn).shape == (2, 5)


def test_other_levels_are_numbers_by_default():
    assert Autoregressive(of_numbers(), Gaussian(16)).codec == Linear(16)
    assert Autoregressive(of_numbers(), Gaussian(None)).codec == Reals()
    counts = FromTFP(poisson_of_tfp, 1, 64)
    assert not counts.of_tokens


def test_numbers_for_a_model_of_tokens_are_refused_with_the_way_out():
    model = Autoregressive(of_numbers(256), Categorical(256))
    sound = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    text = (
        r"^`elements` must be integers in \[0, 255\], got float32; a model of numbers in \[-1, 1\]"
        r" needs codec=onepass.likelihoods.Linear\(256\), or MuLaw\(256\)\.$"
    )
    calls = [
        lambda: model.log_prob(sound),
        lambda: fit(model, sound, steps=1),
        lambda: onepass.evaluate(model, sound),
        lambda: model.conditionals(sound),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(ValueError, match=text.replace("elements", "prefix")):
        model.sample(1, 8, 0, prefix=sound[:, :2])
    for codec in (Linear(256), MuLaw(256)):
        assert np.isfinite(
            Autoregressive(of_numbers(256), Categorical(256), codec=codec).log_prob(sound)
        ).all()


def test_a_large_vocabulary():
    keras.utils.set_random_seed(0)
    most = 70_000
    network = causal_networks.token_network(layers.Embedding(most + 1, 4), layers.Dense(most))
    model = Autoregressive(network, Categorical(most), start=most)
    tokens = np.array([[most - 1, 0, 65_536]])
    nats = tf.nn.log_softmax(network(np.array([[most, most - 1, 0]])))
    expected = tf.gather(nats, tokens, batch_dims=2)
    np.testing.assert_allclose(model.log_prob(tokens), expected, rtol=1e-5)
    drawn = model.sample(1, 3, seed=1, prefix=tokens[:, :1], method="naive")
    np.testing.assert_array_equal(model.sample(1, 3, seed=1, prefix=tokens[:, :1]), drawn)


# --- the symbol before the first


@pytest.mark.parametrize("start", [None, 0, TOKENS])  # the last is never drawn
def test_the_network_reads_the_start_before_the_first_symbol(start):
    network = of_tokens(TOKENS + 1)
    model = Autoregressive(network, Categorical(TOKENS), start=start)
    read = TOKENS // 2 if start is None else start
    drawn = np.random.default_rng(0).integers(0, TOKENS, [3, 9])
    shifted = np.concatenate([np.full([3, 1], read), drawn[:, :-1]], 1)
    np.testing.assert_allclose(model.conditionals(drawn), network(shifted), rtol=1e-5, atol=1e-5)
    assert model.feeds.endswith(f"before the first it reads {read}")


def test_a_start_of_floats_is_on_the_networks_scale():
    network = of_numbers()
    model = Autoregressive(network, Gaussian(16), start=0.25)
    x = model.sample(2, 6, seed=1, method="naive")
    shifted = np.concatenate([np.full([2, 1], 0.25), x[:, :-1]], 1)[..., None]
    np.testing.assert_allclose(model.conditionals(x), network(shifted), rtol=1e-5, atol=1e-5)


NO_SCALE = r"`input_scale` must be two finite numbers \(low, high\)"
SCALES = [(1, 0), (0, 0), (0,), (0, 1, 2), (0, np.inf), (np.nan, 1), "01", 5, ("a", "b")]
REFUSED = [
    ({"start": TOKENS}, of_tokens, "`start` must be below 6, .*, got 6"),
    ({"start": -1}, of_tokens, "`start` must be an integer of at least 0 .*, got -1"),
    ({"start": 1.5}, of_tokens, "`start` must be an integer of at least 0 .*, got 1.5"),
    ({"start": 2**31}, of_tokens, "`start` must be an integer of at least 0 .*, got 2147483648"),
    ({"start": True}, of_tokens, "`start` must be a finite number, got True"),
    ({"start": np.nan}, of_numbers, "`start` must be a finite number, got nan"),
    ({"start": "bos"}, of_numbers, "`start` must be a finite number, got 'bos'"),
    ({"start": 10**400}, of_numbers, "`start` must be a finite number, got 1000"),
    ({"start": 0, "order": "raster"}, of_pixels, "`start` must be None in raster order"),
    ({"input_scale": (0, 1)}, of_tokens, "`input_scale` must be None for a network that reads int"),
    *(({"input_scale": scale}, of_numbers, NO_SCALE) for scale in SCALES),
]


@pytest.mark.parametrize(("options", "make", "text"), REFUSED)
def test_a_start_or_a_scale_that_means_nothing_is_named(options, make, text):
    distribution = Categorical(TOKENS) if make is of_tokens else Gaussian(16)
    with pytest.raises(ValueError, match=text):
        Autoregressive(make(), distribution, **options)


# --- the scale of numbers


@pytest.mark.parametrize(
    ("codec", "scale"),
    [(Linear(256), (0, 1)), (Integers(256), (0.0, 255.0)), (MuLaw(256), np.array([-3.0, 1.0]))],
    ids=["linear", "integers", "mu-law"],
)
def test_the_network_reads_numbers_on_its_scale(scale, codec):
    network = of_numbers()
    model = Autoregressive(network, Gaussian(256), codec=codec, input_scale=scale)
    levels = np.random.default_rng(0).integers(0, 256, [2, 7])
    x = codec.decode(tf.constant(levels, tf.int32)).numpy()
    low, high = map(float, scale)
    read = low + levels * ((high - low) / 255)
    middle = np.full([2, 1], 0.5 * (low + high))
    shifted = np.concatenate([middle, read[:, :-1]], 1)[..., None]
    np.testing.assert_allclose(model.conditionals(x), network(shifted), rtol=1e-4, atol=1e-4)


def test_the_scale_of_bytes_gives_the_levels_themselves():
    model = Autoregressive(of_numbers(), Gaussian(256), codec=Integers(256), input_scale=(0, 255))
    every = tf.range(256)[tf.newaxis]
    read = model.symbol_network.read(every)
    np.testing.assert_array_equal(read[0, :, 0], np.arange(256))
    assert model.feeds == (
        "The network reads elements as numbers 0 to 255, shifted by one; before the first it reads"
        " 127.5"
    )


def test_an_image_network_reads_its_scale():
    network = causal_networks.MaskedImage(1, 2)
    plain = Autoregressive(network, Gaussian(256), order="raster")
    model = Autoregressive(network, Gaussian(256), order="raster", input_scale=(0, 1))
    images = np.random.default_rng(0).integers(0, 256, [2, 4, 3, 1])
    expected = network(tf.constant(images / 255, tf.float32))[..., tf.newaxis, :]
    np.testing.assert_allclose(model.conditionals(images), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(plain.conditionals(images), expected)
    assert model.feeds == "The network reads elements as numbers 0 to 1, unshifted"


def test_a_layer_that_rescales_is_said():
    rescaling = layers.Rescaling(1 / 255, name="bytes")
    network = causal_networks.wave_network(rescaling, layers.Dense(2))
    feeds = [
        Autoregressive(network, Gaussian(256), input_scale=scale).feeds
        for scale in (None, (0, 255))
    ]
    line = "; its layer `bytes` rescales elements to "
    assert feeds[0].endswith(f"reads 0{line}-0.003922 to 0.003922")
    assert feeds[1].endswith(f"reads 127.5{line}0 to 1")


class Cubes:
    """Levels that a network reads at distances that differ."""

    levels, log_unit = 16, 0.0

    def encode(self, elements):
        return tf.cast(elements, tf.int32)

    def decode(self, symbols):
        return symbols

    def scale(self, symbols):
        return (2.0 * tf.cast(symbols, tf.float32) / 15.0 - 1.0) ** 3


def test_a_codec_of_uneven_levels_keeps_their_distances():
    model = Autoregressive(of_numbers(), Gaussian(16), codec=Cubes(), input_scale=(0, 10))
    read = model.symbol_network.read(tf.range(16)[tf.newaxis])[0, :, 0]
    np.testing.assert_allclose(read, 5.0 + 5.0 * np.linspace(-1, 1, 16) ** 3, atol=1e-5)


def test_real_symbols_are_scaled_too():
    network = of_numbers()
    model = Autoregressive(network, Gaussian(None), codec=Reals(unit=2.0), input_scale=(0, 1))
    x = np.array([[-2.0, 0.0, 2.0, 1.0]])
    shifted = np.array([[0.5, 0.0, 0.5, 1.0]])[..., None]
    np.testing.assert_allclose(model.conditionals(x), network(shifted), rtol=1e-5, atol=1e-5)
    assert "-1 and 1 as 0 and 1" in model.feeds


def test_a_teacher_of_another_scale_is_distilled_alike():
    from distill.any_teacher import ModelTeacher

    network = of_numbers()

    def halved(x):  # reads [0, 1]
        return network(2.0 * x - 1.0)

    values = tf.constant(np.random.default_rng(0).uniform(-1, 1, [2, 8]), tf.float32)
    expected, found = (
        ModelTeacher(Autoregressive(net, Gaussian(256), input_scale=scale)).conditionals(
            values, None
        )
        for net, scale in ((network, None), (halved, (0, 1)))
    )
    drawn = tf.zeros([2, 8])
    np.testing.assert_allclose(
        found.log_density(drawn), expected.log_density(drawn), rtol=1e-4, atol=1e-4
    )


def test_a_sample_rate_is_not_stored_with_integers(tmp_path):
    model = Autoregressive(of_tokens(), Categorical(TOKENS))
    for write in (save, onepass.export):
        with pytest.raises(ValueError, match="`sample_rate_hz` must be None for a model of integ"):
            write(model, tmp_path / "mine" / "1", sample_rate_hz=8000)
