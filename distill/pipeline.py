"""A student as pipeline stages, one per flow; the last stage also computes the loss."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from distill.config import StudentConfig
from distill.flows import Flow
from distill.losses.kl_divergence import divergence
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from onepass.likelihoods.affine import FlowOutput, compose
from onepass.planning.pipeline.export import Stage
from onepass.replicator.portable.export import named_weights

Tensors = dict[str, tf.Tensor]
Loss = Callable[[FlowOutput, Tensors], tf.Tensor]


def flow_stages(
    student: ParallelWaveNet,
    loss: Loss,
    loss_batch: tuple[str, ...] = (),
    frozen: dict[str, tf.Variable] | None = None,
) -> list[Stage]:
    """Return one stage per flow, for `export_stages`, of a student whose flows make the wave.

    The first stage reads `noise` float32 [batch, time] and the student's conditions, `frames`
    [batch, frames, channels] and `speaker` int32 [batch]. Each stage but the last passes on the
    current sound, its location and log scale, each [batch, time], and the condition [batch,
    bunches, channels], if there is one. The last stage computes the loss.

    Args:
      loss_batch: names of the entries of a batch that the loss reads.
      frozen: variables that the loss reads and training does not change, by name.
    """
    if student.residual is not None:
        raise ValueError("`student` must make the wave, not a residual.")
    known = named_weights(student)
    names = {variable.ref(): name for name, variable in known.items()}
    of_flows = [_variables_by_name(flow, names) for flow in student.flows]
    others = known.keys() - {name for variables in of_flows for name in variables}
    of_flows[0] |= {name: known[name] for name in known if name in others}
    last, stages = len(student.flows) - 1, []
    for number, (flow, variables) in enumerate(zip(student.flows, of_flows, strict=True)):
        read = condition_inputs(student.config) if number == 0 else ()
        read += loss_batch if number == last else ()
        run = _stage(student, flow, number == 0, loss if number == last else None)
        given = (frozen or {}) if number == last else {}
        stages.append(Stage(run, tuple(dict.fromkeys(read)), variables, given))
    return stages


def condition_inputs(config: StudentConfig) -> tuple[str, ...]:
    """Return the names of the entries of a batch that the first stage reads."""
    frames = ("frames",) if config.feature_channels else ()
    return ("noise", *frames, *(("speaker",) if config.speakers else ()))


def divergence_loss(student: ParallelWaveNet, teacher: WaveNetDensity) -> Loss:
    """Return KL(P_S || P_T), in nats per element, as a loss.

    Its batch has `frames` and `speaker` if the teacher needs them, and `draws` [batch, draws,
    time], which are standard noise.
    """

    def loss(drawn: FlowOutput, batch: Tensors) -> tf.Tensor:
        samples = drawn.output.shape[1]
        condition = teacher.condition(batch.get("frames"), batch.get("speaker"), samples)
        conditionals = teacher.conditionals(drawn.output, condition)
        draws = tf.transpose(batch["draws"], [1, 0, 2])
        return divergence(conditionals, drawn, draws, student.noise_kind).kl

    return loss


def planned_stages(
    student: ParallelWaveNet, teacher: WaveNetDensity, clip_samples: int
) -> dict[str, Any] | None:
    """Return the flows as stages for a plan (`onepass.planning.pipeline.steps.Stages`), as JSON.

    Work is proportional to the number of a stage's weights, as each weight is applied to every
    sample. The last stage also runs the teacher, with two thirds of the work per weight, because
    its weights need no gradient. The result is None for a student of residuals, which cannot be
    divided.
    """
    if student.residual is not None:
        return None
    work = [float(_size(flow)) for flow in student.flows]
    work[-1] += 2.0 / 3.0 * _size(teacher.network)
    config = student.config
    passed = len(FlowOutput._fields)
    passed += config.condition_channels * bool(config.feature_channels)
    passed += config.speaker_channels * bool(config.speakers)
    return {"work": work, "passed_bytes": 4.0 * clip_samples * passed}


def _size(module: tf.Module) -> int:
    return sum(int(variable.shape.num_elements()) for variable in module.variables)


def _variables_by_name(flow: Flow, names: dict) -> dict[str, tf.Variable]:
    return {names[variable.ref()]: variable for variable in flow.trainable_variables}


def _stage(
    student: ParallelWaveNet, flow: Flow, is_first: bool, loss: Loss | None
) -> Callable[[Tensors], Tensors]:

    def run(given: Tensors) -> Tensors:
        if is_first:
            noise = given["noise"]
            condition, _ = student.condition(
                given.get("frames"), given.get("speaker"), noise.shape[1]
            )
            channels = condition.channels
            drawn = flow.forward(noise, channels)
        else:
            before = FlowOutput(given["output"], given["location"], given["log_scale"])
            channels = given.get("channels")
            drawn = compose([before, flow.forward(before.output, channels)])
        if loss is not None:
            return {"loss": loss(drawn, given)}
        passed = drawn._asdict()
        return passed if channels is None else passed | {"channels": channels}

    return run
