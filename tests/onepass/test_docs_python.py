"""Every Python block of README and docs/ is run: page by page, in order, at a small size."""

import inspect
import re

import numpy as np
import pytest
from doc_pages import PAGES, blocks
from page_runs import run_blocks, smaller
from processes import ROOT

import onepass
from onepass import likelihoods
from wavenet.data import audio

REFERENCE = ROOT / "docs" / "reference"
# What a block says, and what is run in its place.
SMALLER = (
    (r"\bsteps=\d{2,}", "steps=2"),
    (r"length=16000", "length=50"),
    (r"RATE, WINDOW = 2000, 512", "RATE, WINDOW = 2000, 256"),
    (r"2 \* \[1, 2, 4, 8, 16, 32, 64, 128, 256, 512\]", "[1, 2]"),
    (r'load\("student"\)', 'load("shipped")'),  # run directories of hours
    (r'load\("drawn"\)', 'load("shipped-digits")'),
)
# Pages that say what a folder holds; this is run before them.
GIVEN = {
    "wavenet": """
import numpy as np
waveforms = np.zeros([8, 100], "float32")
held_out = waveforms[:2]
"""
}
# What is compiled (test_docs.py) and not run here, and why.
ONLY_COMPILED = {
    r"http://127\.0\.0\.1:8501": "it needs a server: test_docs_run.py asks one by the commands",
    r"^import serving$": (
        "tests/onepass/bundles/test_bundle.py does so with bundles that it exports"
    ),
    r"tensorflow_serving": "it asks TensorFlow Serving",
    r"^import torch|load_network\(|^@onepass\.aten": "torch is an extra:"
    " tests/onepass/networks/torch_networks/test_torch_pages.py runs what imports it",
    r"^from locust": "it is a file for locust, a load generator that no extra installs",
    r"^from (run|ai_edge_litert\.interpreter) import": "it runs without TensorFlow: "
    "tests/onepass/bundles/test_formats.py does so",
    r"export_stages\(": "its stages are the reader's: "
    "tests/onepass/planning/test_pipeline_execution.py "
    "has some",
}
# Pages of many blocks, each of which trains, exports or serves: a minute or more.
LONG = (
    *("reference/onepass", "reference/own_models"),
    *("tutorials/network", "tutorials/serve", "tutorials/transformer_tokens"),
)
# Pages that need torch from their first block on: tests/onepass/networks/torch_networks runs them.
OF_TORCH = ("reference/torch", "tutorials/wavenet_vocoder")
SERVED = ("tutorials/transformer_tokens",)  # a server of the folder `models` answers their blocks
SHIPPED = re.compile(r'"shipped[\w-]*"\)|load\("(student|drawn)"\)')  # models that take a minute
PUBLIC = sorted(set(onepass.__all__) - {"__version__"})


def runnable(page):
    if is_of(page, OF_TORCH):
        return []
    without = {r"http://127\.0\.0\.1:8501"} if is_of(page, SERVED) else set()
    left = ONLY_COMPILED.keys() - without
    return [
        smaller(block, SMALLER)
        for block in blocks(page, "python")
        if not any(re.search(pattern, block, re.M) for pattern in left)
    ]


def is_of(page, names):
    return page.with_suffix("").as_posix().endswith(names)


def is_slow(page):
    """Return whether a page is long or samples a shipped model."""
    if is_of(page, LONG):
        return True
    return any(SHIPPED.search(block) and ".load(" in block for block in blocks(page, "python"))


def cases():
    for page in (page for page in PAGES if runnable(page)):
        marks = [pytest.mark.slow, pytest.mark.timeout(900)] if is_slow(page) else []
        yield pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:The distutils package is deprecated")  # TensorFlow Probability
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras, when it saves a model
@pytest.mark.parametrize("page", list(cases()))
def test_the_python_of_a_page_runs(page, tmp_path):
    seconds = np.arange(8000) / 16000
    audio.write(tmp_path / "SPEECH.wav", (0.3 * np.sin(900 * seconds)).astype(np.float32), 16000)
    assert len(run_blocks(page, [GIVEN.get(page.stem, ""), *runnable(page)], tmp_path)) > 1


def sections(page):
    """Return, by the public name that it documents, the text of every section of a page."""
    parts = re.split(r"^(?:::: |## )([\w.]+).*$", page.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def undocumented(page, package, names):
    """Return the names of a package that have no section, or no example, on a page."""
    found = sections(page)
    missing = []
    for name in names:
        text = found.get(f"{package}.{name}")
        examples = [] if text is None else re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        if not any(re.search(rf"\b{name}\b", example) for example in examples):
            missing.append(name)
    return missing


def test_the_reference_has_a_section_and_an_example_for_every_public_name():
    assert undocumented(REFERENCE / "onepass.md", "onepass", PUBLIC) == []
    page = REFERENCE / "likelihoods.md"
    assert undocumented(page, "onepass.likelihoods", likelihoods.__all__) == []


def test_a_name_without_an_example_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("::: a.b\n\n```python\na.b()\n```\n\n## a.c\n\n```python\na.b()\n```\n")
    assert undocumented(page, "a", ["b", "c", "d"]) == ["c", "d"]


def described(function):
    """Return what the docstring of a function lacks: Args of each parameter, Returns."""
    text = inspect.getdoc(function) or ""
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    missing = [name for name in parameters if not re.search(rf"^  \*{{0,2}}{name}[:,]", text, re.M)]
    returns = inspect.signature(function).return_annotation not in (None, "None")
    return missing + (["Returns"] if returns and "Returns:" not in text else [])


@pytest.mark.parametrize(
    "name", [name for name in PUBLIC if inspect.isfunction(getattr(onepass, name))]
)
def test_a_public_function_documents_its_arguments_and_its_result(name):
    function = getattr(onepass, name)
    assert described(function) == []
    assert re.match(r"[A-Z][a-z]+ .*\.\n|[A-Z][a-z]+ .*\.$", inspect.getdoc(function))


def test_every_replacement_and_every_exception_is_needed():
    every = [block for page in PAGES for block in blocks(page, "python")]
    for pattern in [*ONLY_COMPILED, *(pattern for pattern, _ in SMALLER)]:
        assert any(re.search(pattern, block, re.M) for block in every), pattern
