"""Shell completion scripts from tyro: `onepass --tyro-print-completion bash|zsh|tcsh`.

Normally the verb and the preset are chosen before tyro parses the options; for the script, verbs,
presets and options are combined into one tree of subcommands.
"""

from collections.abc import Callable
from typing import Annotated, Any, Union

import tyro

from onepass.command.arguments import CompressArguments, DecompressArguments, QuickstartArguments
from onepass.command.sample.command import KINDS
from onepass.families import every_family, of_presets
from onepass.models import list_models


def run(arguments: list[str]) -> None:
    """Print or write the script requested by `--tyro-print-completion SHELL`, and exit."""
    tyro.cli(tree(), prog="onepass", args=arguments)


def tree() -> Any:
    """Return the type of the command line, a union of all verbs but `bench` and `pipeline`."""
    from onepass.bundles.export_arguments import ExportArguments
    from onepass.planning.arguments import PlanArguments
    from onepass.replicator.launch.command import LaunchArguments
    from serving.command import ServeArguments

    evaluations = {family.makes: family.evaluation for family in every_family()}
    return _union(
        {
            "quickstart": QuickstartArguments,
            "train": _of_presets("train"),
            "distill": _of_presets("distill"),
            "evaluate": _of_models(evaluations.__getitem__),
            "sample": _of_models(KINDS.__getitem__),
            "compress": CompressArguments,
            "decompress": DecompressArguments,
            "export": ExportArguments,
            "serve": ServeArguments,
            "plan": PlanArguments,
            "launch": LaunchArguments,
        }
    )


def _union(kinds: dict[str, Any]) -> Any:
    named = (Annotated[kind, tyro.conf.subcommand(name)] for name, kind in kinds.items())
    return Union[tuple(named)]  # noqa: UP007 - of types that are known only now


def _of_presets(verb: str) -> Any:
    return _union({name: family.options(name) for name, family in of_presets(verb).items()})


def _of_models(arguments_of: Callable[[str], Any]) -> Any:
    return _union({model.name: arguments_of(model.makes) for model in list_models()})
