"""Models of transformers by name: logits of torch, and the tokens of its greedy `generate`."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import onepass  # noqa: E402
from likelihoods import Categorical  # noqa: E402

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


def test_a_state_space_model_that_export_unrolls_is_refused():
    options = {"vocab_size": LEVELS, "hidden_size": WIDTH, "num_hidden_layers": 1, "state_size": 4}
    module = made("MambaForCausalLM", "MambaConfig", options | END)
    with pytest.raises(onepass.UserError, match="any length"):
        onepass.from_torch(module, inputs=torch.zeros(1, 8, dtype=torch.int64))
