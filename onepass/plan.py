"""`onepass plan`: the model that a word names, and its training step for batches of any size."""

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.errors import UserError
from foundation.model_spec import kind_of
from onepass.arguments import chosen
from planning.arguments import PlanArguments, check

if TYPE_CHECKING:
    from planning.programs import ModelPrograms

MODULES = {"wavenet": "wavenet", "pixelcnn": "pixelcnn", "multiscale": "pixelcnn"}


def run_plan(
    rest: list[str], parse: Callable[..., PlanArguments], import_tensorflow: Callable[[], None]
) -> int:
    """Run `onepass plan` and return the exit status.

    Args:
      rest: words after the verb.
      parse: reads the options from the words, `onepass.arguments.parse`.
      import_tensorflow: called before TensorFlow is needed.
    """
    given = parse(PlanArguments, rest, "onepass plan")
    check(given)
    package = _package(given.model)
    if package is not None:
        import_tensorflow()
    command = importlib.import_module("planning.command")
    with tempfile.TemporaryDirectory() as scratch:
        return command.run(given, _programs(given, package, scratch))


def _package(model: str) -> str | None:
    """Return the package that trains a run or a preset; None for an exported folder.

    Raises:
      UserError: the word names nothing that can be planned.
    """
    if (Path(model) / "manifest.json").exists():
        return None
    if not Path(model).exists():
        return MODULES[
            chosen([model], _presets(), "run, folder or preset", "onepass plan").split("-")[0]
        ]
    kind = kind_of(Path(model))
    if kind not in MODULES:
        raise UserError(
            f"{model} holds {f'a {kind}' if kind else 'no run'}: export it with `--portable FOLDER`"
            " and plan that folder."
        )
    return MODULES[kind]


def _presets() -> dict[str, Any]:
    from pixelcnn.presets import PRESETS as IMAGE_PRESETS
    from wavenet.presets import PRESETS as SOUND_PRESETS

    return {**SOUND_PRESETS, **IMAGE_PRESETS}


def _programs(given: PlanArguments, package: str | None, scratch: str) -> "ModelPrograms":
    from planning.programs import FolderPrograms, ModelPrograms

    if package is None:
        programs = FolderPrograms(Path(given.model))
        if given.batch not in (None, programs.batch):
            raise UserError(
                f"{given.model} has batches of {programs.batch} rows, got {given.batch}."
            )
        return programs
    config = _config(given.model, package)
    model = importlib.import_module(f"{package}.portable").trainable(config)
    return ModelPrograms(
        model, given.batch or config.data.batch_size, config.optimizer.accumulate, scratch
    )


def _config(model: str, package: str) -> Any:
    from foundation.run_directory import RunDirectory

    if not Path(model).exists():
        return _presets()[model].config
    stored = RunDirectory.open(Path(model)).config()
    return importlib.import_module(f"{package}.training").config_from(stored)
