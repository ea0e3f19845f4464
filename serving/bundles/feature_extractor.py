"""Feature extraction with the settings that a bundle's model was trained with."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from replicator.runs.stored_config import dataclass_from
from wavenet.data.recorded_level import level_of
from wavenet.feature_extractor import FeatureExtraction
from wavenet.presets import DataConfig


@dataclasses.dataclass(frozen=True)
class FeatureExtractor(FeatureExtraction):
    """A feature extractor of a speech model.

    data: settings of its training data. hop_samples: between two frames. gain_db: applied to
    recordings. level_db: see `data.recorded_level`. known_speakers: names by index.
    """

    data: DataConfig
    hop_samples: int
    gain_db: float
    known_speakers: tuple[str, ...] = ()
    level_db: float | None = None


def feature_extractor(spec: Mapping[str, Any]) -> FeatureExtractor:
    """Return the extractor that the model.json of a bundle describes."""
    data = dataclass_from(DataConfig, spec["config"]["data"])
    speakers, level_db = tuple(spec["speakers"]), level_of(spec)
    return FeatureExtractor(data, spec["hop_samples"], spec["gain_db"], speakers, level_db)
