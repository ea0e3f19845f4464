"""12-bit grey images: bits per dimension and samples, by `python -m examples.own_images`."""

import keras
import numpy as np
import tensorflow as tf
import tyro

import onepass
from onepass import likelihoods

LEVELS = 4096


class MaskedConv2D(keras.layers.Conv2D):
    """A convolution over the rows above and the pixels to the left; `inner` includes the pixel."""

    def __init__(self, filters: int, inner: bool, **options):
        super().__init__(filters, 3, padding="same", **options)
        self.inner = inner

    def call(self, inputs):
        """Return [batch, height, width, filters]."""
        mask = np.ones([3, 3, 1, 1], np.float32)
        mask[1, 1 + self.inner :], mask[2] = 0.0, 0.0
        kernel = tf.convert_to_tensor(self.kernel) * mask
        return self.activation(tf.nn.conv2d(inputs, kernel, 1, "SAME") + self.bias)


def blobs(num: int, size: int) -> np.ndarray:
    """Return bright blobs on a dark ground, uint16 [num, size, size, 1] in [0, 4096)."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size] / size
    centre = generator.uniform(0.2, 0.8, [2, num, 1, 1])
    grey = 3500 * np.exp(-30 * ((y - centre[0]) ** 2 + (x - centre[1]) ** 2))
    noisy = grey + generator.normal(200, 20, grey.shape)
    return np.clip(noisy, 0, LEVELS - 1).astype(np.uint16)[..., None]


def main(steps: int = 1000, size: int = 16, num: int = 256) -> None:
    """Train on three quarters of the images, and measure on the rest."""
    images = blobs(num, size)
    train, test = images[num // 4 :], images[: num // 4]
    distribution = likelihoods.LogisticMixture(levels=LEVELS, components=5)
    stack = [keras.Input([None, None, 1]), MaskedConv2D(32, inner=False, activation="relu")]
    stack += [MaskedConv2D(32, inner=True, activation="relu") for _ in range(4)]
    network = keras.Sequential([*stack, keras.layers.Dense(distribution.num_parameters)])
    model = onepass.Autoregressive(network, distribution, order="raster")
    onepass.fit(model, train, steps=steps)
    bits = -np.mean(model.log_prob(test), (1, 2, 3)) / np.log(2.0)
    interval = 1.96 * bits.std(ddof=1) / np.sqrt(len(bits))
    print(f"{bits.mean():.3f} +- {interval:.3f} bits per dimension")
    samples = model.sample(num=2, length=(size, size, 1), seed=1)
    print(f"samples {samples.shape}, {samples.min()} to {samples.max()} of {LEVELS}")


if __name__ == "__main__":
    tyro.cli(main)
