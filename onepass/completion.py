"""Shell completion, by tyro's own mechanism: `onepass --tyro-print-completion bash|zsh|tcsh`.

The command chooses a verb, and a verb a preset, before tyro reads the options; for the script they
are combined into one tree of sub-commands.
"""

from collections.abc import Callable
from typing import Annotated, Any, Union

import tyro

from onepass.compress_arguments import CompressArguments, DecompressArguments
from onepass.quickstart_arguments import QuickstartArguments
from onepass.sample.command import KINDS


def run(arguments: list[str]) -> None:
    """Print or write the script requested by `--tyro-print-completion SHELL`, and exit."""
    tyro.cli(tree(), prog="onepass", args=arguments)


def tree() -> Any:
    """Return the type of the whole command line, a union of sub-commands."""
    from planning.arguments import PlanArguments
    from replicator.launch.arguments import LaunchArguments
    from serving.bundles.export_arguments import ExportArguments
    from serving.command import ServeArguments

    return _union(
        {
            "quickstart": QuickstartArguments,
            "train": _union(_trainings()),
            "distill": _union(_distillations()),
            "evaluate": _of_models(_evaluations),
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
    """Return sub-commands by name, each a type that tyro reads."""
    named = (Annotated[kind, tyro.conf.subcommand(name)] for name, kind in kinds.items())
    return Union[tuple(named)]  # noqa: UP007 - of types that are known only now


def _trainings() -> dict[str, Any]:
    from pixelcnn.command import arguments_of
    from pixelcnn.presets import PRESETS as IMAGE_PRESETS
    from wavenet.command import TrainArguments
    from wavenet.presets import PRESETS as SOUND_PRESETS

    kinds: dict[str, Any] = dict.fromkeys(SOUND_PRESETS, TrainArguments)
    return kinds | {name: arguments_of(name) for name in IMAGE_PRESETS}


def _distillations() -> dict[str, Any]:
    from distill.command import DistillArguments
    from distill.images.command import arguments_of
    from distill.images.presets import PRESETS as IMAGE_PRESETS
    from distill.presets import PRESETS

    kinds: dict[str, Any] = dict.fromkeys(PRESETS, DistillArguments)
    return kinds | {name: arguments_of(name) for name in IMAGE_PRESETS}


def _of_models(arguments_of: Callable[[str], Any]) -> Any:
    """Return the options of a verb that depend on what a model makes, for each shipped model."""
    from onepass.shipped import SHIPPED

    return _union({model: arguments_of(makes) for model, makes in SHIPPED.items()})


def _evaluations(makes: str) -> Any:
    from distill import command as sounds
    from pixelcnn import command as images

    return (sounds if makes == "sound" else images).EvaluateArguments
