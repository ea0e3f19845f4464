"""r9y9's wavenet_vocoder, untouched: its parameters, and samples of its derived step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
wavenet_vocoder = pytest.importorskip("wavenet_vocoder")

import onepass  # noqa: E402
from onepass.likelihoods import Categorical, MuLaw  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # an old weight_norm

SMALL = {"layers": 4, "stacks": 2, "kernel_size": 3, "residual_channels": 8, "gate_channels": 16}
SMALL |= {"skip_out_channels": 8}


def test_a_checkpoint_with_one_hot_symbols_a_speaker_and_mel_frames_is_untouched(tmp_path):
    options = {"out_channels": 256, "scalar_input": False, "gin_channels": 4, "n_speakers": 3}
    options |= {"cin_channels": 5, "upsample_conditional_features": True, "upsample_scales": [2, 3]}
    torch.manual_seed(1)
    state = wavenet_vocoder.WaveNet(**SMALL, **options).state_dict()
    torch.save({"state_dict": state}, tmp_path / "checkpoint")
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

    before = {name: weight.numpy() for name, weight in network.weights.items()}
    onepass.fit(model, (x, given), steps=1)
    changed = [name for name, old in before.items() if np.any(network.weights[name] != old)]
    assert any("upsample_conv" in name for name in changed)
