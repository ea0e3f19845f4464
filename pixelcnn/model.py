"""Trained image models: their folders and how they are loaded."""

from pathlib import Path
from typing import Any

from onepass.foundation import locations
from onepass.foundation.files import Arrays
from onepass.foundation.model_folder import assign_weights, read_stored_model
from onepass.foundation.settings import check_config
from onepass.likelihoods.initial import ZeroInitial
from onepass.trained import Trained
from pixelcnn.config import KINDS, AnyTrainConfig, config_from
from pixelcnn.data.video import Statistics
from pixelcnn.density import ImageDensity
from pixelcnn.front import ImageFront
from pixelcnn.sampling.generation import ImageSampler


def load(path: Path | str) -> Trained:
    """Load a model from a run directory or a model folder.

    Args:
      path: a model folder; a run directory, whose best checkpoint provides averaged weights; or the
        name of a shipped model (`locations.FOLDERS`), unless a folder has that name.

    Raises:
      UserError: If there is no image model, or it cannot be read.
    """
    path = locations.model_folder(path)
    stored, weights, spec = read_stored_model(path, spec_of)
    return model_of(stored, weights, spec, path)


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """Return the entries of model.json that describe the model; `stored` is a config.json."""
    config = _config(stored, path)
    return {
        "kind": config.kind,
        "preset": stored["preset"],
        "size": config.data.size,
        "channels": config.data.channels,
        "levels": config.output.levels,
        "condition": config.conditioning.kind,
        "classes": stored["class_names"],
        "statistics": stored["statistics"],
    }


def model_of(stored: dict, weights: Arrays, spec: dict, path: Path) -> Trained:
    """Return the model for a config.json (`stored`), weights by name, and a model.json (`spec`)."""
    config = _config(stored, path)
    density = ImageDensity(config, ZeroInitial())
    assign_weights(density, weights, path)
    statistics = stored["statistics"] and Statistics.from_dict(stored["statistics"])
    classes, captions = tuple(stored["class_names"]), spec.get("captions") or ()
    return Trained(ImageSampler(density), ImageFront(config, classes, statistics, captions), spec)


def _config(stored: Any, path: Path) -> AnyTrainConfig:
    needed = {"preset", "class_names", "statistics"}
    return check_config(stored, path, tuple(KINDS), needed, config_from)
