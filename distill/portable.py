"""Export of a student's sampler for machines with JAX but without TensorFlow."""

from pathlib import Path

import tensorflow as tf

from distill.student import ParallelWaveNet
from onepass.replicator.portable.export import export_function, named_weights
from onepass.trained import Trained
from wavenet.portable import PORTABLE_FRAMES


def export_sampler(
    folder: Path,
    student: ParallelWaveNet,
    *,
    batch: int,
    num_frames: int,
    name: str = "speak",
    tensor_float_32: bool = True,
) -> None:
    """Write a function that draws whole sounds in one pass with the student's current weights.

    It takes `seed` uint32 [2] (high word, low word), `rows` int32 [batch] (the index of each sound
    in the seed's sequence), `temperature` [] and, if the student has them, `frames` float32
    [batch, num_frames, channels] and `speaker` int32 [batch]. It returns `sound` float32 [batch,
    samples] in [-1, 1], as `generation.generate` does. For a student without frames, a frame is one
    sample.
    """
    config, samples = student.config, num_frames * student.config.hop_samples
    inputs = {
        "seed": tf.TensorSpec([2], tf.uint32),
        "rows": tf.TensorSpec([batch], tf.int32),
        "temperature": tf.TensorSpec([], tf.float32),
    }
    if config.feature_channels:
        inputs["frames"] = tf.TensorSpec([batch, num_frames, config.feature_channels], tf.float32)
    if config.speakers:
        inputs["speaker"] = tf.TensorSpec([batch], tf.int32)

    def speak(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        noise = student.noise(given["seed"], given["rows"], 0, samples) * given["temperature"]
        condition, _ = student.condition(given.get("frames"), given.get("speaker"), samples)
        sound = tf.cast(student.draw(noise, condition).output, tf.float32)
        return {"sound": tf.clip_by_value(sound, -1.0, 1.0)}

    weights = named_weights(student)
    export_function(speak, inputs, folder, name, variables=weights, tensor_float_32=tensor_float_32)


def export_sounds(model: Trained, folder: Path, frames: int) -> None:
    """Write a model's sampler for one sound of `frames` frames; 0 means `PORTABLE_FRAMES`."""
    export_sampler(folder, model.network, batch=1, num_frames=frames or PORTABLE_FRAMES)
