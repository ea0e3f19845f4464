"""Import public names of a package on first access (PEP 562).

Help texts would otherwise wait for TensorFlow, which most modules need.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str], prefix: str | None = None
) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports names on first access; set its `__dir__`.

    `modules` maps a name to the module, after `prefix`, that defines it or is exported under it.
    """
    module, prefix = sys.modules[package], f"{package}." if prefix is None else prefix

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = importlib.import_module(f"{prefix}{modules[name]}")
        value = getattr(found, name, found)
        setattr(module, name, value)  # the next access does not call `find`
        return value

    setattr(module, "__dir__", lambda: sorted({*vars(module), *modules}))  # noqa: B010, for mypy
    return find
