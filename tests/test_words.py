"""Identifiers and files say the field's words; docs/glossary.md has them with their sources."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"

# A retired word, and what the literature says instead.
RETIRED = {
    "ears": "feature extractor",
    "farewell": "graceful shutdown",
    "hearing": "feature extractor",
    "judge": "reference sampler",
    "meeting": "barrier",
    "painter": "sampler",
    "picture": "image",
    "pictures": "images",
    "shelf": "dataset, version set",
    "slopes": "gradients",
    "told": "metrics, conditioning",
    "turns": "phase, tile order",
    "watcher": "evaluation callback",
    "wish": "request",
    "wishes": "requests, stop request",
    "workshop": "worker pool",
}
FOLDERS = {
    *("wavenet", "pixelcnn", "distill", "serving", "onepass", "examples", "benchmarks", "tests"),
}
# Fields of stored configurations, which keep their names.
STORED = {"picture_channels"}


@functools.cache
def words_of(identifier):
    """The words of an identifier: `PictureModel` and `picture_model` have the same two."""
    spaced = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3_\2\4", identifier)
    return {word.lower() for word in re.split(r"[^A-Za-z]+", spaced) if word}


def identifiers(tree):
    """Yields `(line, identifier)` of what a file names: definitions, arguments and variables."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield 0, node.asname


def retired(root, folder):
    """Returns one line for every retired word in the names of a folder and of its files."""
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        place = path.relative_to(root)
        said = {word for part in place.with_suffix("").parts for word in words_of(part)}
        found += [f"{place}: {RETIRED[word]}, not {word}" for word in sorted(said & set(RETIRED))]
        text = path.read_text(encoding="utf-8")
        if not any(words_of(name) & RETIRED.keys() for name in {*re.findall(r"\w+", text)}):
            continue
        for line, name in identifiers(ast.parse(text)):
            for word in sorted(words_of(name) & set(RETIRED)) if name not in STORED else ():
                found.append(f"{place}:{line}: `{name}` says {word}; say {RETIRED[word]}")
    return found


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_no_name_has_a_retired_word(folder):
    assert retired(ROOT, folder) == []


def test_every_folder_of_code_is_read():
    assert {path.parent.name for path in ROOT.glob("[!.]*/__init__.py")} <= FOLDERS


def test_the_glossary_has_a_source_for_every_term():
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert len(cells) > 30 and all(len(row) == 3 and all(row) for row in cells)
    terms = [row[0].lower() for row in cells]
    assert terms == sorted(terms) and len(terms) == len(set(terms))


RETIRED_NAMES = """
def draw_pictures(): ...
class PictureModel: ...
told = 1
self.shelf = b
lambda wish: wish
import a as painter
"""
OTHERS = """
def retold(): ...
for turn in (): ...
print("picture", axes.picture())
"""


def test_names_of_files_and_in_them_are_read_and_prose_is_not(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "picture_rows.py").write_text(RETIRED_NAMES + OTHERS)
    named, *lines = retired(tmp_path, "a")
    assert named == "a/picture_rows.py: image, not picture"
    assert len(lines) == len(RETIRED_NAMES.strip().splitlines())
