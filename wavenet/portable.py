"""Export of a WaveNet's training step for planning, and of its sampler for JAX."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from onepass.foundation.atomic_files import write_npz
from onepass.planning.trainable import Trainable
from onepass.replicator.portable.export import export_function, named_weights, storable
from onepass.replicator.training.state import TrainState
from onepass.samplers.cached import ChunkSampler, FixedPointSampler
from onepass.trained import Trained
from wavenet.config import WaveNetConfig
from wavenet.network_factory import make_network
from wavenet.presets import TrainConfig
from wavenet.samplers import CHUNK_SAMPLES
from wavenet.samplers.symbols import BlockPass
from wavenet.samplers.xla import XlaSampler
from wavenet.sound_network import Network
from wavenet.training import ClipLoss, clip_context

PORTABLE_FRAMES = 200  # default number of frames per sound


def batch_spec(config: TrainConfig) -> dict[str, tf.TensorSpec]:
    """Return the shapes and types of a training batch from `data.pipeline.clips`."""
    rows, samples = config.data.batch_size, config.data.left_samples + config.data.clip_samples
    sound = tf.TensorSpec([rows, samples], tf.float32)
    spec = {"waveform": sound, "mask": sound}
    if config.network.speakers:
        spec["speaker"] = tf.TensorSpec([rows], tf.int32)
    if config.network.feature_channels:
        frames = samples // config.network.hop_samples + 2 * clip_context(config).side_frames
        spec["frames"] = tf.TensorSpec([rows, frames, config.network.feature_channels], tf.float32)
    return spec


def trainable(config: TrainConfig) -> Trainable:
    """Return the training step for planning; its batches contain levels instead of waveforms."""
    make = functools.partial(trainable, config)
    config = config.resolved(max(config.network.speakers, 1))
    network = make_network(config)
    state = TrainState(network, config.optimizer, config.loop.num_steps)
    spec = batch_spec(config)
    spec["levels"] = tf.TensorSpec(spec.pop("waveform").shape, tf.int32)
    return Trainable(state, ClipLoss(network), spec, config.loop.jit_compile, make)


def export_sampler(
    folder: Path,
    network: Network,
    *,
    batch: int,
    chunk_samples: int,
    num_frames: int | None = None,
    sampler: Literal["cached", "fixed-point"] = "cached",
    tensor_float_32: bool = True,
) -> None:
    """Export functions that sample the network with its current weights, and an initial state.

    - `sampler` (`XlaSampler.chunk`) takes and returns the fields of a `SamplerState`. It also takes
      `noise` [batch, time, noise channels], `temperature` [] and, for a conditional network,
      `condition` [batch, time, channels]; it also returns `levels` int32 [batch, time] and
      `parameters`. For "fixed-point" (`FixedPointSampler.chunk`) the state is a `PassState`, whose
      `pasts_0` belongs to the first layer, and `passes` int32 [] replaces `parameters`.
    - `noise` takes `seed` uint32 [2] (high word, low word), `rows` int32 [batch] and `start` int32
      [], the position of the chunk.
    - `condition`, if `num_frames` is given, takes the inputs that the network reads: `frames`
      [batch, num_frames, features] and `speaker` int32 [batch].
    - `sampler_state.npz` contains the initial state.

    With a context stack, `chunk_samples` must be the number of samples in one of its blocks.
    """
    made: ChunkSampler = XlaSampler(network)
    if sampler == "fixed-point":
        made = FixedPointSampler(BlockPass(network), network.likelihood)
    functions = {
        "sampler": _chunk(made, batch, chunk_samples),
        "noise": _noise(network, batch, chunk_samples),
    }
    if num_frames is not None:
        functions["condition"] = _condition(network, batch, num_frames)
    variables = named_weights(network)
    for name, (fn, inputs) in functions.items():
        export_function(
            fn, inputs, folder, name, variables=variables, tensor_float_32=tensor_float_32
        )
    state = _tensors_by_name(made.initial_state(batch))
    arrays = {name: storable(value.numpy()) for name, value in state.items()}
    write_npz(Path(folder) / "sampler_state.npz", arrays)


def export_chunks(model: Trained, folder: Path, frames: int) -> None:
    """Export a model's sampler for one waveform of `frames` frames; 0: `PORTABLE_FRAMES`."""
    network = model.network
    blocks = network.config.context_layers > 0
    export_sampler(
        folder,
        network,
        batch=1,
        chunk_samples=network.config.context_block_samples if blocks else CHUNK_SAMPLES,
        num_frames=frames or PORTABLE_FRAMES,
    )


def _tensors_by_name(state: NamedTuple) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in state._asdict().items():
        many = isinstance(value, list | tuple)
        named |= {f"{name}_{i}": v for i, v in enumerate(value)} if many else {name: value}
    return named


def _chunk(
    sampler: ChunkSampler, batch: int, samples: int
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    network = sampler.network
    noise_channels, initial = network.likelihood.noise_channels, sampler.initial_state(batch)
    state = _tensors_by_name(initial)
    inputs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in state.items()}
    inputs["noise"] = tf.TensorSpec([batch, samples, noise_channels], tf.float32)
    inputs["temperature"] = tf.TensorSpec([], tf.float32)
    channels = condition_channels(network.config)
    if channels:
        inputs["condition"] = tf.TensorSpec([batch, samples, channels], network.dtype)

    def chunk(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        before = tf.nest.pack_sequence_as(initial, [given[name] for name in state])
        levels, found, after = sampler.chunk(
            before, given.get("condition"), given["noise"], given["temperature"]
        )
        return {"levels": levels, sampler.found: found, **_tensors_by_name(after)}

    return chunk, inputs


def _noise(
    network: Network, batch: int, samples: int
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    inputs = {
        "seed": tf.TensorSpec([2], tf.uint32),
        "rows": tf.TensorSpec([batch], tf.int32),
        "start": tf.TensorSpec([], tf.int32),
    }

    def noise(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        made = network.likelihood.noise(given["seed"], given["rows"], given["start"], samples)
        return {"noise": made}

    return noise, inputs


def _condition(
    network: Network, batch: int, num_frames: int
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    config, inputs = network.config, {}
    if config.feature_channels:
        inputs["frames"] = tf.TensorSpec([batch, num_frames, config.feature_channels], tf.float32)
    if config.speakers:
        inputs["speaker"] = tf.TensorSpec([batch], tf.int32)
    samples = num_frames * config.hop_samples

    def condition(given: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        made = network.condition(given.get("frames"), given.get("speaker"), samples)
        return {"condition": made}

    return condition, inputs


def condition_channels(config: WaveNetConfig) -> int:
    """Return the number of channels of a result of `network.condition`; 0 if it is None."""
    return config.gate_inputs - (config.context_channels if config.context_layers else 0)
