"""Losses of distillation: divergences, spectra, features, and how they are combined."""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from distill.losses.kl_divergence import Conditionals as Conditionals
    from distill.losses.kl_divergence import divergence as divergence
    from distill.losses.objective import Objective as Objective
    from distill.losses.perceptual import feature_loss as feature_loss
    from distill.losses.perceptual import style_loss as style_loss
    from distill.losses.power import magnitude_loss as magnitude_loss
    from distill.losses.power import multi_loss as multi_loss
    from distill.losses.power import squared_loss as squared_loss
    from distill.losses.unit_classifier import UnitClassifier as UnitClassifier

_PLACES = {
    "Conditionals": "kl_divergence",
    "Objective": "objective",
    "UnitClassifier": "unit_classifier",
    "divergence": "kl_divergence",
    "feature_loss": "perceptual",
    "magnitude_loss": "power",
    "multi_loss": "power",
    "squared_loss": "power",
    "style_loss": "perceptual",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
