"""No file imports itself by way of others, when it is imported or later inside a function."""

import ast
import graphlib
from pathlib import Path

import pytest
from test_floors import HEIGHT, absolute, modules

ROOT = Path(__file__).resolve().parent.parent


def imports(body):
    """Yields the import statements that run, inside functions too, but not for type checkers."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(node.orelse)
        else:
            for name in ("body", "orelse", "finalbody", "handlers"):
                yield from imports(getattr(node, name, None) or [])


def graph(root):
    """Returns the modules that every module imports, both by dotted name."""
    files = {}
    for _, path in modules(root):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    edges = {name: set() for name in files}
    for name, path in files.items():
        package = tuple(name.split(".")) if path.name == "__init__.py" else name.split(".")[:-1]
        for node in imports(ast.parse(path.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.Import):
                found = {alias.name for alias in node.names}
            else:
                module = absolute(node, tuple(package))
                found = {
                    f"{module}.{alias.name}" if f"{module}.{alias.name}" in files else module
                    for alias in node.names
                }
            edges[name] |= found & files.keys() - {name}
    return edges


def circle(root):
    """Returns the modules of one circle, the first one again at its end; [] where there is none."""
    try:
        graphlib.TopologicalSorter(graph(root)).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def write(root, **files):
    for name, text in files.items():
        (root / "wavenet").mkdir(exist_ok=True)
        (root / "wavenet" / f"{name}.py").write_text(text)


def test_no_file_imports_itself_by_way_of_others():
    assert circle(ROOT) == []


def test_the_files_of_every_floor_are_read():
    read = {name.split(".")[0] for name in graph(ROOT)}
    assert read == set(HEIGHT) - {"tests"}


@pytest.mark.parametrize(
    ("b", "is_circle"),
    [
        ("from wavenet import a", True),
        ("from wavenet.a import x", True),
        ("from . import a", True),
        ("def f():\n    import wavenet.a", True),
        ("try:\n    pass\nfinally:\n    import wavenet.a", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wavenet.a", False),
        ("import pixelcnn.a", False),
        ("x = 'import wavenet.a'", False),
    ],
)
def test_a_circle_is_seen(tmp_path, b, is_circle):
    write(tmp_path, a="import wavenet.b", b=b)
    assert bool(circle(tmp_path)) is is_circle
