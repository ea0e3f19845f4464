"""One object per family of models, and the verbs of the command line for any family.

Families are registered in `distill.families`. Their functions import TensorFlow only when they are
called, so that help texts appear at once.
"""

import dataclasses
import functools
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from foundation.errors import UserError
from replicator.training.config import Preset

if TYPE_CHECKING:
    from foundation.card import ExportArguments, Measured
    from replicator.training.recipe import Recipe


def _unplanned(_: Any) -> Any:
    raise UserError("The step cannot be planned without its teacher or data.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The functions of a family of models, whose modules need TensorFlow.

    Attributes:
      recipe: returns what to train, given the preset's name and the options.
      load: returns the model of a run directory, a model folder or a shipped name.
      evaluate: returns the metrics of a model, given the options, the model and the data.
      report: returns these metrics as lines of text.
      measure: measures a run on dev for its model folder, given the options and config.json.
      card: returns the text of the card for a model.json.
      export_sampler: writes the sampler of a model to a folder as functions that JAX can run; the
        number is the shortest length in frames, 0 if any will do.
      config_from: returns the configuration in a config.json.
      trainable: returns the training step of a configuration to plan, a `Trainable`.
    """

    recipe: "Callable[[str, Any], Recipe]"
    load: Callable[[Path], Any]
    evaluate: Callable[[Any, Any, Any], dict]
    report: Callable[[dict], str]
    measure: "Callable[[ExportArguments, dict], Measured]"
    card: Callable[[dict], str]
    export_sampler: Callable[[Any, Path, int], None]
    config_from: Callable[[dict], Any] = _unplanned
    trainable: Callable[[Any], Any] = _unplanned


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Everything that the commands need to know about a family of models.

    Attributes:
      verb: the verb that trains the family, "train" or "distill".
      makes: what its models make, "sound" or "images".
      kinds: the kinds of its models in config.json and model.json.
      shipped: folders of the models that come with the package, by name.
      presets: its configurations by name.
      options: returns the class of the training options of a preset, a `TrainingOptions` whose
        first two fields are the data (or teacher) and the config.
      score: returns a format for the best score of a configuration: "best dev {:.3f} bits/dim".
      evaluation: class of the options of `evaluate`, with at least `model`, `data`, `as_json`, and
        `check()`, which raises UserError.
      training_data: returns the location of the data of a model's training, or shipped data.
      load_parts: returns the functions that need TensorFlow, which is imported when it is called.
      detected: returns options that the data call for, given a configuration and the words.
    """

    verb: str
    makes: str
    kinds: tuple[str, ...]
    presets: Mapping[str, Preset]
    options: Callable[[str], Any]
    score: Callable[[Any], str]
    evaluation: type
    training_data: Callable[[Path], Path | str]
    load_parts: Callable[[], Parts]
    shipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    detected: Callable[[Any, list[str]], list[str]] = lambda config, words: []

    @functools.cached_property
    def parts(self) -> Parts:
        """The functions that need TensorFlow."""
        return self.load_parts()


def run_training(
    family: ModelFamily, preset: str, arguments: list[str], parse: Callable[..., Any]
) -> int:
    """Run `onepass train|distill PRESET ...`: export, or adopt and train.

    Args:
      family: the family that the preset belongs to.
      preset: name of the preset.
      arguments: words after it.
      parse: reads a dataclass from words.

    Returns:
      The exit status, 128 + a signal that stopped it.
    """
    chosen, kind = family.presets[preset], family.options(preset)
    arguments = [*arguments, *family.detected(chosen.config, arguments)]
    default = kind(tyro.MISSING, chosen.config, workdir=tyro.MISSING)
    given = parse(kind, arguments, f"onepass {family.verb} {preset}", default, chosen.about)
    teacher = getattr(given, "teacher", None)
    if teacher is not None and teacher.exists() and given.workdir.resolve() == teacher.resolve():
        raise UserError(
            f"The student needs a --workdir of its own, {given.workdir} is its teacher's."
        )
    from replicator import strategies
    from replicator.portable.adopt import adopt
    from replicator.portable.recipe import export_portable
    from replicator.training.recipe import train

    replicator = strategies.from_environment(given.strategy)  # before TensorFlow does anything
    recipe = family.parts.recipe(preset, given)
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
    """Run `onepass evaluate ...`: print the metrics of a model, and return the exit status.

    Args:
      family_of: returns the family of a model.
      likely: the family whose options are read; the model's may be another with the same options.
      arguments: words after the verb.
      parse: reads a dataclass from words.
    """
    given = parse(likely.evaluation, arguments, "onepass evaluate")
    given.check()
    found = family_of(given.model)
    family = found if found is not None and found.evaluation is likely.evaluation else likely
    model = family.parts.load(given.model)
    data = given.data or family.training_data(given.model)
    named = {"model": str(given.model), "step": model.spec.get("step"), "data": str(data)}
    figures = named | family.parts.evaluate(given, model, data)
    print(json.dumps(figures, indent=2) if given.as_json else family.parts.report(figures))
    return 0
