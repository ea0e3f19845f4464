"""Names that the `__init__.py` of a package offers, and where they are used through it."""

import ast
import functools

from processes import ROOT

FOLDERS = ("wavenet", "pixelcnn", "distill", "serving", "onepass", "examples")


@functools.cache
def packages():
    """Return the path of every package's `__init__.py` by the package's dotted name."""
    found = (path for name in FOLDERS for path in sorted((ROOT / name).rglob("__init__.py")))
    return {".".join(path.parent.relative_to(ROOT).parts): path for path in found}


def offered(tree):
    """Return the names that a package imports for others: it does not use them itself."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    bound = {alias.asname or alias.name for node in imports for alias in node.names}
    loaded = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    listed = {
        item.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for item in ast.walk(node.value)
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }
    return {name for name in bound - loaded if "." not in name} | (listed - {"__version__"})


def used(tree, names):
    """Yield `(package, name)` of the exports that a file uses through their package."""
    aliases, exported, nodes = {}, set().union(*names.values()), [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module, alias.name
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name] = alias.name
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in exported:
            text = ast.unparse(node.value)
            package = aliases.get(text, text)
            if node.attr in names.get(package, ()):
                yield package, node.attr
