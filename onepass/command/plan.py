"""The verb `plan`: find the model to plan, and its training step for batches of any size."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.command.arguments import choose_argument
from onepass.families import ModelFamily, of_kind, of_presets
from onepass.foundation.model_folders import kind_of
from onepass.foundation.rules import UserError
from onepass.planning.arguments import PlanArguments, check

if TYPE_CHECKING:
    from onepass.planning.plan import ModelPrograms


def run_plan(
    rest: list[str], parse: Callable[..., PlanArguments], import_tensorflow: Callable[[], None]
) -> int:
    """Run `onepass plan` and return the exit status."""
    given = parse(PlanArguments, rest, "onepass plan")
    check(given)
    family = _family(given.model)
    if family is not None:
        import_tensorflow()
    from onepass.planning import plan

    with tempfile.TemporaryDirectory() as scratch:
        return plan.run(given, _programs(given, family, scratch))


def _family(model: str) -> ModelFamily | None:
    if (Path(model) / "manifest.json").exists():
        return None
    if not Path(model).exists():
        presets = of_presets("train")
        return presets[choose_argument([model], presets, "run, folder or preset", "onepass plan")]
    kind = kind_of(Path(model))
    family = of_kind(kind)
    if family is None or family.verb != "train":
        raise UserError(
            f"{model} holds {f'a {kind}' if kind else 'no run'}: export it with `--portable FOLDER`"
            " and plan that folder."
        )
    return family


def _programs(given: PlanArguments, family: ModelFamily | None, scratch: str) -> "ModelPrograms":
    from onepass.planning.plan import FolderPrograms, ModelPrograms

    if family is None:
        programs = FolderPrograms(Path(given.model))
        if given.batch not in (None, programs.batch):
            raise UserError(
                f"{given.model} has batches of {programs.batch} rows, got {given.batch}."
            )
        return programs
    config = _config(given.model, family)
    model = family.trainable(config)
    return ModelPrograms(
        model, given.batch or config.data.batch_size, config.optimizer.accumulate, scratch
    )


def _config(model: str, family: ModelFamily) -> Any:
    from onepass.foundation.run_directory import RunDirectory

    if not Path(model).exists():
        return family.presets[model].config
    return family.config_from(RunDirectory.open(Path(model)).config())
