"""The Python of README and of the tutorials that needs PyTorch runs, with random weights."""

import re
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from doc_pages import PAGES, blocks  # noqa: E402
from page_runs import run_blocks, smaller  # noqa: E402
from processes import ROOT  # noqa: E402

from onepass import torch_network  # noqa: E402
from onepass.networks.from_torch.table import RULES  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),  # old weight norms, configurations of transformers
    pytest.mark.timeout(600),
]

WHOLE = ("reference/torch.md", "tutorials/wavenet_vocoder.md")  # blocks that follow each other
STANDALONE = [
    pytest.param(page, block, id=f"{page.stem}-{number}")
    for page in PAGES
    if page.name != "README.md" and not page.as_posix().endswith(WHOLE)
    for number, block in enumerate(blocks(page, "python"))
    if re.search("^import torch", block, re.M)
]
WORDS = ("The", "last", "train", "left")
# What a block says, and what is run in its place.
SMALLER = (
    (r'"layers": 24, "stacks": 4', '"layers": 4, "stacks": 2'),
    (r'(_channels"): (128|256)\b', r"\1: 8"),
    (r"steps=\d+", "steps=2"),
    (r"length=16000", "length=60"),
    (r"\[4, 4, 4, 4\]", "[2, 3]"),
    (r"\* 256\b", "* 6"),
)


@pytest.fixture
def pretrained(monkeypatch):
    """A small GPT-2 and a tokenizer of a few words in place of those that are downloaded."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    def model(name):
        sizes = {"n_embd": 4, "n_layer": 1, "n_head": 2}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))

    def tokenizer(name):
        words = Tokenizer(models.WordLevel(dict(zip(WORDS, range(4), strict=True)), "The"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        return transformers.PreTrainedTokenizerFast(tokenizer_object=words)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", tokenizer)


@pytest.mark.parametrize(("page", "block"), STANDALONE)
def test_a_block_that_imports_torch_runs(page, block, tmp_path):
    assert run_blocks(page, ["import onepass", block], tmp_path)["network"].weights


def test_the_first_python_of_the_readme_samples_after_a_prompt_in_twelve_lines(
    pretrained, tmp_path, capsys
):
    block = blocks(ROOT / "README.md", "python")[0]
    assert len([line for line in block.splitlines() if line]) <= 12
    found = run_blocks("README", [block.replace("length=200", "length=20")], tmp_path)
    assert found["rows"].shape == (1, 20)
    assert found["rows"][0, :3].tolist() == [0, 1, 2]
    assert capsys.readouterr().out.startswith("The last train")


def test_the_tutorial_of_a_checkpoint_runs_from_loading_to_serving(tmp_path):
    wavenet_vocoder = pytest.importorskip("wavenet_vocoder")
    torch.manual_seed(1)
    sizes = {"layers": 4, "stacks": 2, "residual_channels": 8, "gate_channels": 8}
    module = wavenet_vocoder.WaveNet(
        out_channels=30, scalar_input=True, skip_out_channels=8, **sizes
    )
    state = {"state_dict": module.state_dict(), "optimizer": None, "global_step": 320000}
    # The format of the files that are published.
    torch.save(state, tmp_path / "checkpoint.pth", _use_new_zipfile_serialization=False)
    given = """
import numpy as np
waveforms = np.random.default_rng(0).uniform(-0.5, 0.5, [8, 60]).astype("float32")
mel = np.zeros([1, 10, 80], "float32")
"""
    page = ROOT / "docs" / "tutorials" / "wavenet_vocoder.md"
    sources = [given, *(smaller(block, SMALLER) for block in blocks(page, "python"))]
    found = run_blocks(page, sources, tmp_path)
    asked, student = found["asked"], found["student"]
    np.testing.assert_allclose(asked, student.sample(num=2, length=60, seed=1), atol=1e-4)
    assert found["network"].conditions["c"].hop == 6 and found["sounds"].shape == (1, 60)


def test_every_replacement_is_needed():
    text = (ROOT / "docs" / "tutorials" / "wavenet_vocoder.md").read_text(encoding="utf-8")
    assert all(re.search(pattern, text) for pattern, _ in SMALLER)


FACTORY = """
import torch
def network():
    return torch.nn.Linear(1, 2), torch.zeros(1, 8, 1)
"""


def test_the_page_on_pytorch_runs(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    page = ROOT / "docs" / "reference" / "torch.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_models.py").write_text(FACTORY)
    (command,) = (block for block in blocks(page, "sh") if block.startswith("python -m"))
    assert torch_network.main(command.split()[3:]) == 0
    before, namespace = dict(RULES), {}
    try:
        for block in blocks(page, "python"):
            exec(compile(block, str(page), "exec"), namespace)
    finally:
        RULES.clear()
        RULES.update(before)
        sys.modules.pop("my_models", None)
    assert namespace["rows"].shape == (2, 40) and namespace["wave"].shape == (1, 40)
    assert namespace["vocoder"].conditions["mel"].hop == 4
    assert namespace["network"].input_signature[0].shape.as_list() == [None, None, 1]
