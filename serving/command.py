"""The commands `serve` and `export`; their options are parsed before the rest is imported."""

import dataclasses
import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from onepass.bundles.export_arguments import ExportArguments
from onepass.bundles.manifest import MANIFEST, is_version
from onepass.foundation.model_folders import SPEC_FILE, kind_of
from onepass.foundation.rules import UserError
from serving.settings import NEEDED, Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeArguments(Settings):
    """Serve models over HTTP and gRPC.

    MODELS contains folders NAME/VERSION/, as `onepass export` writes them; new versions are loaded
    while the server runs. After SIGTERM or Ctrl-C, the server answers accepted requests for up to
    `--drain-seconds`; the exit status is 0 if all were answered, else 128 plus the signal's number.
    """

    models: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODELS")]
    """Folder of models."""

    def __post_init__(self) -> None:
        """Accept all values: tyro would report an error raised here under this class's name."""


def run_serve(
    arguments: list[str],
    parse: Callable[..., ServeArguments],
    import_tensorflow: Callable[[], None],
) -> int:
    """Run `onepass serve ARGUMENTS`, importing TensorFlow if models run here; return the status."""
    given = parse(ServeArguments, arguments, "onepass serve")
    _check_options(given)
    check_models_folder(given.models)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        needed = f"Serving needs more packages ({', '.join(missing)})"
        raise UserError(f"{needed}: pip install 'onepass[serve]'")
    if given.trust or not given.sandbox:
        import_tensorflow()
    from serving.server import serve

    return serve(given, given.models)


def run_export(arguments: list[str], parse: Callable[..., ExportArguments]) -> int:
    """Run `onepass export ARGUMENTS`; return the exit status."""
    given = parse(ExportArguments, arguments, "onepass export")
    # Needs TensorFlow, unlike the help text.
    from onepass.bundles.export_command import write_export

    for line in write_export(given):
        print(line)
    return 0


def check_models_folder(path: Path) -> None:
    """Raise UserError, which says what to pass, if a path is a run or a single model."""
    if (path / MANIFEST).exists():
        name = "MODELS, with this folder moved to MODELS/NAME/1"
        if is_version(path.resolve().name):
            name = f"the folder of all models, {path.resolve().parents[1]}"
        raise UserError(f"{path} is one version of a model; pass {name}.")
    if any(is_version(each.parent.name) for each in path.glob(f"*/{MANIFEST}")):
        above = path.resolve().parent
        raise UserError(f"{path} is a single model; name the folder above it, {above}.")
    kind = kind_of(path)
    if kind is not None:
        what = "a model folder" if (path / SPEC_FILE).exists() else "a run"
        raise UserError(
            f"{path} is {what} of a {kind}, which cannot be served: export it with `onepass export "
            f"{path} --out MODELS/NAME/1`, and pass MODELS."
        )


def _check_options(given: ServeArguments) -> None:
    try:
        Settings.__post_init__(given)
    except ValueError as error:
        words = re.split(r"`([a-z_]+)`", str(error))
        words[1::2] = [f"`--{field.replace('_', '-')}`" for field in words[1::2]]
        raise UserError("".join(words)) from error
