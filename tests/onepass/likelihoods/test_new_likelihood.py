"""A likelihood in one file and one registration works everywhere: this file is that file."""

import dataclasses
import math
import re

import image_runs
import numpy as np
import pytest
import tensorflow as tf
from image_densities import conditions_for, images_for
from image_networks import QuickInitial, perturbed
from marks import some_slow
from networks import SMALL, levels_of, moved
from runs import eagerly, looped, options, recordings, unevaluated

import onepass
from onepass.foundation.rules import UserError, dataclass_from, to_json
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods import registry
from onepass.likelihoods.mixture import Mixture
from onepass.replicator.portable.export import export_function, named_weights
from onepass.testing import check_laws
from onepass.trained import Trained
from pixelcnn.config import OutputConfig
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.model import ImageFront, ImageSampler
from wavenet.config import DataConfig as SoundConfig
from wavenet.config import WaveNetConfig
from wavenet.front import Request, SoundFront
from wavenet.model import SoundSampler
from wavenet.network import WaveNet
from wavenet.samplers.generation import generate
from wavenet.training import ClipLoss


@dataclasses.dataclass(frozen=True)
class LaplaceMixture(Mixture):
    """Mixture of Laplace densities, each integrated over the bins of the level grid."""

    def log_mass(self, means, log_scales, levels):
        half, top = 0.5 * (self.levels - 1), self.levels - 1
        scale, centre = tf.exp(-log_scales), tf.cast(levels, means.dtype)
        high = ((centre + 0.5) / half - 1.0 - means) * scale
        low = ((centre - 0.5) / half - 1.0 - means) * scale
        # The upper tail is mirrored, so that both ends are small numbers.
        near = tf.where(low > 0, self.cumulative_share(-low), self.cumulative_share(high))
        far = tf.where(low > 0, self.cumulative_share(-high), self.cumulative_share(low))
        mass = tf.where(centre >= top, self.cumulative_share(-low), near - far)
        return tf.math.log(tf.where(centre <= 0, self.cumulative_share(high), mass) + 1e-30)

    def component_log_density(self, means, log_scales, values):
        return -tf.abs(values - means) * tf.exp(-log_scales) - log_scales - math.log(2.0)

    def cumulative_share(self, z):
        tail = 0.5 * tf.exp(-tf.abs(z))
        return tf.where(z < 0, tail, 1.0 - tail)

    def draw_from_bits(self, words):
        u = counter_noise.uniform_from_bits(words) - 0.5
        return -tf.sign(u) * tf.math.log1p(-2.0 * tf.abs(u))


@pytest.fixture(autouse=True)
def laplace():
    registry.register("laplace", LaplaceMixture, is_mixture=True)
    yield
    del registry.LIKELIHOODS["laplace"]


LAPLACE = dict(likelihood="laplace", levels=256, components=2)
SOUND = SMALL | LAPLACE | dict(layers=2, filter_width=2, min_log_scale=-6.0)
IMAGES = ("laplace", "gaussian-mixture")


@pytest.fixture
def network():
    return moved(WaveNet(WaveNetConfig(**SOUND)))


def image_model(likelihood, kind="multiscale", channels=1):
    config = image_runs.config_of(kind)
    config = dataclasses.replace(
        config,
        output=OutputConfig(likelihood, channels=channels, components=2, min_log_scale=-4.0),
        conditioning=dataclasses.replace(config.conditioning, classes=3),
        data=dataclasses.replace(config.data, channels=channels),
    )
    density = perturbed(ImageDensity(config, QuickInitial(0)))
    front = ImageFront(config, image_runs.CLASSES)
    return Trained(ImageSampler(density), front, {"kind": kind})


def falls(loss, variables, steps=3):
    optimizer, values = tf.keras.optimizers.Adam(0.02), []
    for _ in range(steps):
        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        values.append(float(value))
    return np.all(np.isfinite(values)) and values[-1] < values[0] - 0.01


# Configurations


def test_a_configuration_takes_it_and_reads_it_back():
    config = WaveNetConfig(**SOUND)
    assert dataclass_from(WaveNetConfig, to_json(config)) == config
    assert dataclass_from(OutputConfig, to_json(OutputConfig("laplace"))) == OutputConfig("laplace")


def test_an_unknown_one_is_refused_with_those_that_are_known():
    for config in (WaveNetConfig, OutputConfig):
        with pytest.raises(ValueError, match=r"`likelihood` must be .*laplace.* got '?cauchy"):
            config(likelihood="cauchy")
    with pytest.raises(ValueError, match="components"):
        WaveNetConfig(likelihood="laplace", components=0)


# Sound


def test_a_wavenet_trains(network):
    levels = levels_of(network, 2, 60)
    batch = {"levels": tf.constant(levels), "mask": tf.ones(levels.shape)}
    assert falls(lambda: ClipLoss(network)(batch)[0], network.trainable_variables)


def test_all_samplers_of_sound_draw_the_same(network):
    request = Request(40, seed=3, rows=(0, 5))
    drawn = {name: generate(network, request, name) for name in ("naive", "cached", "fixed-point")}
    for name in ("cached", "fixed-point"):
        np.testing.assert_array_equal(drawn[name], drawn["naive"])
    np.testing.assert_array_equal(generate(network, request, "auto"), drawn["cached"])


def test_recordings_compress(network):
    front = SoundFront(SoundConfig(), 1, 0.0)
    model = Trained(SoundSampler(network, None), front, {"kind": "wavenet"})
    recordings = [row.astype(np.uint8) for row in levels_of(network, 2, 30)]
    data = model.compress(recordings, verify=True)
    for found, given in zip(model.decompress(data), recordings, strict=True):
        np.testing.assert_array_equal(found, given)


# Images


@pytest.mark.parametrize("likelihood", some_slow(IMAGES, ["gaussian-mixture"]))
def test_an_image_model_trains(likelihood):
    model = image_model(likelihood, "pixelcnn")
    batch = {
        "levels": tf.constant(images_for(model, 4), tf.int32),
        "label": tf.constant([0, 1, 2, 0]),
        "seed": tf.zeros([4, 2], tf.int32),
    }
    assert falls(lambda: ImageLoss(model.network)(batch)[0], model.network.trainable_variables)


@pytest.mark.parametrize("likelihood", IMAGES)
def test_probabilities_of_a_channel_sum_to_one_given_those_before_it(likelihood):
    output = image_model(likelihood, "pixelcnn", 3).network.pixelcnn.output.likelihood
    draws = np.random.default_rng(0).normal(size=[5, output.num_parameters])
    parameters = tf.constant(draws, tf.float32)
    before = [tf.constant([0, 3, 128, 255, 77])]
    table = output.level_log_probs(parameters, before).numpy()
    np.testing.assert_allclose(np.exp(table).sum(-1), 1.0, atol=1e-4)
    fast = output.level_probabilities(parameters, before)
    np.testing.assert_allclose(fast, np.exp(table), atol=3e-5)
    values = level_grid.value_of(tf.range(256), 256)
    rows = [tf.repeat(parameters[:1], 256, 0), tf.stack([values] * 3, -1)]
    density = output.log_densities(*rows, tf.zeros_like(rows[1]))
    np.testing.assert_allclose(np.exp(density[1:-1, 0]).sum() / 127.5, 1.0, atol=0.2)


def test_cached_images_are_those_of_whole_passes():
    model = image_model("laplace", "pixelcnn")
    drawn = model.sample(condition="cat", seed=2, num=2)
    slow = model.sample(2, model.front.size, 2, "cat", method="naive")
    np.testing.assert_array_equal(drawn, slow)
    assert np.all(np.isfinite(model.log_prob(drawn, "cat")))


COMPRESSED = [("laplace", "pixelcnn", 1), ("laplace", "multiscale", 3)]
COMPRESSED += [("gaussian-mixture", "multiscale", 1)]


@pytest.mark.parametrize(("likelihood", "kind", "channels"), some_slow(COMPRESSED, COMPRESSED[1:]))
def test_images_compress(likelihood, kind, channels):
    model = image_model(likelihood, kind, channels)
    images = images_for(model, 1)
    data = model.compress(images, conditions_for(model, 1), verify=True)
    np.testing.assert_array_equal(model.decompress(data), images)


def test_images_of_many_levels_are_refused_by_name():
    model = image_model("laplace")
    data = dataclasses.replace(model.config.data, bits=10)
    output = dataclasses.replace(model.config.output, levels=1024)
    config = dataclasses.replace(model.config, data=data, output=output)
    sampler = ImageSampler(ImageDensity(config, QuickInitial(0)))
    model = dataclasses.replace(model, model=sampler)
    with pytest.raises(UserError, match="laplace must have at most 256 levels"):
        model.compress(images_for(model, 1))


# The core


def own_model():
    tf.keras.utils.set_random_seed(0)
    network = tf.keras.Sequential(
        [
            tf.keras.Input([None, 1]),
            tf.keras.layers.Conv1D(8, 2, padding="causal", activation="tanh"),
            tf.keras.layers.Dense(6),
        ]
    )
    return onepass.Autoregressive(network, LaplaceMixture(256, 2, -6.0))


@pytest.mark.usefixtures("eager")
def test_the_core_trains_it():
    waves = np.zeros([4, 16], np.float32)
    assert onepass.fit(own_model(), waves, steps=1, batch_size=2).step == 1


LAWS = (
    *("methods_agree", "chunks_are_the_whole", "what_is_saved_is_the_model"),
    "compression_loses_nothing",
)


def test_the_core_draws_streams_stores_and_compresses_it():
    assert check_laws(own_model(), length=12, num=2, laws=LAWS) == dict.fromkeys(LAWS, "")


def test_a_training_step_of_it_is_portable(network, tmp_path):
    levels = tf.constant(levels_of(network, 1, 20))

    def nats(given):
        parameters = network(network.inputs(given["levels"]), None)
        return {"nats": network.likelihood.log_prob(parameters, given["levels"])}

    specs = {"levels": tf.TensorSpec(levels.shape, tf.int32)}
    export_function(nats, specs, tmp_path, "nats", variables=named_weights(network))
    assert (tmp_path / "nats.stablehlo").stat().st_size


# Commands


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("sounds") / "speech", train=1)


def words(sounds, run):
    given = [*options(looped(num_steps=2)), "--network.likelihood", "laplace"]
    return ["train", "wavenet-smoke", *given, "--data", str(sounds), "--workdir", str(run)]


@pytest.mark.slow  # half a minute
def test_the_commands_train_evaluate_sample_and_export_it(sounds, tmp_path, capsys):
    run, bundle = tmp_path / "run", tmp_path / "models" / "laplace" / "1"
    with unevaluated(), eagerly():
        assert onepass.main(words(sounds, run)) == 0
    assert onepass.main(["evaluate", str(run), "--data", str(sounds), "--json"]) == 0
    assert "bits_per_sample" in capsys.readouterr().out
    given = ["--out", str(bundle), "--data-licence", "CC0", "--buckets", "4", "--batches", "1"]
    assert onepass.main(["export", str(run), *given]) == 0
    assert "bits per sample" in (bundle / "card.md").read_text()
    request = ["--num", "1", "--seconds", "0.05", "--seed", "7", "--out"]
    for model, out in ((run, "live"), (bundle, "exported")):
        assert onepass.main(["sample", str(model), *request, str(tmp_path / out)]) == 0
    live, exported = (next((tmp_path / out).glob("*.wav")) for out in ("live", "exported"))
    assert live.read_bytes() == exported.read_bytes()


@pytest.mark.parametrize("preset", ["wavenet-smoke", "pixelcnn-smoke"])
def test_the_help_names_it_among_the_choices(preset, capsys):
    assert onepass.main(["train", preset, "--help"]) == 0
    assert re.search(r"likelihood \{logistic,[^}]*laplace[^}]*\}", capsys.readouterr().out)
