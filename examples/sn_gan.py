"""SN-GAN draws small images of a class: spectral normalisation and a projection discriminator.

    python -m examples.sn_gan --out runs/sn_gan                     # the shipped digits
    python -m examples.sn_gan --out runs/sn_gan --data FOLDER       # FOLDER/CLASS/*.png
    python -m examples.sn_gan --out runs/sn_gan --strategy local:2

Miyato et al. 2018, "Spectral Normalization for Generative Adversarial Networks" (1802.05957), and
Miyato and Koyama 2018, "cGANs with Projection Discriminator" (1802.05637), their 32x32 ResNets.
It should reach hands that show the digit of their row after 2,500 steps, within an hour of two busy
cores. The generator's batch norm uses the batches of all replicas; with parameter_server, that of
one worker.
"""

import dataclasses
from pathlib import Path

import numpy as np
import tensorflow as tf
import tyro

from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError, in_one_line
from onepass.foundation.run_directory import Checkpoints
from onepass.replicator import Replicator, strategies
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import adam, resume_variables
from pixelcnn.config import ImageRules
from pixelcnn.data.corpus import read_corpus
from pixelcnn.sampling.grids import write_png
from pixelcnn.shipped import dev_images

SIDE = 32  # pixels
LATENT = 128
EPSILON = 1e-4  # of batch norm
MEMORY = 0.9  # of the moving averages that replace those of the batch when sampling
PLAIN = {"spectral": False, "bias": False}  # a bias would be cancelled by the next batch norm


@dataclasses.dataclass(frozen=True)
class Settings:
    """Train a class-conditional SN-GAN on images of 32x32."""

    out: Path
    """Folder for the sheets of samples and the checkpoints; an existing run is resumed."""
    data: Path | None = None
    """Images: a folder with a sub-folder per class, or an npz; default: the shipped digits."""
    steps: int = 3000
    """Updates of the generator."""
    discriminator_steps: int = 5
    """Updates of the discriminator per update of the generator."""
    batch: int = 32
    """Images in the global batch; 64 in the paper."""
    width: int = 32
    """Channels; in the paper 256 in the generator and 128 in the discriminator."""
    learning_rate: float = 5e-4
    """Learning rate of Adam (beta1 0, beta2 0.9); 2e-4 in the paper."""
    sheet_steps: int = 250
    """Updates of the generator between sheets and checkpoints."""
    seed: int = 0
    """Seed of weights, noise and batches."""
    strategy: str = "auto"
    """Strategy: auto, single, local:2, multi_worker, parameter_server, sharded:2x2."""


def unit(x):
    """Return x scaled to the Euclidean norm 1."""
    return x * tf.math.rsqrt(tf.reduce_sum(tf.square(x)) + 1e-12)


def power_iteration(kernel, u):
    """Return the largest singular value of `kernel` [..., outputs] as a matrix W, and a new u.

    One step from u [outputs, 1]: v = W u / |W u|, u = W^T v / |W^T v|, sigma = v^T W u.
    """
    W = tf.reshape(kernel, [-1, kernel.shape[-1]])
    v = tf.stop_gradient(unit(W @ u))
    u = tf.stop_gradient(unit(tf.matmul(W, v, transpose_a=True)))
    return tf.reduce_sum(v * (W @ u)), u


class Pass:
    """A pass through a network: exchange between replicas, and new values of variables.

    Without `all_gather` of the Replicator, while sampling, batch norm uses its moving averages.
    """

    def __init__(self, all_gather=None):
        self.all_gather, self.left = all_gather, {}

    def moments(self, x):
        """Return mean and variance [channels] of x over all replicas' batches, in one exchange."""
        mean = tf.reduce_mean(x, axis=[0, 1, 2])
        variance = tf.reduce_mean(tf.square(x - mean), axis=[0, 1, 2])
        means, variances = self.all_gather((mean, variance))  # [replicas, channels]
        mean = tf.reduce_mean(means, axis=0)
        return mean, tf.reduce_mean(variances + tf.square(means - mean), axis=0)


class Layer(tf.Module):
    """A matrix (shape [inputs, outputs]) or a convolution ([side, side, inputs, outputs])."""

    def __init__(self, rng, *shape, spectral=True, bias=True):
        super().__init__()
        limit = np.sqrt(6.0 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1])))  # Glorot
        self.kernel = tf.Variable(rng.uniform(-limit, limit, shape).astype(np.float32))
        self.bias = tf.Variable(tf.zeros(shape[-1:])) if bias else 0.0
        start = rng.normal(size=[shape[-1], 1]).astype(np.float32)
        self.u = tf.Variable(start, trainable=False) if spectral else None

    def __call__(self, x, through: Pass):
        """Return the outputs; a spectral layer divides its kernel by its largest singular value."""
        kernel = tf.convert_to_tensor(self.kernel)
        if self.u is not None:
            sigma, u = power_iteration(kernel, self.u)
            kernel = kernel / sigma
            through.left[self.u.ref()] = u
        product = x @ kernel if len(kernel.shape) == 2 else tf.nn.conv2d(x, kernel, 1, "SAME")
        return product + self.bias


class Norm(tf.Module):
    """Batch norm with a scale and a shift per class; labels are [batch, classes], one-hot."""

    def __init__(self, classes, channels):
        super().__init__()
        self.scale = tf.Variable(tf.ones([classes, channels]))
        self.shift = tf.Variable(tf.zeros([classes, channels]))
        self.mean = tf.Variable(tf.zeros([channels]), trainable=False)
        self.variance = tf.Variable(tf.ones([channels]), trainable=False)

    def __call__(self, x, labels, through: Pass):
        """Return x [batch, height, width, channels] normalised, then scaled and shifted."""
        mean, variance = self.mean, self.variance
        if through.all_gather is not None:
            mean, variance = through.moments(x)
            for average, new in ((self.mean, mean), (self.variance, variance)):
                through.left[average.ref()] = MEMORY * average + (1.0 - MEMORY) * new
        each = [-1, 1, 1, x.shape[-1]]
        scale, shift = (tf.reshape(labels @ table, each) for table in (self.scale, self.shift))
        return (x - mean) * tf.math.rsqrt(variance + EPSILON) * scale + shift


def up(x):
    """Return every pixel repeated as 2x2."""
    _, height, width, channels = x.shape
    x = tf.tile(tf.reshape(x, [-1, height, 1, width, 1, channels]), [1, 1, 2, 1, 2, 1])
    return tf.reshape(x, [-1, 2 * height, 2 * width, channels])


def down(x):
    """Return the mean of every 2x2 pixels."""
    _, height, width, channels = x.shape
    x = tf.reshape(x, [-1, height // 2, 2, width // 2, 2, channels])
    return tf.reduce_mean(x, axis=[2, 4])


class UpBlock(tf.Module):
    """A residual block of the generator."""

    def __init__(self, rng, classes, width):
        super().__init__()
        self.norms = [Norm(classes, width) for _ in range(2)]
        self.layers = [Layer(rng, 3, 3, width, width, **PLAIN) for _ in range(2)]
        self.shortcut = Layer(rng, 1, 1, width, width, **PLAIN)

    def __call__(self, x, labels, through: Pass):
        """Return [batch, 2 height, 2 width, channels]."""
        y = self.layers[0](up(tf.nn.relu(self.norms[0](x, labels, through))), through)
        y = self.layers[1](tf.nn.relu(self.norms[1](y, labels, through)), through)
        return y + up(self.shortcut(x, through))


class Generator(tf.Module):
    """A network from latents [batch, LATENT] and one-hot labels to images."""

    def __init__(self, rng, classes, width):
        super().__init__()
        self.start = Layer(rng, LATENT, 4 * 4 * width, spectral=False)
        self.blocks = [UpBlock(rng, classes, width) for _ in range(3)]
        self.norm = Norm(1, width)
        self.end = Layer(rng, 3, 3, width, 3, spectral=False)

    def __call__(self, latents, labels, through: Pass):
        """Return images [batch, 32, 32, 3] in [-1, 1]."""
        x = self.start(latents, through)
        x = tf.reshape(x, [-1, 4, 4, x.shape[-1] // 16])
        for block in self.blocks:
            x = block(x, labels, through)
        x = tf.nn.relu(self.norm(x, tf.ones_like(labels[:, :1]), through))
        return tf.tanh(self.end(x, through))


class DownBlock(tf.Module):
    """A residual block of the discriminator."""

    def __init__(self, rng, inputs, width, halve):
        super().__init__()
        self.layers = [Layer(rng, 3, 3, inputs, width), Layer(rng, 3, 3, width, width)]
        self.shortcut = Layer(rng, 1, 1, inputs, width) if halve else None
        self.first = inputs == 3

    def __call__(self, x, through: Pass):
        """Return [batch, height, width, channels], with height and width optionally halved."""
        y = self.layers[0](x if self.first else tf.nn.relu(x), through)
        y = self.layers[1](tf.nn.relu(y), through)
        return x + y if self.shortcut is None else down(y) + self.shortcut(down(x), through)


class Discriminator(tf.Module):
    """A network from images and one-hot labels to psi(phi(x)) + <embedding(y), phi(x)>."""

    def __init__(self, rng, classes, width):
        super().__init__()
        blocks = [(3, True), (width, True), (width, False), (width, False)]
        self.blocks = [DownBlock(rng, inputs, width, halve) for inputs, halve in blocks]
        self.psi = Layer(rng, width, 1)
        self.embedding = Layer(rng, classes, width, bias=False)

    def __call__(self, images, labels, through: Pass):
        """Return float32 [batch], high if an image looks like a real one of its class."""
        x = images
        for block in self.blocks:
            x = block(x, through)
        phi = tf.reduce_sum(tf.nn.relu(x), axis=[1, 2])
        projection = tf.reduce_sum(self.embedding(labels, through) * phi, axis=1)
        return tf.reshape(self.psi(phi, through), [-1]) + projection


class Player(tf.Module):
    """A network and its Adam."""

    def __init__(self, network, learning_rate):
        super().__init__()
        self.network, self.weights = network, list(network.trainable_variables)
        self.state = [v for v in network.variables if not v.trainable]
        self.first = [tf.Variable(tf.zeros_like(w), trainable=False) for w in self.weights]
        self.second = [tf.Variable(tf.zeros_like(w), trainable=False) for w in self.weights]
        self.step = tf.Variable(0, trainable=False)
        self.adam = OptimizerConfig(learning_rate=learning_rate, beta1=0.0, beta2=0.9)

    def slots(self):
        """Return the variables that an update of this player sets."""
        return [*self.weights, *self.first, *self.second, *self.state, self.step]

    def moved(self, figures, gradients):
        """Return new values of the slots and the loss, from all replicas' gradients."""
        rate, now = self.adam.learning_rate, (self.first, self.second)
        weights, first, second = adam(self.adam, rate, self.step, self.weights, gradients, *now)
        return [*weights, *first, *second, *figures["state"], self.step + 1], figures["loss"]


class Game(tf.Module):
    """Both players, and a replica's part of the steps of the Replicator."""

    def __init__(self, settings: Settings, classes: int, replicator: Replicator):
        super().__init__()
        self.replicator, rate = replicator, settings.learning_rate
        rng = np.random.default_rng(settings.seed)
        self.generator = Player(Generator(rng, classes, settings.width), rate)
        self.discriminator = Player(Discriminator(rng, classes, settings.width), rate)

    def compiled(self, local, player: Player | None = None):
        """Return the step that computes `local` on every replica's rows and updates the player."""
        moved, slots = (player.moved, player.slots()) if player else (lambda f, _: ([], f), [])
        networks = (self.generator.network, self.discriminator.network)
        reads = [variable for network in networks for variable in network.variables]
        return self.replicator.compile_training(local, moved, slots, reads=reads)

    def discriminator_step(self, batch):
        """Return hinge loss, state and gradients of the discriminator."""
        share, player, through = Pass(self.replicator.all_gather), self.discriminator, Pass()
        fake = self.generator.network(batch["latents"], batch["asked"], share)
        images = interleaved(batch["images"], fake)
        labels = interleaved(batch["labels"], batch["asked"])
        with tf.GradientTape() as tape:
            scores = tf.reshape(player.network(images, labels, through), [-1, 2])
            loss = 2.0 * tf.reduce_mean(tf.nn.relu(1.0 - scores * [1.0, -1.0]))
        state = [through.left[v.ref()] for v in player.state]
        return {"loss": loss, "state": state}, tape.gradient(loss, player.weights)

    def generator_step(self, batch):
        """Return loss, state and gradients of the generator."""
        player, through = self.generator, Pass(self.replicator.all_gather)
        with tf.GradientTape() as tape:
            fake = player.network(batch["latents"], batch["asked"], through)
            loss = -tf.reduce_mean(self.discriminator.network(fake, batch["asked"], Pass()))
        state = [through.left[v.ref()] for v in player.state]
        return {"loss": loss, "state": state}, tape.gradient(loss, player.weights)

    def draw(self, batch):
        """Return images [replicas, batch, 32, 32, 3] of all replicas."""
        images = self.generator.network(batch["latents"], batch["asked"], Pass())
        return self.replicator.all_gather(images), []


def interleaved(a, b):
    """Return rows a0 b0 a1 b1 ..., so that a reshape separates real and fake."""
    return tf.reshape(tf.stack([a, b], axis=1), [-1, *a.shape[1:]])


def batches(settings: Settings, images, labels, classes: int, start: int):
    """Return a tf.data.Dataset of global batches from `start` on.

    Batch i is a function of (seed, i).
    """

    def batch(number):
        rows, seeds = settings.batch, [[3 * settings.seed + i, number] for i in range(3)]
        chosen = tf.random.stateless_uniform([rows], seeds[0], 0, len(images), tf.int32)
        asked = tf.random.stateless_uniform([rows], seeds[1], 0, classes, tf.int32)
        return {
            "images": tf.cast(tf.gather(images, chosen), tf.float32) / 127.5 - 1.0,
            "labels": tf.one_hot(tf.gather(labels, chosen), classes),
            "latents": tf.random.stateless_normal([rows, LATENT], seeds[2]),
            "asked": tf.one_hot(asked, classes),
        }

    return tf.data.Dataset.counter(start).map(batch).prefetch(2)


def read(source: Path):
    """Return images uint8 [n, 32, 32, 3], labels int32 [n] and the number of classes."""
    corpus = read_corpus(source, ImageRules(SIDE, 3))
    if not corpus.classes:
        raise UserError(f"The images of {source} have no classes.")
    sets = corpus.splits.values()  # a GAN needs no dev
    labels = np.concatenate([s.labels for s in sets if s.labels is not None])
    return np.concatenate([s.images for s in sets]), labels, len(corpus.classes)


def sheet(draw, replicator: Replicator, classes: int, columns: int = 8):
    """Return a row of samples per class, uint8 [classes * 32, columns * 32, 3]."""
    rows = classes * columns
    latents = tf.random.stateless_normal([rows, LATENT], [0, 0])
    asked = tf.one_hot(np.arange(rows) // columns, classes)
    dataset = tf.data.Dataset.from_tensors({"latents": latents, "asked": asked})
    levels = np.round(127.5 * (np.asarray(draw(iter(replicator.batches(dataset)))) + 1.0))
    images = np.uint8(levels).reshape(classes, columns, SIDE, SIDE, 3)
    return images.transpose(0, 2, 1, 3, 4).reshape(classes * SIDE, columns * SIDE, 3)


def train(settings: Settings) -> None:
    """Train from the newest checkpoint, and write sheets of samples to `settings.out`."""
    replicator = strategies.from_environment(settings.strategy)
    images, labels, classes = read(settings.data or dev_images("shipped-digits"))
    with replicator.scope():
        game = Game(settings, classes, replicator)
    checkpoints = Checkpoints(settings.out / "checkpoints")
    variables = {str(i): variable for i, variable in enumerate(game.variables)}
    resume_variables(replicator, checkpoints, variables)
    update_discriminator = game.compiled(game.discriminator_step, game.discriminator)
    update_generator = game.compiled(game.generator_step, game.generator)
    draw = game.compiled(game.draw)
    done = int(game.generator.step.numpy())
    start = done * (settings.discriminator_steps + 1)
    stream = iter(replicator.batches(batches(settings, images, labels, classes, start)))
    with Progress(settings.steps, "sn_gan", "step", done=done) as progress:
        for step in range(done + 1, settings.steps + 1):
            for _ in range(settings.discriminator_steps):
                hinge = update_discriminator(stream)
            progress.advance(discriminator=float(hinge), generator=float(update_generator(stream)))
            if step % settings.sheet_steps == 0 or step == settings.steps:
                samples = sheet(draw, replicator, classes)  # every worker samples, the chief writes
                if replicator.is_chief:
                    values = {name: v.numpy() for name, v in variables.items()}
                    checkpoints.save(step, values)
                    write_png(settings.out / f"step_{step:06d}.png", samples)


def main(arguments=None) -> None:
    """Read the command line and train."""
    settings = tyro.cli(Settings, args=arguments, description=__doc__)
    with in_one_line("sn_gan"):
        train(settings)


if __name__ == "__main__":
    main()
