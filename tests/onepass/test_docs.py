"""Commands in README and docs/ are ones that `onepass` accepts."""

import contextlib
import importlib.util
import io
import re
import shlex

import pytest
from doc_pages import PAGES, blocks, lines
from processes import ROOT

import onepass
from onepass import families
from onepass.command import verbs as command
from onepass.command.arguments import UsageError, parse
from onepass.command.sample.command import KINDS
from onepass.foundation.model_folders import SHIPPED, SOURCE_ONLY, folder, is_url

LEFT_OUT = re.compile(r"\.\.\.$|\| |^onepass (VERB|sample\|)")


def commands(path, program):
    """The lines of a page that run a program, without those that stand for many."""
    found = [line for line in lines(path) if line.startswith(program)]
    return sorted({line for line in found if not LEFT_OUT.search(line)})


PARSED = [(page, line) for page in PAGES for line in commands(page, "onepass ")]
INSTALLED = [(page, line) for page in PAGES for line in commands(page, "pip install ")]
MODULES = [(page, line) for page in PAGES for line in commands(page, "python -m ")]


def named(pairs):
    return [pytest.param(page, line, id=f"{page.stem}: {line}") for page, line in pairs]


class UnderstoodError(BaseException):
    """Raised in place of doing what was read."""


@pytest.fixture
def understood(monkeypatch):
    """True if the command reads the words; what it would do is not done."""

    def read(kind, words, program, *rest, **named):
        parse(kind, words, program, *rest, **named)
        raise UnderstoodError

    def understood(words):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return onepass.main(words) == 0  # a help text
        except UnderstoodError:
            return True

    monkeypatch.setattr(command, "parse", read)
    monkeypatch.setattr(command, "parse_for_tensorflow", read)
    return understood


def of_any_kind(words, understood, monkeypatch):
    """True if a model of sound, of images or of a user's would understand the words."""
    for kind in ("parallel-wavenet", "pixelcnn", "autoregressive"):
        family = families.of_kind(kind)
        monkeypatch.setattr("onepass.models.family_of", lambda word, family=family: family)
        if understood(words):
            return True
    return False


def of_a_served_model(words):
    """True if a served model of any kind would understand the words."""
    for kind in (KINDS[name] for name in KINDS if name.startswith("served")):
        with contextlib.suppress(UsageError):
            parse(kind, words, "onepass sample")
            return True
    return False


@pytest.mark.parametrize(("page", "line"), named(PARSED))
def test_a_command_is_understood(page, line, understood, monkeypatch, capsys):
    words = shlex.split(line)[1:]
    if words[:1] == ["launch"]:
        assert understood(words)
        launched = words[words.index("--") + 1 :]
        words = launched[1:] if launched[0] == "onepass" else ["--help"]
    if words[:1] == ["sample"] and any(map(is_url, words)):
        assert of_a_served_model(words[1:])
    elif words[:1] in (["sample"], ["evaluate"]):
        assert of_any_kind(words, understood, monkeypatch), capsys.readouterr().err
    else:
        assert understood(words), capsys.readouterr().err


@pytest.mark.parametrize(("page", "line"), named(INSTALLED))
def test_an_extra_that_is_installed_is_there(page, line):
    known = re.findall(r'^        "(\w+)": ', (ROOT / "setup.py").read_text(), re.M)
    for extras in re.findall(r"(?:onepass|\.)\[([\w,]+)\]", line):
        assert set(extras.split(",")) <= set(known)


@pytest.mark.parametrize(("page", "line"), named(MODULES))
def test_a_module_that_is_run_is_there(page, line):
    assert importlib.util.find_spec(line.split()[2]) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_on_a_page_compiles(page):
    for block in blocks(page, "python"):
        assert compile(block, str(page), "exec").co_filename == str(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_file_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    for link in (link for link in links if "://" not in link):
        assert (page.parent / link).exists(), link
    for place in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert (ROOT / place).exists() or not (ROOT / place.split("/")[0]).is_dir(), place


def test_the_first_hour_begins_with_the_first_command_of_the_readme():
    page = ROOT / "docs" / "tutorials" / "first_hour.md"
    assert blocks(page, "sh")[0].startswith(blocks(ROOT / "README.md", "sh")[0])


def test_every_shipped_model_has_a_short_row_with_its_card():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    head, _, *rows = [
        line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"
    ]
    cards = [f"`{folder(name).relative_to(ROOT)}/card.md`" for name in SHIPPED]
    assert [row[0] for row in rows] == [f"`{name}`" for name in SHIPPED]
    assert [row[-1] for row in rows] == cards
    assert all((ROOT / card.strip("`")).exists() for card in cards)
    for row in [head, *rows]:
        assert len(row) == 6
        for cell in row:
            assert len(re.sub(r"\(\[how\]\(\S+\)\)", "", cell).split()) <= 12, cell


def test_the_readme_fits_two_screens_of_lines_no_wider_than_one():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = blocks(ROOT / "README.md", "sh")[1].strip()  # of the tests, which is read as it is
    lines = [line for line in text.splitlines() if line != command]
    assert len(lines) < 120
    assert [line for line in lines if len(line) > 100 and "](" not in line] == []
    assert [line for line in lines if len(line) > 100 and line[:1] != "|"] == []


def test_the_readme_has_one_table_of_numbers():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    counted = [line for line in text.splitlines() if re.match(r"\| \**[\d.,]+\** \|", line)]
    assert len(counted) == 6
    found = [line for line in text.splitlines() if line[:1] == "|" and re.search(r"\d", line)]
    assert found == counted


def headings(path):
    """Return the anchors of a page, as its headings make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = set(re.findall(r"\{ #([\w-]+) \}", text))
    for title in re.findall(r"^#+ (.*)$", text, re.M):
        named.add(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"))
    return named


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_an_anchor_that_a_page_outside_of_the_docs_names_is_there(name):
    links = re.findall(r"\]\(([^)#\s]+\.md)#([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    for path, anchor in links:
        if "reference/onepass.md" not in path:  # its sections are made of the docstrings
            assert anchor in headings(ROOT / path), (path, anchor)


def test_models_of_the_source_alone_are_in_no_list_but_loaded_by_name():
    pages = ("README.md", "docs/index.md", "docs/models.md", "onepass/command/quickstart.py")
    helps = ("pixelcnn/family.py", "onepass/command/sample/command.py")
    for shown in (*((ROOT / page).read_text(encoding="utf-8") for page in pages + helps), *SHIPPED):
        assert not any(name in shown for name in SOURCE_ONLY)
    for name in SOURCE_ONLY:
        assert (folder(name) / "model.json").exists()


def test_commands_are_found_at_all():
    assert len(PARSED) > 60 and len(INSTALLED) > 5 and len(MODULES) > 3


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        ("train wavenet-smoke --data a --workdir b", True),
        ("train wavenet-smoke --data a --workdir b --no-such-option 3", False),
        ("train wavenet-smole --data a --workdir b", False),
        ("train wavenet-smoke --help", True),
    ],
)
def test_what_is_not_understood_is_seen(line, holds, understood):
    assert understood(line.split()) is holds
