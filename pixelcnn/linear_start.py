"""The start of a PixelCNN's training: a linear regression on its training images, and whitening.

Each channel of a pixel is predicted from the pixels that the network's linear prediction reads and,
as in the output's mixture, from the channels before it:

    x_c = w_c . (pixels above and to the left) + sum_{d < c} a_cd x_d + error_c

The errors are taken to have a Cauchy density, whose most likely weights come from least squares
weighted anew a few times: smooth places count, edges hardly. The linear prediction becomes w, the
mixture's coefficients a, and its scales are quantiles of the errors. Its means agree but for what
the layers' random weights add, in proportion to each scale; its coefficients are constant at first.

The first convolutions are random filters of whitened pixels: neighbouring pixels are nearly equal,
so that filters of the pixels themselves would hardly show the small differences that matter.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from pixelcnn.networks.pixelcnn import FRONT_COLUMNS, FRONT_REACH, FRONT_ROWS, PixelCNN

IMAGES, PIXELS = 256, 2**15  # of which the regression is made, at most
ROUNDS = 5  # of least squares after the first
SCALE = 0.01  # of the Cauchy density; half the range of the levels is 1
RIDGE = 1e-5  # added to the mean squares of the inputs, of which many are nearly equal
SMALLEST = 0.02  # standard deviation below which a direction is noise, and is not amplified
LARGEST = 0.999  # magnitude of a coefficient, which is a tanh
LOGISTIC_MEDIAN = math.log(3.0)  # of the magnitude of the standard logistic


def start_linearly(network: PixelCNN, levels: np.ndarray, seed: int = 0) -> None:
    """Assign a regression on images to a network whose output is a mixture.

    `levels` are integers [images, height, width, channels]; the seed chooses the pixels.
    """
    inputs, pixels = neighbours(network.inputs(levels).numpy(), seed)
    weights, coefficients, errors = [], [], []
    for channel in range(pixels.shape[1]):
        earlier, target = pixels[:, :channel], pixels[:, channel]
        solved, importance = regress(np.concatenate([inputs, earlier], 1), target)
        chosen = np.clip(solved[inputs.shape[1] :], -LARGEST, LARGEST)
        rest = target - earlier @ chosen
        weights.append(least_squares(inputs, rest, importance))
        errors.append(np.abs(rest - inputs @ weights[-1]))
        coefficients.extend(chosen)
    above, left = network.above_prediction, network.left_prediction
    rows = math.prod(above.shape[:-1])
    kernel = np.stack(weights, -1)
    above.assign(kernel[:rows].reshape(above.shape))
    left.assign(kernel[rows:].reshape(left.shape))
    assign_output(network.output, errors, coefficients)
    whiten(network.above_kernel, inputs[:, :rows])
    whiten(network.left_kernel, inputs[:, rows:])


def whiten(kernel: tf.Variable, inputs: np.ndarray) -> None:
    """Make a kernel [..., outputs] of inputs [n, ...] one of whitened inputs, of mean square 1."""
    squares, directions = np.linalg.eigh(inputs.T @ inputs / len(inputs))
    shrunk = directions / np.sqrt(np.maximum(squares, 0.0) + SMALLEST**2)
    flat = kernel.numpy().reshape(inputs.shape[1], -1)
    kernel.assign((shrunk @ (directions.T @ flat)).reshape(kernel.shape))


def assign_output(output: Any, errors: list[np.ndarray], coefficients: list[float]) -> None:
    """Make the components of a `MixtureOutput` differ in their scale.

    `errors` are the magnitudes of each channel's errors; the coefficients of earlier channels are
    in the order of `onepass.likelihoods.mixture.PAIRS`.
    """
    count, channels = output.likelihood.components, len(errors)
    shares = (np.arange(count) + 0.5) / count
    half_bin = 1.0 / (output.likelihood.levels - 1)
    scales = [np.maximum(np.quantile(error, shares), half_bin) for error in errors]
    for scale, error in zip(scales, errors, strict=True):  # edges are few, and their errors large
        scale[-1] = max(scale[-1], error.std())
    bias = [
        np.zeros([1 + channels, count]),  # logits and means
        np.log(scales) - math.log(LOGISTIC_MEDIAN),
        np.repeat(np.arctanh(coefficients), count).reshape(-1, count),
    ]
    output.bias.assign(np.concatenate(bias).ravel())
    kernel = output.kernel.numpy().reshape(output.hidden_units, -1, count)
    kernel[:, 1 : 1 + channels] *= np.stack(scales)
    kernel[:, 1 + 2 * channels :] = 0.0
    output.kernel.assign(kernel.reshape(output.kernel.shape))


def neighbours(inputs: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what the linear prediction reads at random pixels, and the pixels: float64 [n, ...].

    `inputs` are those of the network, [images, height, width, channels + 1].
    """
    images, height, width, _ = inputs.shape
    padded = np.pad(inputs, [(0, 0), (FRONT_ROWS, 0), (FRONT_REACH, FRONT_REACH), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (FRONT_ROWS + 1, 2 * FRONT_REACH + 1), axis=(1, 2)
    )
    places = np.random.default_rng(seed).permutation(images * height * width)[:PIXELS]
    chosen = np.unravel_index(places, (images, height, width))
    around = np.moveaxis(windows[chosen], 1, -1).astype(np.float64)
    above = around[:, :FRONT_ROWS].reshape(len(places), -1)
    left = around[:, FRONT_ROWS, :FRONT_COLUMNS].reshape(len(places), -1)
    return np.concatenate([above, left], 1), inputs[chosen][:, :-1].astype(np.float64)


def regress(inputs: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights [inputs] of `target` [n] on inputs [n, inputs], and the importance [n]."""
    importance = np.ones(len(target))
    for _ in range(ROUNDS):
        error = target - inputs @ least_squares(inputs, target, importance)
        importance = 1.0 / (error**2 + SCALE**2)
    return least_squares(inputs, target, importance), importance


def least_squares(inputs: np.ndarray, target: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Return the weights of a linear regression that weights each row by its importance."""
    weighted = inputs * (importance / importance.sum())[:, np.newaxis]
    return np.linalg.solve(
        weighted.T @ inputs + RIDGE * np.eye(inputs.shape[1]), weighted.T @ target
    )
