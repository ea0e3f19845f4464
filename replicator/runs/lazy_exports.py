"""Public names of a package that are imported when they are first asked for (PEP 562).

Most modules need TensorFlow, which takes seconds to import. A package that imported them all to
offer their names would make every help text wait for it.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package that offers names of its modules, and sets `__dir__`.

    Args:
      package: its `__name__`.
      places: from each public name to the module that defines it, relative to the package.
    """

    module = sys.modules[package]

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{places[name]}"), name)
        setattr(module, name, value)  # asked for once
        return value

    setattr(module, "__dir__", lambda: sorted({*vars(module), *places}))  # noqa: B010, for mypy
    return find
