"""Guidance distilled by forward KL: the student does in one pass what guidance does in two.

For every pixel of a real image, teacher and student have a distribution over 256 levels per channel
given the true pixels before it (teacher forcing). q is the teacher's, moved away from what it
predicts under its null condition (`outputs.guided_nats`), and p_S is the student's. The student
minimises

    KL(Q || P_S) = E_x sum_t sum_l q(l | x_<t) (log q(l | x_<t) - log p_S(l | x_<t))

whose gradient passes through no sample, and which penalises a student that misses a mode.
"""

import math

import tensorflow as tf

from distill.images.config import GuidedTargets
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.networks.layers import EXACT, Mode
from pixelcnn.networks.outputs import Hidden, PixelOutputs, both_sides, guided_nats
from pixelcnn.sampling.samplers import pair_for_guidance, temperatures_of


class GuidedLoss(ImageLoss):
    """The loss for distilling guidance: KL from the guided teacher, and negative log-likelihood."""

    def __init__(
        self,
        student: ImageDensity,
        teacher: ImageDensity,
        targets: GuidedTargets,
        table_side: int = 0,
    ) -> None:
        super().__init__(student)
        self.teacher, self.targets, self.table_side = teacher, targets, table_side
        sizes: tuple[int, ...] = (student.config.data.size,)
        if student.multiscale is not None:
            sizes = student.multiscale.sizes
        each = temperatures_of(targets.temperature, len(sizes)).numpy().tolist()
        self._temperatures = dict(zip(map(str, sizes), each, strict=True))

    def __call__(self, batch: dict) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the weighted sum of the terms in nats per dimension, and each in bits."""
        mode, seeds = self.density.training_mode(batch), batch["seed"]
        student = self._student(batch, mode, seeds)
        kl = self._per_number(self._divergences(student, batch, mode, seeds))
        code = -self._per_number({part: own.nats() for part, own in student.items()})
        values = {"kl_bits_per_dim": kl / math.log(2.0), "bits_per_dim": code / math.log(2.0)}
        return self.targets.kl * kl + self.targets.likelihood * code, values

    def divergences(self, batch: dict) -> dict[str, tf.Tensor]:
        """Return {part: KL(Q || P_S) of each whole image}, float32 [batch] each, in nats."""
        return self._divergences(self._student(batch, EXACT), batch, EXACT)

    def _student(
        self, batch: dict, mode: Mode, seeds: tf.Tensor | None = None
    ) -> dict[str, PixelOutputs]:
        condition = self.density.conditioner(batch)
        return self.density.conditionals(batch["levels"], condition, mode, seeds)

    def _divergences(
        self,
        student: dict[str, PixelOutputs],
        batch: dict,
        mode: Mode,
        seeds: tf.Tensor | None = None,
    ) -> dict:
        targets = self.targets
        condition, levels, seeds = pair_for_guidance(
            self.teacher.conditioner, batch, targets.guidance, batch["levels"], seeds
        )
        without_dropout = mode._replace(seed=None)
        teacher = self.teacher.conditionals(levels, condition, without_dropout, seeds)
        divergences = {}
        for part, own in student.items():
            given, temperature = teacher[part], self._temperatures[part.split(".")[0]]
            if mode.seed is not None and self.table_side:
                given = thin_outputs(given, self.table_side, mode.seed)
                own = thin_outputs(own, self.table_side, mode.seed)
            divergences[part] = divergence(given, own, targets.guidance, temperature)
        return divergences

    def _per_number(self, parts: dict) -> tf.Tensor:
        return tf.reduce_mean(tf.add_n(list(parts.values()))) / self.density.num_dims


def thin_outputs(whole: PixelOutputs, side: int, seed: tf.Tensor) -> PixelOutputs:
    """Return the conditionals at evenly spaced rows and columns, scaled to represent all pixels.

    At least `side` of either are kept; with fewer than twice as many, `whole` is returned. `seed`,
    int32 [2], determines the first.
    """
    size = whole.levels.shape[1:3]
    distance = min(size) // side
    if distance < 2:
        return whole
    corner = tf.unstack(tf.math.floormod(seed, distance))
    # A gather, because XLA can slice only at positions that are known when it compiles.
    rows, columns = (
        first + distance * tf.range(pixels // distance)
        for first, pixels in zip(corner, size, strict=True)
    )

    def take_pixels(each: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.gather(each, rows, axis=1), columns, axis=2)

    hidden, weights = map(take_pixels, whole.hidden), whole.weights
    share = whole.share * math.prod(size) / math.prod(pixels // distance for pixels in size)
    return whole._replace(
        hidden=Hidden(*hidden),
        levels=take_pixels(whole.levels),
        share=share,
        weights=None if weights is None else take_pixels(weights),
    )


def divergence(
    teacher: PixelOutputs, student: PixelOutputs, weight: float, temperature: float | tf.Tensor
) -> tf.Tensor:
    """Return KL(Q || P_S) over all pixels and channels of a part, in nats, float32 [images].

    The teacher's conditionals are those under the conditions, then those under the null condition;
    temperature 1 does not change the guided distribution.
    """
    sides, channels = both_sides(teacher.hidden), tf.unstack(student.levels, axis=-1)
    each = 0.0
    for c in range(len(channels)):
        before = channels[:c]
        moved = guided_nats(teacher.output, sides, before, weight, temperature)
        target = tf.stop_gradient(tf.nn.log_softmax(moved))
        own = student.output.level_log_probs(student.hidden, before)
        each += tf.reduce_sum(tf.exp(target) * (target - own), -1)
    return student.sum_per_image(each)
