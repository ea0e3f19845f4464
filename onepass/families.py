"""Families of models: what one is, the table of all by kind, and verbs that work with any.

A family is one file, and one row here or one call of `register`. It is imported when a model of its
kind is met, so that a model loads nothing of the others. Its functions import TensorFlow only when
called, so help texts appear without a delay.
"""

import contextlib
import dataclasses
import functools
import json
import pkgutil
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from onepass.foundation.model_folders import kind_of, model_folder
from onepass.foundation.rules import UserError
from onepass.replicator.training.config import Preset

if TYPE_CHECKING:
    from onepass.foundation.card import ExportArguments, Measured
    from onepass.replicator.training.training_run import Recipe


def later(name: str) -> Callable[..., Any]:
    """Return a function that imports the one named MODULE:NAME when it is called."""

    def import_and_call(*args: Any, **kwargs: Any) -> Any:
        return pkgutil.resolve_name(name)(*args, **kwargs)

    return import_and_call


def module(name: str) -> Callable[[], Any]:
    """Return a function that imports the module of a name and returns it."""
    return functools.partial(pkgutil.resolve_name, name)


def _refuse_planning(_: Any) -> Any:
    raise UserError("The step cannot be planned without its teacher or data.")


def _refuse(*_: Any) -> Any:
    raise UserError("No command trains models of this kind.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A description of a family of models for the commands.

    What needs TensorFlow is imported when it is called, by `later` or `module`.
    """

    makes: str  # "sound", "images" or "arrays"
    evaluation: type  # options of `evaluate`: `model`, `data`, `as_json`, and a `check` that raises
    load: Callable[..., Any]
    evaluate: Callable[[Any, Any, Any], dict]  # of the options, the model and the data
    report: Callable[[dict], str]  # the metrics of `evaluate` as lines of text
    verb: str = ""
    presets: Mapping[str, Preset] = dataclasses.field(default_factory=dict)
    # The class of a preset's training options, a `TrainingOptions` whose first two fields are the
    # data (or teacher) and the config.
    options: Callable[[str], Any] = _refuse
    score: Callable[[Any], str] = _refuse  # a format such as "best dev {:.3f} bits/dim"
    training_data: Callable[[Path], Path | str] = _refuse  # of a model, or shipped data
    # The further arguments that the data of a configuration and command line require.
    detected: Callable[[Any, list[str]], list[str]] = lambda config, words: []
    recipe: "Callable[[str, Any], Recipe]" = _refuse  # of a preset's name and the options
    # The measures on the dev set of a run, of the export options and config.json.
    measure: "Callable[[ExportArguments, dict], Measured]" = _refuse
    card: Callable[[dict], str] = _refuse  # the text of the model card, of model.json
    config_from: Callable[[dict], Any] = _refuse_planning
    trainable: Callable[[Any], Any] = _refuse_planning  # a configuration's training step
    network: str = ""  # section of the configuration with `compute_dtype`; "": float32
    store: Callable[[], Any] | None = None  # the module with `save` and `load` of stored models
    sampler: Callable[[], Any] | None = None  # the module with the sampler that Numba compiles
    is_fast: bool = False  # whether that is faster than a bundle's program without accelerator


def run_training(
    family: ModelFamily, preset: str, arguments: list[str], parse: Callable[..., Any]
) -> int:
    """Train, or export the step with `--portable`; return 0, or 128 + the number of a signal."""
    chosen, kind = family.presets[preset], family.options(preset)
    arguments = [*arguments, *family.detected(chosen.config, arguments)]
    default = kind(tyro.MISSING, chosen.config, workdir=tyro.MISSING)
    given = parse(kind, arguments, f"onepass {family.verb} {preset}", default, chosen.about)
    teacher = getattr(given, "teacher", None)
    if teacher is not None and teacher.exists() and given.workdir.resolve() == teacher.resolve():
        raise UserError(
            f"The student needs a --workdir of its own, {given.workdir} is its teacher's."
        )
    from onepass.replicator import strategies
    from onepass.replicator.portable.export import adopt, export_portable
    from onepass.replicator.training.training_run import train

    replicator = strategies.from_environment(given.strategy)  # TensorFlow's first action
    recipe = family.recipe(preset, given)
    if given.portable:
        export_portable(recipe, given.portable, given.workdir)
        return 0
    if given.adopt and replicator.is_chief:
        step = adopt(given.adopt, given.workdir, recipe.keeps)
        print(f"{given.workdir} is now at step {step}.")
    outcome = train(recipe, given.workdir, replicator=replicator)
    if replicator.is_chief:
        out = {"sound": "sounds"}.get(family.makes, family.makes)
        following = f"Next: onepass sample {shlex.quote(str(given.workdir))} --out {out}"
        print(outcome.summary(given.workdir, family.score(given.config), following))
    return outcome.exit_status


def run_evaluate(
    family_of: Callable[[Path], ModelFamily | None],
    likely: ModelFamily,
    arguments: list[str],
    parse: Callable[..., Any],
) -> int:
    """Run `onepass evaluate ...`, with the options of the family `likely`; return the status."""
    given = parse(likely.evaluation, arguments, "onepass evaluate")
    given.check()
    found = family_of(given.model)
    family = found if found is not None and found.evaluation is likely.evaluation else likely
    model = family.load(given.model)
    data = given.data or family.training_data(given.model)
    step = {"step": model.spec.get("step")} if family.presets else {}
    named = {"model": str(given.model), **step, "data": str(data)}
    figures = named | family.evaluate(given, model, data)
    print(json.dumps(figures, indent=2) if given.as_json else family.report(figures))
    return 0


# Each family, as MODULE:NAME or itself, and its kinds of models in config.json and model.json.
FAMILIES: list[tuple[str | ModelFamily, tuple[str, ...]]] = [
    ("onepass.own_family:AUTOREGRESSIVE", ("autoregressive",)),
    ("onepass.own_family:FLOW_STUDENT", ("flow-student",)),
    ("wavenet.family:WAVENET", ("wavenet",)),
    ("distill.family:STUDENT", ("parallel-wavenet",)),
    ("pixelcnn.family:IMAGES", ("pixelcnn", "multiscale")),
    ("distill.images.family:IMAGE_STUDENT", ()),  # trains models of the kinds of IMAGES
]
STUDENT = "parallel-wavenet"  # the kind whose loader says what is wrong with an unknown model


def register(family: ModelFamily, *kinds: str) -> None:
    """Add a family, so that all commands know its models, by the kinds of these in model.json.

    Raises ValueError if a registered family has a preset or a kind of the same name.
    """
    presets = {name for other in every_family() for name in other.presets}
    taken = {*known_kinds(), *presets} & {*kinds, *family.presets}
    if taken:
        raise ValueError(f"`family` must have names of its own, got {min(taken)}.")
    FAMILIES.append((family, kinds))


def every_family() -> list[ModelFamily]:
    """Return all families, each of which is imported."""
    return [_imported(family) for family, _ in FAMILIES]


def known_kinds() -> list[str]:
    """Return the kinds of models of all families."""
    return [kind for _, kinds in FAMILIES for kind in kinds]


def of_presets(verb: str) -> dict[str, ModelFamily]:
    """Return the family of each preset of a verb such as `train`, by preset name."""
    found = [family for family in every_family() if family.verb == verb]
    return {preset: family for family in found for preset in family.presets}


def of_kind(kind: Any) -> ModelFamily | None:
    """Return the family that has models of this kind, or None."""
    return next((_imported(family) for family, kinds in FAMILIES if kind in kinds), None)


def registered(kind: Any) -> ModelFamily:
    """Return the family that has models of this kind."""
    family = of_kind(kind)
    if family is None:
        raise ValueError(f"`kind` must be that of a registered family, got {kind!r}.")
    return family


def installed(kind: Any) -> ModelFamily | None:
    """Return what `registered` does, or None where code is missing that a bundle runs without."""
    with contextlib.suppress(ImportError):
        return registered(kind)
    return None


def of_model(path: Path | str) -> ModelFamily | None:
    """Return the family of a run, a model folder or a shipped model; None if unknown."""
    return of_kind(kind_of(model_folder(path)))


def _imported(family: str | ModelFamily) -> ModelFamily:
    return pkgutil.resolve_name(family) if isinstance(family, str) else family
