"""r9y9's wavenet_vocoder, untouched: its parameters, and samples of its derived step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
wavenet_vocoder = pytest.importorskip("wavenet_vocoder")

import onepass  # noqa: E402
from onepass.likelihoods import Categorical, LogisticMixture, MuLaw  # noqa: E402

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


def test_a_checkpoint_with_one_hot_symbols_a_speaker_and_mel_frames_is_untouched(tmp_path):
    options = {"out_channels": 256, "scalar_input": False, "gin_channels": 4, "n_speakers": 3}
    options |= {"cin_channels": 5, "upsample_conditional_features": True, "upsample_scales": [2, 3]}
    torch.save({"state_dict": vocoder(**options).state_dict()}, tmp_path / "checkpoint")
    module = wavenet_vocoder.WaveNet(**SMALL, **options)
    module.load_state_dict(torch.load(tmp_path / "checkpoint", weights_only=True)["state_dict"])
    examples = {"c": torch.zeros(1, 5, 7), "g": torch.zeros(1, 1, dtype=torch.int64)}
    network = onepass.from_torch(
        module.eval(), inputs=torch.zeros(1, 256, 42), conditions=examples, one_hot=True
    )
    assert (network.conditions["c"].hop, network.conditions["c"].extra) == (6, 0)
    model = onepass.Autoregressive(network, Categorical(256), codec=MuLaw(256))
    given = {"c": np.random.default_rng(0).random([2, 5, 5]), "g": np.array([[0], [2]])}

    x = model.sample(2, 28, 1, given)
    for method in ("cached", "naive"):
        np.testing.assert_allclose(model.sample(2, 28, 1, given, method=method), x, atol=1e-6)
    parts = model.stream(length=28, seed=1, condition=given, num=2, chunk=10)
    np.testing.assert_allclose(np.concatenate(list(parts), 1), x, atol=1e-6)

    symbols = torch.tensor(np.pad(model.symbols(x).numpy(), [[0, 0], [0, 2]])).long()
    shifted = torch.cat([torch.full([2, 1], 128), symbols[:, :-1]], 1)
    vectors = torch.nn.functional.one_hot(shifted, 256).float().transpose(1, 2)
    mel = torch.tensor(given["c"].transpose(0, 2, 1)).float()
    with torch.no_grad():
        logits = module(vectors, mel, torch.tensor(given["g"]))
        wanted = -torch.nn.functional.cross_entropy(logits, symbols, reduction="none")
    nats = model.log_prob(x, given)
    np.testing.assert_allclose(nats, wanted[:, :28].numpy(), 1e-4, 1e-4)

    data = onepass.compress(model, x, condition=given)
    np.testing.assert_allclose(onepass.decompress(model, data, condition=given), x, atol=1e-6)
    onepass.save(model, tmp_path / "saved")
    loaded = onepass.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded.sample(2, 28, 1, given), x, atol=1e-6)
    before = {name: weight.numpy() for name, weight in network.weights.items()}
    onepass.fit(model, (x, given), steps=1)
    changed = [name for name, old in before.items() if np.any(network.weights[name] != old)]
    assert any("upsample_conv" in name for name in changed)
