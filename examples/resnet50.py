"""ResNet-50 learns to classify images, with batch norm over all replicas.

    python -m examples.resnet50 --out runs/resnet50 --data FOLDER    # FOLDER/train/CLASS/*.jpg
    python -m examples.resnet50 --out runs/resnet50 --steps 10       # synthetic images: the speed
    python -m examples.resnet50 --out runs/resnet50 --data FOLDER --strategy local:2

He et al. 2016, "Deep Residual Learning for Image Recognition" (1512.03385), as v1.5: the 3x3
convolution of a bottleneck has the stride. Trained by the recipe of Goyal et al. 2017 (1706.02677):
Nesterov momentum, a rate proportional to the batch, a warm-up and three drops. Goyal et al. report
about 76 percent on ImageNet in 90 epochs; this file was not trained on it. A step of 16 images of
224x224 takes about 4 seconds of processor time (docs/examples.md). With parameter_server, batch
norm uses the batch of one worker, and nothing is evaluated.
"""

import dataclasses
from pathlib import Path

import numpy as np
import tensorflow as tf
import tyro

from onepass.foundation.files import is_ignored, list_files
from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError, in_one_line
from onepass.foundation.run_directory import Checkpoints
from onepass.replicator import Replicator, strategies
from onepass.replicator.training.state import resume_variables

SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp"}  # formats that TensorFlow decodes
EPSILON = 1e-5  # of batch norm
MEMORY = 0.9  # of its moving averages
MEAN = (123.7, 116.3, 103.5)  # of ImageNet, per colour, in 8-bit levels
DEVIATION = (58.4, 57.1, 57.4)
FALLS = (1 / 3, 2 / 3, 8 / 9)  # fractions of the training at which the rate drops to a tenth
MOMENTUM = 0.9  # Nesterov's
WEIGHT_DECAY = 1e-4  # of kernels
SMOOTHING = 0.1  # share of a label that is spread over all classes


@dataclasses.dataclass(frozen=True)
class Settings:
    """Train ResNet-50 v1.5."""

    out: Path
    """Folder for the checkpoints; an existing run is resumed."""
    data: Path | None = None
    """Folder with train/CLASS/ and dev/CLASS/ of JPEG, PNG, GIF or BMP files; default: noise."""
    steps: int = 100
    """Number of updates."""
    batch: int = 32
    """Images in the global batch."""
    side: int = 224
    """Height and width to which images are resized, in pixels."""
    classes: int = 1000
    """Classes of the noise."""
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    """Bottlenecks in each stage."""
    width: int = 64
    """Channels of the first stage; each further stage has twice as many as the previous one."""
    learning_rate: float = 0.1
    """Peak learning rate for a batch of 256; it is proportional to the batch."""
    warmup_steps: int = 20
    """Updates over which the learning rate increases linearly."""
    save_steps: int = 1000
    """Updates between checkpoints."""
    seed: int = 0
    """Seed of weights, order, crops and noise."""
    strategy: str = "auto"
    """Strategy: auto, single, local:2, multi_worker, parameter_server, sharded:2x2."""


class Pass:
    """A pass through the network: exchange between replicas, and new moving averages.

    Without `all_gather` of the Replicator it is an evaluation, which uses the moving averages.
    """

    def __init__(self, all_gather=None):
        self.all_gather, self.left = all_gather, {}

    def moments(self, x, averages):
        """Return mean and variance [channels] of x over all replicas' batches, in one exchange."""
        if self.all_gather is None:
            return averages
        mean = tf.reduce_mean(x, axis=[0, 1, 2])
        variance = tf.reduce_mean(tf.square(x - mean), axis=[0, 1, 2])
        means, variances = self.all_gather((mean, variance))  # [replicas, channels]
        mean = tf.reduce_mean(means, axis=0)
        pair = mean, tf.reduce_mean(variances + tf.square(means - mean), axis=0)
        for average, new in zip(averages, pair, strict=True):
            self.left[average.ref()] = MEMORY * average + (1.0 - MEMORY) * new
        return pair


class ConvNorm(tf.Module):
    """A convolution without a bias, and batch norm."""

    def __init__(self, rng, side, inputs, outputs, stride=1, scale=1.0):
        super().__init__()
        deviation = (2.0 / (side * side * outputs)) ** 0.5
        kernel = rng.normal(0.0, deviation, [side, side, inputs, outputs])
        self.stride = stride
        self.kernel = tf.Variable(kernel.astype(np.float32))
        self.scale = tf.Variable(tf.fill([outputs], scale))
        self.shift = tf.Variable(tf.zeros([outputs]))
        self.averages = [
            tf.Variable(v, trainable=False) for v in (tf.zeros([outputs]), tf.ones([outputs]))
        ]

    def __call__(self, x, through: Pass):
        """Return [batch, height, width, outputs], smaller by the stride."""
        x = tf.nn.conv2d(x, self.kernel, self.stride, "SAME")
        mean, variance = through.moments(x, self.averages)
        return (x - mean) * (tf.math.rsqrt(variance + EPSILON) * self.scale) + self.shift


class Bottleneck(tf.Module):
    """relu(shortcut(x) + expand(relu(middle(relu(reduce(x)))))), initially the shortcut alone."""

    def __init__(self, rng, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.reduce = ConvNorm(rng, 1, inputs, width)
        self.middle = ConvNorm(rng, 3, width, width, stride)
        self.expand = ConvNorm(rng, 1, width, outputs, scale=0.0)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else ConvNorm(rng, 1, inputs, outputs, stride)

    def __call__(self, x, through: Pass):
        """Return [batch, height, width, 4 * width], smaller by the stride."""
        y = tf.nn.relu(self.reduce(x, through))
        y = tf.nn.relu(self.middle(y, through))
        y = self.expand(y, through)
        return tf.nn.relu(y + (x if self.shortcut is None else self.shortcut(x, through)))


class ResNet(tf.Module):
    """A network from images [batch, side, side, 3] with mean 0 and deviation 1 to logits."""

    def __init__(self, rng, blocks, width, classes):
        super().__init__()
        self.stem = ConvNorm(rng, 7, 3, width, 2)
        self.blocks, channels = [], width
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage and not index else 1
                self.blocks.append(Bottleneck(rng, channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.kernel = tf.Variable(rng.normal(0.0, 0.01, [channels, classes]).astype(np.float32))
        self.bias = tf.Variable(tf.zeros([classes]))

    def __call__(self, images, through: Pass):
        """Return logits float32 [batch, classes]."""
        x = tf.nn.relu(self.stem(images, through))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for block in self.blocks:
            x = block(x, through)
        return tf.reduce_mean(x, axis=[1, 2]) @ self.kernel + self.bias


class Trainer(tf.Module):
    """The network, its momentum, and the two halves of a step of the Replicator."""

    def __init__(self, settings: Settings, classes: int, replicator: Replicator):
        super().__init__()
        self.settings, self.replicator = settings, replicator
        rng = np.random.default_rng(settings.seed)
        self.network = ResNet(rng, settings.blocks, settings.width, classes)
        self.weights = list(self.network.trainable_variables)
        self.averages = [v for v in self.network.variables if not v.trainable]
        self.velocity = [tf.Variable(tf.zeros_like(w), trainable=False) for w in self.weights]
        self.step = tf.Variable(0, trainable=False)

    def slots(self):
        """Return the variables that a step sets."""
        return [*self.weights, *self.velocity, *self.averages, self.step]

    def local(self, batch):
        """Return loss, accuracy and new moving averages of a replica's rows, and gradients."""
        through = Pass(self.replicator.all_gather)
        with tf.GradientTape() as tape:
            logits = self.network(batch["images"], through)
            loss = smoothed_cross_entropy(logits, batch["labels"])
        right = tf.reduce_mean(named_rightly(logits, batch["labels"]))
        averages = [through.left[average.ref()] for average in self.averages]
        figures = {"loss": loss, "accuracy": right, "averages": averages}
        return figures, tape.gradient(loss, self.weights)

    def moved(self, figures, gradients):
        """Return new values of the slots, and figures, from averages of `local` over replicas."""
        averages = figures.pop("averages")
        weights, velocity = self.nesterov(gradients)
        return [*weights, *velocity, *averages, self.step + 1], figures

    def rate(self):
        """Return the learning rate, float32 [].

        It warms up to `learning_rate * batch / 256` and drops to a tenth at each of FALLS.
        """
        settings, step = self.settings, tf.cast(self.step, tf.float32)
        peak = settings.learning_rate * settings.batch / 256
        falls = [tf.cast(step >= share * settings.steps, tf.float32) for share in FALLS]
        return peak * tf.minimum(1.0, (step + 1.0) / settings.warmup_steps) * 0.1 ** tf.add_n(falls)

    def nesterov(self, gradients):
        """Return new weights and velocities: v <- m v + g, w <- w - rate (g + m v)."""
        decayed = [
            g + WEIGHT_DECAY * w if w.shape.rank > 1 else g
            for g, w in zip(gradients, self.weights, strict=True)
        ]
        m, rate = MOMENTUM, self.rate()
        velocity = [m * v + g for v, g in zip(self.velocity, decayed, strict=True)]
        steps = [rate * (g + m * v) for v, g in zip(velocity, decayed, strict=True)]
        return [w - s for w, s in zip(self.weights, steps, strict=True)], velocity


def smoothed_cross_entropy(logits, labels):
    """Return mean nats, with a share of every one-hot label spread over all classes."""
    labels = (1.0 - SMOOTHING) * labels + SMOOTHING / labels.shape[-1]
    return -tf.reduce_mean(tf.reduce_sum(labels * tf.nn.log_softmax(logits), axis=1))


def named_rightly(logits, labels):
    """Return float32 [batch]: 1 if the highest logit is the label's."""
    return tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(labels, 1)), tf.float32)


def listed(settings: Settings, split: str):
    """Return files and labels of FOLDER/split/CLASS/*, and the number of classes.

    Without a folder the files are "", for noise.
    """
    if settings.data is None:
        return [""] * settings.classes, list(range(settings.classes)), settings.classes
    folders = (settings.data / "train").glob("*/")
    names = sorted(path.name for path in folders if not is_ignored(path.name))
    paths = [settings.data / split / name for name in list_files(settings.data / split)[0]]
    inside = (path for path in paths if path.parent.parent == settings.data / split)
    files = sorted(path for path in inside if path.suffix.lower() in SUFFIXES)
    strange = {file.parent.name for file in files} - set(names)
    if not files or strange:
        found = f"classes that train lacks, {strange}," if strange else "no images"
        raise UserError(f"There are {found} in {settings.data / split}/CLASS/.")
    return list(map(str, files)), [names.index(file.parent.name) for file in files], len(names)


def cropped(file, seed, side: int, training: bool):
    """Return a random part of an image file, or its centre, float32 [side, side, 3] in [0, 255]."""
    image = tf.io.decode_image(tf.io.read_file(file), channels=3, expand_animations=False)
    if training:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image), tf.zeros([1, 0, 4]), seed, area_range=(0.08, 1.0),
            min_object_covered=0.0, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        image = tf.image.stateless_random_flip_left_right(tf.slice(image, begin, size), seed)
    else:
        square = tf.reduce_min(tf.shape(image)[:2]) * 7 // 8
        image = tf.image.resize_with_crop_or_pad(image, square, square)
    return tf.image.resize(image, [side, side], antialias=True)


def input_fn(settings: Settings, split: str, start: int, context: tf.distribute.InputContext):
    """Return a tf.data.Dataset of per-replica batches from row `start` on; dev ends in padding."""
    files, labels, classes = listed(settings, split)

    def read(number, row):
        seed = tf.stack([tf.constant(settings.seed, tf.int64), number])
        if settings.data is None:
            image = tf.random.stateless_normal([settings.side, settings.side, 3], seed)
        else:
            image = cropped(row[0], seed, settings.side, split == "train")
            image = (image - MEAN) / DEVIATION
        return {"images": image, "labels": tf.one_hot(row[1], classes)}

    rows = tf.data.Dataset.from_tensor_slices((files, labels))
    if split == "train":
        rows = rows.shuffle(len(files), seed=settings.seed).repeat()
    else:
        rows = rows.concatenate(tf.data.Dataset.from_tensors((files[0], -1)).repeat())
    rows = rows.enumerate().skip(start)
    rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    rows = rows.map(read, num_parallel_calls=tf.data.AUTOTUNE)
    return rows.batch(context.get_per_replica_batch_size(settings.batch)).prefetch(2)


def evaluate(replicator: Replicator, trainer: Trainer) -> float:
    """Return the accuracy on dev."""
    settings = trainer.settings

    def count(batch):
        there = tf.reduce_sum(batch["labels"], axis=1)  # 0 in the padding
        right = named_rightly(trainer.network(batch["images"], Pass()), batch["labels"])
        return tf.stack([tf.reduce_sum(right * there), tf.reduce_sum(there)]), []

    reads = trainer.network.variables
    step = replicator.compile_training(count, lambda counts, _: ([], counts), [], reads=reads)
    batches = iter(replicator.dataset(lambda context: input_fn(settings, "dev", 0, context)))
    calls = -(-len(listed(settings, "dev")[0]) // settings.batch)
    right, rows = np.sum([step(batches) for _ in range(calls)], axis=0)
    return float(right / rows)


def train(settings: Settings) -> None:
    """Train from the newest checkpoint, and print the accuracy on dev."""
    replicator = strategies.from_environment(settings.strategy)
    with replicator.scope():
        trainer = Trainer(settings, listed(settings, "train")[2], replicator)
    checkpoints = Checkpoints(settings.out / "checkpoints")
    variables = {str(i): variable for i, variable in enumerate(trainer.variables)}
    resume_variables(replicator, checkpoints, variables)
    learn = replicator.compile_training(
        trainer.local, trainer.moved, trainer.slots(), reads=trainer.averages
    )
    done = int(trainer.step.numpy())
    start = done * settings.batch
    batches = iter(replicator.dataset(lambda context: input_fn(settings, "train", start, context)))
    with Progress(settings.steps, "resnet50", "step", done=done) as progress:
        for step in range(done + 1, settings.steps + 1):
            figures = learn(batches)
            progress.advance(1, **{name: float(value) for name, value in figures.items()})
            if replicator.is_chief and (step % settings.save_steps == 0 or step == settings.steps):
                values = {name: v.numpy() for name, v in variables.items()}
                checkpoints.save(step, values)
    if settings.data is not None and not replicator.is_async:
        print(f"accuracy on dev: {evaluate(replicator, trainer):.4f}")


def main(arguments=None) -> None:
    """Read the command line and train."""
    settings = tyro.cli(Settings, args=arguments, description=__doc__)
    with in_one_line("resnet50"):
        train(settings)


if __name__ == "__main__":
    main()
