"""A user's model in the folder of its bundle: what `onepass.save` writes, scanned as the bundle is.

The signatures of a bundle sample and give log-probabilities. This program also has the network, its
step and its density, with gradients: it is trained further, distilled and compressed with.
"""

import shutil
import tempfile
from pathlib import Path

from autoregressive.model import Autoregressive
from autoregressive.storage import load, save
from autoregressive.storage.save import PROGRAM_FOLDER
from replicator.runs.errors import UserError
from serving.bundles.allowed_operations import check_program

FOLDER = "autoregressive"


def write_model(model: Autoregressive, bundle: Path) -> None:
    """Write a model to the folder of a bundle, unless bundles may not hold its program."""
    folder = bundle / FOLDER
    try:
        save(model, folder)
        check_program(folder / PROGRAM_FOLDER, {})
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)


def read_model(bundle: Path) -> Autoregressive:
    """Return the model in the folder of a bundle.

    Raises:
      UserError: there is none, or its program has a disallowed operation.
    """
    if not (bundle / FOLDER).is_dir():
        raise UserError(f"{bundle} holds no model, only its sampler; export it again, or save it.")
    with tempfile.TemporaryDirectory() as root:  # so that what is checked is what is loaded
        copy = Path(root) / FOLDER
        shutil.copytree(bundle / FOLDER, copy)
        check_program(copy / PROGRAM_FOLDER, {})
        return load(copy)
