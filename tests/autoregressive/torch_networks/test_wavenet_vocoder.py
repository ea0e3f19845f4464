"""r9y9's wavenet_vocoder, untouched: its parameters, and samples of its derived step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
wavenet_vocoder = pytest.importorskip("wavenet_vocoder")

import tensorflow as tf  # noqa: E402

import onepass  # noqa: E402
from likelihoods import Categorical, LogisticMixture, MuLaw  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # an old weight_norm

SMALL = {"layers": 4, "stacks": 2, "kernel_size": 3, "residual_channels": 8, "gate_channels": 16}
SMALL |= {"skip_out_channels": 8}


def vocoder(**options):
    torch.manual_seed(1)
    return wavenet_vocoder.WaveNet(**SMALL, **options).eval()


def test_a_checkpoint_of_a_mixture_is_drawn_as_whole_passes_draw(tmp_path):
    torch.save(
        {"state_dict": vocoder(out_channels=9, scalar_input=True).state_dict()}, tmp_path / "c"
    )
    module = wavenet_vocoder.WaveNet(**SMALL, out_channels=9, scalar_input=True)
    module.load_state_dict(torch.load(tmp_path / "c", weights_only=True)["state_dict"])
    module.eval()
    network = onepass.from_torch(module, inputs=torch.zeros(1, 1, 40))
    x = np.random.default_rng(0).uniform(-1, 1, (2, 50, 1)).astype(np.float32)
    with torch.no_grad():
        wanted = module(torch.tensor(x.transpose(0, 2, 1))).numpy().transpose(0, 2, 1)
    assert np.abs(network(x).numpy() - wanted).max() < 1e-5
    model = onepass.Autoregressive(network, LogisticMixture(levels=65536, components=3))
    drawn = [model.sample(1, 40, seed=1, method=method) for method in ("cached", "naive")]
    np.testing.assert_allclose(*drawn, atol=1e-3)


def test_a_mixture_has_the_parameters_and_the_density_of_the_loss_that_trained_it():
    from wavenet_vocoder.mixture import discretized_mix_logistic_loss

    draws = np.random.default_rng(0)
    parameters = draws.normal(size=(2, 50, 9)).astype(np.float32)
    levels = np.concatenate([[0, 255], draws.integers(0, 256, 98)]).reshape(2, 50)
    loss = discretized_mix_logistic_loss(
        torch.tensor(parameters.transpose(0, 2, 1)),
        torch.tensor(levels[..., None] / 127.5 - 1, dtype=torch.float32),
        num_classes=256,
        log_scale_min=-1.0,
        reduce=False,
    )
    mixture = LogisticMixture(levels=256, components=3, min_log_scale=-1.0)
    found = mixture.log_prob(tf.constant(parameters), tf.constant(levels, tf.int32))
    np.testing.assert_allclose(found, -loss[..., 0], atol=1e-3)


def test_one_hot_symbols_and_a_speaker_are_a_function_of_the_network():
    options = {"out_channels": 256, "scalar_input": False, "gin_channels": 4, "n_speakers": 3}
    module = vocoder(**options)
    speaker = torch.zeros(2, 1, dtype=torch.int64)
    inputs = torch.zeros(2, 256, 40)
    converted = onepass.from_torch(module, inputs=inputs, conditions={"g": speaker})

    def network(symbols, speaker):
        return converted(tf.one_hot(symbols, 256), speaker)

    model = onepass.Autoregressive(
        network,
        Categorical(256),
        codec=MuLaw(256),
        inputs=tf.TensorSpec([None, None], tf.int32),
        conditions={"speaker": tf.TensorSpec([None, 1], tf.int32)},
    )
    given = {"speaker": np.array([[0], [2]])}
    drawn = [
        model.sample(2, 30, seed=1, condition=given, method=method)
        for method in ("cached", "naive")
    ]
    np.testing.assert_allclose(*drawn, atol=1e-6)
    assert len(model.trainable_variables()) == len(converted.weights)


class Upsampling(torch.nn.Module):
    """The upsampling network of a vocoder, from [batch, channels, frames] to [..., time]."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, mel):
        mel = mel[:, None]
        for layer in self.layers:
            mel = layer(mel)
        return mel[:, 0]


def test_a_mel_spectrogram_is_upsampled_once_by_a_network_of_its_own():
    scales = {"upsample_conditional_features": True, "upsample_scales": [2, 3]}
    module = vocoder(out_channels=9, scalar_input=True, cin_channels=5, **scales)
    x, mel = torch.rand(2, 1, 42) * 2 - 1, torch.rand(2, 5, 7)
    with torch.no_grad():
        wanted = module(x, c=mel).numpy().transpose(0, 2, 1)
    upsampling = onepass.from_torch(Upsampling(module.upsample_conv).eval(), inputs=mel)
    module.upsample_conv = None
    network = onepass.from_torch(module, inputs=x, conditions={"c": torch.zeros(2, 5, 42)})
    condition = upsampling(mel.numpy().transpose(0, 2, 1)).numpy()
    assert condition.shape == (2, 42, 5)
    found = network(x.numpy().transpose(0, 2, 1), condition)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    model = onepass.Autoregressive(network, LogisticMixture(levels=65536, components=3))
    drawn = [
        model.sample(2, 42, seed=1, condition=condition, method=method)
        for method in ("cached", "naive")
    ]
    np.testing.assert_allclose(*drawn, atol=1e-3)
