"""The verb `serve`, and its options; what serves is imported once they are read."""

import dataclasses
import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from replicator.runs.errors import UserError
from serving.settings import NEEDED, Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeArguments(Settings):
    """Serve the models under a folder, NAME/VERSION/ as `onepass export` writes them, over HTTP and
    gRPC. New versions are taken up while it runs. SIGTERM and Ctrl-C let every accepted request be
    answered; the exit status is 0 if all were, else 128 and the signal's number."""

    models: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODELS")]
    """Folder of models."""

    def __post_init__(self):
        """Accepts all: tyro would report what is raised here under this class's name."""


def run_serve(arguments: list[str], parse, import_tensorflow: Callable[[], None]) -> int:
    """The exit status of `onepass serve ARGUMENTS`.

    import_tensorflow: called where models run in this process.
    """
    given = parse(ServeArguments, arguments, "onepass serve")
    _check_options(given)
    _check_packages()
    if given.trust or not given.sandbox:
        import_tensorflow()
    return importlib.import_module("serving.server").serve(given, given.models)


def _check_options(given: ServeArguments) -> None:
    """Raises UserError, in the words of the command line, for settings that cannot be."""
    try:
        Settings.__post_init__(given)
    except ValueError as error:
        named = re.sub(r"`([a-z_]+)`", lambda name: f"`--{name[1].replace('_', '-')}`", str(error))
        raise UserError(named) from error


def _check_packages() -> None:
    """Raises UserError where one is missing that the server imports."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Serving needs more packages ({', '.join(missing)}): pip install 'onepass[serve]'"
        )
