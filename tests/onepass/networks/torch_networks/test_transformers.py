"""Models of transformers by name: logits of torch, and the tokens of its greedy `generate`."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import onepass  # noqa: E402
from onepass.likelihoods import Categorical  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

LEVELS, WIDTH = 64, 32
END = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": None}
PLAIN = {
    **END,
    "vocab_size": LEVELS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
}
GROUPED = PLAIN | {"num_key_value_heads": 2}
WINDOWED = GROUPED | {"head_dim": 8, "sliding_window": 16}
SHORT = {"vocab_size": LEVELS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4, **END}
GPT_2 = {"vocab_size": LEVELS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, **END}
OPT = PLAIN | {"ffn_dim": 64, "word_embed_proj_dim": WIDTH, "pad_token_id": 1}
MODELS = {
    "GPT2LMHeadModel": ("GPT2Config", GPT_2),
    "LlamaForCausalLM": ("LlamaConfig", GROUPED),
    "Qwen2ForCausalLM": ("Qwen2Config", GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", GROUPED | {"head_dim": 8}),
    "MistralForCausalLM": ("MistralConfig", GROUPED | {"sliding_window": 16}),
    "Gemma2ForCausalLM": ("Gemma2Config", WINDOWED),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", WINDOWED),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", PLAIN),
    "OPTForCausalLM": ("OPTConfig", OPT),
    "BloomForCausalLM": ("BloomConfig", SHORT),
    "PhiForCausalLM": ("PhiConfig", PLAIN),
    "SmolLM3ForCausalLM": ("SmolLM3Config", GROUPED | {"pad_token_id": LEVELS - 1}),
    "FalconForCausalLM": ("FalconConfig", PLAIN),
    "MixtralForCausalLM": ("MixtralConfig", GROUPED | {"num_local_experts": 4}),
    "GPTNeoForCausalLM": (
        "GPTNeoConfig",
        {
            **END,
            "vocab_size": LEVELS,
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 16,
        },
    ),
}


def made(name, config, options):
    torch.manual_seed(3)
    return getattr(transformers, name)(getattr(transformers, config)(**options)).eval()


def greedy(module, start, count):
    ids = torch.tensor(start)
    with torch.no_grad():
        found = module.generate(
            ids, max_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(ids)
        )
    return found.numpy()[:, ids.shape[1] :]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_those_of_torch(name):
    module = made(name, *MODELS[name])
    network = onepass.from_torch(module, inputs=torch.zeros(1, 8, dtype=torch.int64))
    for shape in ((2, 70), (1, 9), (1, 1)):
        tokens = np.random.default_rng(0).integers(0, LEVELS, shape)
        with torch.no_grad():
            wanted = module(torch.tensor(tokens), use_cache=False).logits.numpy()
        assert np.abs(network(tokens).numpy() - wanted).max() < 1e-5
    model = onepass.Autoregressive(network, Categorical(LEVELS), start=0)
    drawn = model.sample(num=1, length=70, seed=1, top_k=1, method="cached")
    np.testing.assert_array_equal(drawn, greedy(module, [[0]], 70))
    # A prefix is read at once; the lengths lie on both sides of a state's horizon of 64.
    prefix = np.random.default_rng(1).integers(1, LEVELS, (2, 60))
    drawn = model.sample(num=2, length=66, seed=1, top_k=1, prefix=prefix, method="cached")
    start = np.concatenate([np.zeros((2, 1), np.int64), prefix], 1)
    np.testing.assert_array_equal(drawn[:, 60:], greedy(module, start, 6))


class Codes(torch.nn.Module):
    """MusicGen's decoder over codes [batch, time, codebooks], given an encoded text."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, codes, text, mask):
        batch, time, count = codes.shape
        ids = codes.transpose(1, 2).reshape(batch * count, time)
        text = {"encoder_hidden_states": text, "encoder_attention_mask": mask}
        logits = self.decoder(ids, **text, use_cache=False).logits
        return logits.view(batch, count, time, -1).transpose(1, 2)


def test_the_codebooks_of_musicgen_are_channels_and_its_text_is_a_memory():
    options = {"vocab_size": LEVELS, "hidden_size": WIDTH, "num_hidden_layers": 2}
    options |= {"num_attention_heads": 4, "ffn_dim": 64, "num_codebooks": 4}
    ends = {"pad_token_id": LEVELS, "bos_token_id": LEVELS}
    module = Codes(made("MusicgenForCausalLM", "MusicgenDecoderConfig", options | ends)).eval()
    conditions = {"text": torch.zeros(1, 5, WIDTH), "mask": torch.ones(1, 5, dtype=torch.int64)}
    inputs = torch.zeros(1, 8, 4, dtype=torch.int64)
    network = onepass.from_torch(module, inputs=inputs, conditions=conditions)
    generator = np.random.default_rng(0)
    codes = generator.integers(0, LEVELS, (2, 20, 4))
    text = generator.normal(size=(2, 6, WIDTH)).astype(np.float32)
    mask = (np.arange(6)[None] < [[6], [3]]).astype(np.int64)
    with torch.no_grad():
        wanted = module(*map(torch.tensor, (codes, text, mask))).numpy().reshape(2, 20, -1)
    assert np.abs(network(codes, text, mask).numpy() - wanted).max() < 1e-5
    model = onepass.Autoregressive(network, Categorical(LEVELS), start=LEVELS)
    given = {"text": text, "mask": mask}
    drawn = model.sample(2, 70, seed=1, condition=given, method="cached")
    naive = model.sample(2, 12, seed=1, condition=given, method="naive")
    np.testing.assert_array_equal(drawn[:, :12], naive)
