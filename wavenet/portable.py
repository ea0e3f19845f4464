"""Export of a WaveNet's training step and sampler for machines with JAX and no TensorFlow."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from autoregressive.samplers.chunks import ChunkSampler, FixedPointSampler
from foundation.atomic_files import write_npz
from foundation.stored_config import defaults
from replicator.planning.trainable import Trainable
from replicator.portable.export import (
    export_function,
    export_training,
    named_weights,
    new_folder,
    next_command,
    restore,
    storable,
)
from replicator.training.state import LossFn, TrainState
from wavenet.config import WaveNetConfig
from wavenet.data import batch_sampling
from wavenet.data.corpus import Corpus
from wavenet.data.corpus_export import export_npz
from wavenet.networks import make_network
from wavenet.presets import TrainConfig
from wavenet.samplers.fixed_point import BlockPass
from wavenet.samplers.xla import XlaSampler
from wavenet.sound_network import Network
from wavenet.training import (
    CHANGEABLE,
    clip_context,
    initialise_network,
    loss_function,
    prepare_corpus,
    run_config,
    scan_folder,
    stored_gain_db,
)

CLIPS = "clips.npz"


def export_run(
    preset: str,
    config: TrainConfig,
    data: Path,
    folder: Path,
    workdir: Path | None = None,
    *,
    tensor_float_32: bool | None = None,
    log: Callable[[str], None] = print,
) -> Path:
    """Write a folder whose `python run.py` trains the network elsewhere, and return the folder.

    Args:
      preset: name of the preset, which is stored with the run.
      config: the training configuration.
      data: folder of recordings.
      folder: new, or without checkpoints.
      workdir: run directory whose newest checkpoint gives the weights; without one, or one without
        checkpoints, they are those of the seed.
      tensor_float_32: let an accelerator multiply in TensorFloat32; None: if the network predicts
        nothing linearly. With linear prediction the loss was not finite after 20 steps on an H100.
      log: called with progress messages.

    Raises:
      UserError, DataError, AudioError: the run cannot be exported; the message is one line that
        says what to do.
    """
    new_folder(folder)
    report = scan_folder(data, config)
    config = config.resolved(len({r.speaker for r in report.of("train")}))
    corpus = prepare_corpus(report, config, workdir, stored_gain_db(workdir))
    for line in [*report.lines(), *corpus.notes]:
        log(line)
    network = make_network(config)
    state = TrainState(network, config.optimizer, config.loop.num_steps)
    stored = run_config(preset, config, corpus, data)
    restore(state, workdir, stored, CHANGEABLE, defaults(config))
    if not int(state.step):
        initialise_network(network, state, config, corpus, log)
    export_corpus(folder, state, network, corpus, config, stored, tensor_float_32=tensor_float_32)
    log(next_command(folder, state))
    return Path(folder)


def export_corpus(
    folder: Path,
    state: TrainState,
    network: Network,
    corpus: Corpus,
    config: TrainConfig,
    stored: dict,
    *,
    tensor_float_32: bool | None = None,
) -> None:
    """Write step, state and clips of a prepared corpus; `stored` is the result of `run_config`."""
    export_training(
        folder,
        state,
        encoding_loss(network),
        batch_spec(config),
        config=stored,
        changeable=CHANGEABLE,
        tensor_float_32=rounding_allowed(config.network.prediction_order, tensor_float_32),
        batch_module=batch_sampling,
        batches={
            "file": CLIPS,
            "split": "train",
            "clip_samples": config.data.clip_samples,
            "batch_size": config.data.batch_size,
            "seed": config.seed,
            **_around(corpus, config),
        },
    )
    export_npz(corpus, Path(folder) / CLIPS, config.data.features)


def rounding_allowed(prediction_order: int, wanted: bool | None) -> bool:
    """Return whether to multiply in TensorFloat32: by default, if nothing is predicted linearly."""
    return not prediction_order if wanted is None else wanted


def _around(corpus: Corpus, config: TrainConfig) -> dict[str, Any]:
    """Return the settings of `batch_sampling.open_batches` for past and augmentation."""
    around = clip_context(config)
    augmentation = around.augmentation(corpus, config.data.features)
    return {
        "left_samples": around.left_samples,
        "side_frames": around.side_frames,
        "augmentation": None if augmentation is None else dataclasses.asdict(augmentation),
    }


def batch_spec(config: TrainConfig) -> dict[str, tf.TensorSpec]:
    """Return the spec of a batch of `data.pipeline.clips` that the exported step reads."""
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
    """Return the training step on encoded batches, to be planned."""
    make = functools.partial(trainable, config)
    config = config.resolved(max(config.network.speakers, 1))
    network = make_network(config)
    state = TrainState(network, config.optimizer, config.loop.num_steps)
    spec = batch_spec(config)
    spec["levels"] = tf.TensorSpec(spec.pop("waveform").shape, tf.int32)
    return Trainable(state, loss_function(network), spec, config.loop.jit_compile, make)


def encoding_loss(network: Network) -> LossFn:
    """Return the loss of `training.loss_function` for a batch without levels."""
    loss = loss_function(network)

    def encoding(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return loss({**batch, "levels": network.codec.encode(batch["waveform"])})

    return encoding


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
    """Write functions that sample the network under its current weights, and an initial state.

    `sampler`, of `XlaSampler.chunk`, takes and returns the fields of a `SamplerState`; it takes
    `noise` [batch, time, noise channels], `temperature` [] and, where the network has one,
    `condition` [batch, time, channels] too; it returns `levels` int32 [batch, time] and
    `parameters`. By fixed point, of `FixedPointSampler.chunk`, the state is a `PassState`
    (`pasts_0` is that of the first layer), and `passes` int32 [] replaces the parameters.

    `noise` takes `seed` uint32 [2] (high word, low word), `rows` int32 [batch] and `start` int32
    [], the position of the chunk. `condition`, for sounds of `num_frames`, takes `frames` [batch,
    num_frames, features] and `speaker` int32 [batch], whichever the network has.
    `sampler_state.npz` is the initial state. With a context stack, `chunk_samples` must be its
    block.
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
    state = _named(made.initial_state(batch))
    arrays = {name: storable(value.numpy()) for name, value in state.items()}
    write_npz(Path(folder) / "sampler_state.npz", arrays)


def _named(state: NamedTuple) -> dict[str, Any]:
    """Return the tensors of a sampler's state by name, those of a list numbered."""
    named: dict[str, Any] = {}
    for name, value in state._asdict().items():
        many = isinstance(value, list)
        named |= {f"{name}_{i}": v for i, v in enumerate(value)} if many else {name: value}
    return named


def _chunk(
    sampler: ChunkSampler, batch: int, samples: int
) -> tuple[Callable[..., Any], dict[str, tf.TensorSpec]]:
    network = sampler.network
    noise_channels, initial = network.likelihood.noise_channels, sampler.initial_state(batch)
    state = _named(initial)
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
        return {"levels": levels, sampler.found: found, **_named(after)}

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
    """Return the channels of `network.condition`, without the context stack."""
    return config.gate_inputs - (config.context_channels if config.context_layers else 0)
