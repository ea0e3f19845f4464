"""The distributions of pixels for coding: channel by channel, in float64, with error margins.

A network computes the hidden units of a pixel in float32, so that their last digits differ between
machines. The last layer, the linear prediction and everything that follows are float64.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.compression.conditionals import Moved
from onepass.compression.forms import tolerances
from onepass.compression.model_odds import table_of
from onepass.compression.splits import Categorical, Mixture
from onepass.likelihoods.pixels import PAIRS
from pixelcnn.networks.config import SOFTMAX
from pixelcnn.networks.outputs import Hidden, MixtureOutput, SoftmaxOutput

AT_ONCE = 4096  # pixels whose tables are computed together
LINEAR_SHARE = 0.1  # tolerance of a linear function, as a share of a deep network's tolerance


def tanh_off(raw: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return an upper bound on the change in tanh(raw) if raw changes by up to `off`."""
    nearest = np.clip(np.abs(raw) - off, 0.0, 300.0)
    return off / np.cosh(nearest) ** 2


class MixturePixels:
    """The mixture distributions of several pixels; channels must be requested in order.

    Args:
      hidden: hidden states [pixels, ...].
      tolerance: relative tolerance of the last layer's outputs; None: no margins.
      mapped: whether the linear prediction reads a condition map computed by a network.
    """

    def __init__(
        self,
        output: MixtureOutput,
        hidden: Hidden,
        tolerance: float | None,
        mapped: bool = False,
        moved: Moved | None = None,
    ) -> None:
        self.likelihood = output.likelihood
        self.prediction = np.asarray(hidden.prediction, np.float64)
        outputs = self.outputs(output, np.asarray(hidden.units, np.float64))
        outputs = outputs if moved is None else moved(outputs)
        shape = [len(outputs), -1, self.likelihood.components]
        self.parameters = (outputs + output.bias.numpy().astype(np.float64)).reshape(shape)
        self.bounded, tolerance = tolerance is not None, tolerance or 0.0
        self.tolerance = tolerance
        self.off = tolerances(outputs, tolerance).reshape(shape)
        # Sums of a few float32 terms have smaller errors than deep networks.
        self.prediction_off = LINEAR_SHARE * tolerance * mapped * np.abs(self.prediction)
        self._before: list[np.ndarray] = []
        self._mixture: Mixture | None = None

    @staticmethod
    def outputs(output: MixtureOutput, units: np.ndarray) -> np.ndarray:
        """Return the last layer's outputs without the bias, float64 [pixels, parameters]."""
        return units @ output.kernel.numpy().astype(np.float64)

    def next_channel(self, before: np.ndarray | None) -> Any:
        """Return the next channel's distribution, given the previous channel's levels [pixels]."""
        likelihood, half = self.likelihood, 0.5 * (self.likelihood.levels - 1)
        channel, count = len(self._before), likelihood.channels
        weights, weight_off = self.parameters[:, 0], self.off[:, 0]
        if self._mixture is not None and before is not None:
            channel += 1
            self._before.append(before / half - 1.0)
            weights, weight_off = self._mixture.condition_on_levels(before)
        means, off = self.parameters[:, 1 + channel], self.off[:, 1 + channel]
        off = off + self.prediction_off[:, channel, None]
        means = means + self.prediction[:, channel, None]
        for i, (moved, by) in enumerate(PAIRS[count]):
            if moved == channel:
                raw, value = self.parameters[:, 1 + 2 * count + i], self._before[by][:, None]
                means = means + np.tanh(raw) * value
                off = off + tanh_off(raw, self.off[:, 1 + 2 * count + i]) * np.abs(value)
        scales = self.parameters[:, 1 + count + channel]
        clipped = np.maximum(scales, likelihood.min_log_scale) + math.log(half)
        scale_off = self.off[:, 1 + count + channel]
        offs = (_whole(weight_off), _whole(half * off), _whole(scale_off))
        self._mixture = Mixture(
            likelihood.levels,
            _whole(weights),
            _whole(half * (means + 1.0)),
            _whole(clipped),
            offs if self.bounded else None,
        )
        return self._mixture


class TabledPixels(MixturePixels):
    """The distributions of pixels for mixtures without a closed form, as tables of all levels."""

    def next_channel(self, before: np.ndarray | None) -> Any:
        """Return the next channel's distribution, given the previous channel's levels [pixels]."""
        if before is not None:
            self._before.append(before)
        means = slice(1, 1 + self.likelihood.channels)
        rows, off = self.parameters.copy(), self.off.copy()
        rows[:, means] += self.prediction[..., None]
        off[:, means] += self.prediction_off[..., None]
        known = [tf.constant(levels, tf.int32) for levels in self._before]

        def values(moved: np.ndarray) -> np.ndarray:
            table = np.empty([len(moved), self.likelihood.levels])
            for start in range(0, len(moved), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                before = [levels[part] for levels in known]
                parameters = tf.constant(moved[part], tf.float32)
                table[part] = self.likelihood.level_log_probs(parameters, before)
            return table

        flat = [array.reshape(len(array), -1) for array in (rows, off)]
        return table_of(values, flat[0], flat[1] if self.bounded else None, self.tolerance)


class SoftmaxPixels:
    """The softmax distributions of several pixels, with the interface of `MixturePixels`."""

    def __init__(
        self,
        output: SoftmaxOutput,
        hidden: Hidden,
        tolerance: float | None,
        mapped: bool = False,
        moved: Moved | None = None,
    ) -> None:
        self.output, self.tolerance, self._moved = output, tolerance or 0.0, moved
        parts = [np.asarray(part, np.float64) for part in hidden]
        self.inputs, self._before = np.concatenate(parts, -1), list[np.ndarray]()

    @staticmethod
    def outputs(output: SoftmaxOutput, channel: int, inside: np.ndarray) -> np.ndarray:
        """Return the last layer's outputs for a channel without bias, float64 [pixels, levels]."""
        return np.maximum(inside, 0.0) @ output.kernels[channel].numpy().astype(np.float64)

    def next_channel(self, before: np.ndarray | None) -> Categorical:
        """Return the next channel's distribution, given the previous channel's levels, if any."""
        if before is not None:
            self._before.append(before)
        output, channel = self.output, len(self._before)
        inside = self.inputs @ output.hidden_kernels[channel].numpy().astype(np.float64)
        inside += output.hidden_biases[channel].numpy()
        for levels, embedding in zip(self._before, output.embeddings[channel], strict=True):
            inside += embedding.numpy()[0][levels]
        outputs = self.outputs(output, channel, inside)
        outputs = outputs if self._moved is None else self._moved(outputs)
        logits = outputs + output.biases[channel].numpy()
        return Categorical(logits, tolerances(outputs, self.tolerance))


Pixels = MixturePixels | SoftmaxPixels
# By the name of the likelihood; all others use `TabledPixels`.
PIXELS: dict[str, type[Pixels]] = {"logistic": MixturePixels, SOFTMAX: SoftmaxPixels}


def _whole(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float64)
