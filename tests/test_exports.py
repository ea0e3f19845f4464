"""A package exports what others use through it, and no more."""

import ast
import re

import pytest
from doc_pages import PAGES, blocks
from package_exports import FOLDERS, offered, packages, used
from processes import ROOT

EVERYWHERE = (*FOLDERS, "benchmarks", "tests")


def sources():
    """Yield `(path, text)` of every Python file and of every Python block of the documentation."""
    for folder in EVERYWHERE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")
    for page in PAGES:
        for block in blocks(page, "python"):
            yield page, block


@pytest.fixture(scope="module")
def unused():
    """Return the exports that no other file uses, as `package.name`."""
    own = {path: package for package, path in packages().items()}
    names = {p: offered(ast.parse(path.read_text("utf-8"))) for path, p in own.items()}
    unseen = {(p, name) for p in names for name in names[p]}
    for path, text in sources():
        if {name for _, name in unseen} & {*re.findall(r"\w+", text)}:
            unseen -= {(p, name) for p, name in used(ast.parse(text), names) if p != own.get(path)}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    return {f"{p}.{name}" for p, name in unseen if f"`{p.split('.')[-1]}.{name}(" not in text}


def test_every_export_of_a_package_is_used_through_it(unused):
    assert unused == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from a.b import c\n__all__ = ['c']", {"c"}),
        ("if TYPE_CHECKING:\n    from a.b import c as c", {"c"}),
        ("from a.b import c\nd = c", set()),
        ("from a.b import c\nd = c\n__all__ = ['c', 'd']", {"c", "d"}),
    ],
)
def test_exports_are_what_a_package_imports_or_lists(text, names):
    assert offered(ast.parse(text)) - {"TYPE_CHECKING"} == names


def test_each_way_to_use_an_export_is_seen_and_an_import_from_its_module_is_none():
    names = {"a": {"b"}, "r.a": {"b"}}
    for text in (
        "from a import b",
        "import a\na.b()",
        "import a as x\nx.b",
        "from r import a\na.b",
    ):
        assert {("a", "b"), ("r.a", "b")} & set(used(ast.parse(text), names)), text
    assert ("a", "b") not in set(used(ast.parse("from a.c import b"), {"a": {"b"}}))
