"""The order in which TensorFlow and triton, which torch's export imports, can be loaded.

LLVM ends a process that imports TensorFlow first and triton afterwards; the other order works.
"""

import importlib
import importlib.util
import sys

from onepass.foundation.rules import UserError


def import_triton() -> None:
    """Import triton, if it is installed, before TensorFlow.

    Raises:
      UserError: triton is installed and TensorFlow has been imported already.
    """
    if "triton" in sys.modules or importlib.util.find_spec("triton") is None:
        return
    if "tensorflow" in sys.modules:
        raise UserError(
            "torch must be imported before TensorFlow, or its triton ends this process: put"
            " `import torch` above `import onepass` and `import tensorflow`, or write a folder by"
            " `python -m onepass.torch_network` for `onepass.load_network`."
        )
    importlib.import_module("triton")


def follow_torch() -> None:
    """Import triton if torch has been imported, and TensorFlow not yet."""
    if "torch" in sys.modules and "tensorflow" not in sys.modules:
        import_triton()
