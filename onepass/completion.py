"""Shell completion, by tyro's own mechanism: `onepass --tyro-print-completion bash|zsh|tcsh`.

The command chooses a verb, and a verb a preset, before tyro reads the options; for the script they
are combined into one tree of sub-commands.
"""

from typing import Annotated, Any, Union

import tyro

from onepass.compress_arguments import CompressArguments, DecompressArguments
from onepass.quickstart_arguments import QuickstartArguments


def run(arguments: list[str]) -> None:
    """Print or write the script requested by `--tyro-print-completion SHELL`, and exit."""
    tyro.cli(tree(), prog="onepass", args=arguments)


def tree() -> Any:
    """Return the type of the whole command line, a union of sub-commands."""
    from replicator.launch.arguments import LaunchArguments
    from replicator.planning.arguments import PlanArguments
    from serving.bundles.export_arguments import ExportArguments
    from serving.command import ServeArguments

    return _union(
        {
            "quickstart": QuickstartArguments,
            "train": _union(_trainings()),
            "distill": _union(_distillations()),
            "evaluate": _of_models("EvaluateArguments"),
            "sample": _of_models("SampleArguments"),
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


def _of_models(name: str) -> Any:
    """Return the options of a verb that depend on the model, for each shipped model."""
    from distill import command as sounds
    from onepass.shipped import SHIPPED
    from pixelcnn import command as images

    return _union(
        {
            model: getattr(sounds if kind == "sound" else images, name)
            for model, kind in SHIPPED.items()
        }
    )
