"""Write a PyTorch network to a folder that needs no torch: `python -m onepass.torch_network`.

TensorFlow is not imported, since a process that has imported it cannot import triton any more.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from onepass.foundation.rules import UserError, exit_status

PROGRAM = "python -m onepass.torch_network"


def main(words: Sequence[str] | None = None) -> int:
    """Write the network that the words name and return the exit status.

    Args:
      words: `MODULE:FACTORY --out FOLDER`; None: those of the command line.
    """
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument(
        "factory",
        metavar="MODULE:FACTORY",
        help="a function without arguments; it returns the module and its `inputs`, or the module"
        " and a dict of the other arguments of onepass.from_torch",
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder to write")
    options = parser.parse_args(words)
    try:
        module, arguments = _make_module(options.factory)
        from onepass.networks.from_torch.export import export
        from onepass.networks.from_torch.graph import write_folder

        graph = export(module, **arguments)
        folder = write_folder(graph, options.out)
    except (TypeError, ValueError) as error:
        print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        own = error if isinstance(error, UserError) else UserError(str(error))
        return exit_status(own)
    count = sum(each.array.size for each in graph.tensors.values() if each.trainable is not None)
    print(f"{folder}: {count:,} parameters, read by onepass.load_network({str(folder)!r})")
    return 0


def _make_module(name: str) -> tuple[Any, dict[str, Any]]:
    place, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(place), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"MODULE:FACTORY must name a function, got {name}: {error}.") from error
    made = factory()
    if not isinstance(made, tuple) or len(made) != 2:
        raise UserError(
            f"{name} must return a module and its inputs, or a module and a dict of arguments, got"
            f" {type(made).__name__}."
        )
    module, given = made
    return module, dict(given) if isinstance(given, Mapping) else {"inputs": given}


if __name__ == "__main__":
    sys.exit(main())
