"""The function `distill`, which trains a one-pass student of any teacher with a density."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from distill.flow_student import FlowStudent
from distill.losses.divergence import KL, TeacherConditionals
from distill.losses.terms import Draw, Listed, Term, name_of, sum_terms
from onepass.foundation.rules import check_seed
from onepass.foundation.runtime import check_eager
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.distribution import with_density, with_normal
from onepass.model import Autoregressive
from onepass.networks.conditions import check_conditions
from onepass.training.fit import fit

SOUND = 0  # folded into the seed of a step to get the key of the student's noise

OF_TOKENS = (
    "for tokens train a smaller Autoregressive of the same levels with `fit`, and pass it to"
    ' `sample(method="speculative", draft=...)` of this model, whose samples stay the same.'
)


class Teacher(Protocol):
    """The interface of a model that a student can be distilled from."""

    def conditionals(self, values: tf.Tensor, condition: tf.Tensor | None) -> Any:
        """Return p(x_t | x_<t, condition) at the values, as an object with `log_density`.

        If the object has an attribute `normal`, it is the mean and log scale, each [batch, time],
        of normal conditionals, or None if they are not normal.

        Args:
          values: float32 [batch, time], scaled by the codec; gradients flow through them.
          condition: what the teacher reads besides the values, or None.
        """


class ModelTeacher:
    """A teacher that wraps an `Autoregressive` in time order."""

    def __init__(self, model: Autoregressive) -> None:
        distribution = with_density(model.distribution)
        if distribution is None:
            raise ValueError(
                "`teacher` must have a distribution with `log_density`, got"
                f" {type(model.distribution).__name__}; {OF_TOKENS}"
            )
        if model.order != "time":
            raise ValueError("`teacher` must be a model in time order, not of images.")
        if model.layout.channels is not None:
            raise ValueError(
                f"`teacher` must have one channel per time, got {model.layout.channels}."
            )
        if model.symbol_network.inputs.dtype.is_integer:
            raise ValueError(f"`teacher` must read numbers, not levels; {OF_TOKENS}")
        self.model, self._distribution = model, distribution

    def conditionals(self, values: tf.Tensor, condition: tf.Tensor | None) -> TeacherConditionals:
        """Return the conditionals at values scaled by the codec, float32 [batch, time]."""
        network = self.model.symbol_network
        reading = getattr(network, "reading", None)  # WaveNets scale their inputs
        read = tf.cast(values, network.inputs.dtype)
        inputs = read if reading is None else reading.of_scaled(values)
        if network.inputs.shape.rank == 3:
            inputs = inputs[..., tf.newaxis]
        given = check_conditions(network, condition, self.model.order, values.shape)
        parameters = tf.cast(network.parameters_after(inputs, given), tf.float32)
        return TeacherConditionals(self._distribution, parameters)


def distill(
    teacher: Autoregressive | Teacher,
    data: Any,
    *,
    steps: int,
    student: FlowStudent | None = None,
    loss: Sequence[Term] = (KL(),),
    seed: int = 0,
    **options: Any,
) -> FlowStudent:
    """Train a student that draws a whole sequence in one pass.

    Args:
      teacher: a model in time order whose distribution has a density, a loaded bundle of such a
        model, or any object with `conditionals`. Its weights do not change.
      data: the training data, in any form that `fit` takes, with sequences of one length. The
        student draws sequences of this length under the conditions of the data; the elements are
        read only by terms such as `Compared`.
      steps: total number of updates.
      student: the student, trained in place; None: three flows over small dilated networks.
        Required if `teacher` is neither an `Autoregressive` nor a bundle of one.
      loss: terms whose sum is the loss, each a function from a `Draw` to a scalar.
      seed: seed of the student's noise and of the choice of rows, an integer in [0, 2^64).
      **options: further arguments of `fit`, such as `optimizer`, `batch_size` and `workdir`.

    Returns:
      The trained student.

    Raises:
      ValueError: `ModelTeacher` rejects the teacher, `student` is missing where it is required, or
        the data have sequences of several lengths.
    """
    check_eager()
    seed = check_seed(seed)
    found, student = as_teacher_and_student(teacher, student)
    fit(student, data, steps=steps, loss=_objective(found, loss, seed), seed=seed, **options)
    return student


@functools.singledispatch
def as_teacher_and_student(
    teacher: Any, student: FlowStudent | None
) -> tuple[Teacher, FlowStudent]:
    """Return the object as a `Teacher`, and the student or a default; other kinds register here."""
    model = getattr(teacher, "autoregressive", None)  # of a bundle, or of a shipped model
    if model is not None:
        return as_teacher_and_student(model, student)
    if student is None:
        raise ValueError("`student` must be given for a teacher that is not an Autoregressive.")
    return teacher, student


@as_teacher_and_student.register
def _(teacher: Autoregressive, student: FlowStudent | None) -> tuple[Teacher, FlowStudent]:
    return ModelTeacher(teacher), flow_student(teacher) if student is None else student


def _objective(
    teacher: Teacher, terms: Sequence[Term], seed: int
) -> Callable[[FlowStudent, dict[str, tf.Tensor]], tuple[tf.Tensor, dict[str, tf.Tensor]]]:
    listed = [Listed(name_of(term), 1.0, term) for term in terms]

    def objective(
        student: FlowStudent, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        if "lengths" in batch:
            raise ValueError("`data` must have rows of one length to be distilled, got `lengths`.")
        recorded = student.codec.scale(student.codec.encode(batch["elements"]))
        condition, rows = batch.get("condition"), batch["row"]
        key = counter_noise.fold_in(seed, batch["step"][0])
        noise = student.noise(counter_noise.fold_in(key, SOUND), rows, tf.shape(recorded)[1])
        output = student.draw(tf.ensure_shape(noise, recorded.shape), condition)

        def teach(by_row_before: bool) -> Any:
            return None if by_row_before else teacher.conditionals(output.output, condition)

        return sum_terms(listed, Draw(output, recorded, student.noise_kind, key, rows, teach))

    return objective


def flow_student(model: Autoregressive, num_flows: int = 3, channels: int = 32) -> FlowStudent:
    """Return an untrained student with the model's codec, condition and kind of noise."""
    condition_channels = model.condition_channels
    if model.conditions and not condition_channels:
        raise ValueError(
            "`student` must be given: a default student needs a model without condition, or whose "
            f"condition has a row per element; this model reads {', '.join(model.conditions)}."
        )
    networks = [_network(condition_channels, channels) for _ in range(num_flows)]
    noise: Any = "normal" if with_normal(model.distribution) else "logistic"
    return FlowStudent(networks, model.codec, condition_channels=condition_channels, noise=noise)


def _network(condition_channels: int, channels: int) -> keras.Model:
    layers = keras.layers
    inputs = [keras.Input([None, 1])]
    if condition_channels:
        inputs.append(keras.Input([None, condition_channels]))
    h = layers.Concatenate()(inputs) if condition_channels else inputs[0]
    h = layers.Conv1D(channels, 2, padding="causal")(h)
    for dilation in (1, 2, 4, 8, 16):
        options = {"padding": "causal", "dilation_rate": dilation, "activation": "tanh"}
        h = layers.Add()([h, layers.Conv1D(channels, 2, **options)(h)])
    outputs = layers.Dense(2, kernel_initializer="zeros", bias_initializer=_quiet)(h)
    return keras.Model(inputs if condition_channels else inputs[0], outputs)


def _quiet(shape: Sequence[int], dtype: tf.DType | None = None) -> tf.Tensor:
    return tf.constant([0.0, -1.0], dtype or tf.float32)
