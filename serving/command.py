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
from replicator.runs.model_spec import SPEC_FILE, kind_of
from serving.bundles.export_arguments import ExportArguments
from serving.engine.version_scanner import MANIFEST, VERSION
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
    check_models_folder(given.models)
    _check_packages()
    if given.trust or not given.sandbox:
        import_tensorflow()
    return importlib.import_module("serving.server").serve(given, given.models)


def run_export(arguments: list[str], parse) -> int:
    """Run `onepass export ARGUMENTS`; return the exit status."""
    given = parse(ExportArguments, arguments, "onepass export")
    from serving.bundles.export import export  # needs TensorFlow, unlike the help text

    for line in export(given):
        print(line)
    return 0


def check_models_folder(path: Path) -> None:
    """Return nothing; raise UserError that says what to pass in place of a run or of one model.

    A folder that holds nothing yet is fine: the server waits for models.
    """
    if (path / MANIFEST).exists():
        is_in_place = VERSION.fullmatch(path.resolve().name)
        name = (
            f"the folder of all models, {path.resolve().parents[1]}"
            if is_in_place
            else ("MODELS, with this folder moved to MODELS/NAME/1")
        )
        raise UserError(f"{path} is one version of a model; pass {name}.")
    versions = (each for each in path.glob("*") if VERSION.fullmatch(each.name))
    if any((version / MANIFEST).exists() for version in versions):
        above = path.resolve().parent
        raise UserError(f"{path} is a single model; name the folder above it, {above}.")
    kind = kind_of(path)
    if kind is not None:
        what = "a model folder" if (path / SPEC_FILE).exists() else "a run"
        raise UserError(
            f"{path} is {what} of a {kind}, not yet to be served: `onepass export {path} --out "
            "MODELS/NAME/1` makes a bundle, and MODELS is what to pass."
        )


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
