"""The density of an image model: a conditioner with a PixelCNN or a multiscale network."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from onepass.foundation.measures import CodeLengths, measure_code_lengths
from onepass.foundation.processor import compute_dtype
from onepass.likelihoods.initial import Initial
from onepass.networks.conditions import Specs
from onepass.replicator import Replicator
from pixelcnn.config import AnyTrainConfig, part_names
from pixelcnn.data.captions import encode_caption
from pixelcnn.networks.conditioning import Condition, Conditioner
from pixelcnn.networks.layers import EXACT, BatchSlice, Mode
from pixelcnn.networks.multiscale import Multiscale, condition_at
from pixelcnn.networks.outputs import PixelOutputs
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.sampling.samplers import multiscale_words


class ImageDensity(tf.Module):
    """The density of images given their conditions; `config` is `ImageDataset.resolved_config`."""

    def __init__(
        self, config: AnyTrainConfig, initial: Initial | None = None, name: str = "density"
    ) -> None:
        super().__init__(name=name)
        initial = Initial(config.seed) if initial is None else initial
        self.config = config
        self.conditioner = Conditioner(config.conditioning, initial, config.data.size)
        self.pixelcnn: PixelCNN | None = None
        self.multiscale: Multiscale | None = None
        if config.kind == "pixelcnn":
            self.pixelcnn = PixelCNN(
                config.network,
                config.output,
                initial,
                self.conditioner.vector_channels,
                self.conditioner.map_channels,
            )
        else:
            self.multiscale = Multiscale(
                config.network,
                config.data.size,
                config.output,
                initial,
                self.conditioner.vector_channels,
                self.conditioner.map_channels,
                parts=config.part_names,
            )

    @property
    def num_dims(self) -> int:
        """Number of dimensions of an image, pixels times channels."""
        return self.config.data.size**2 * self.config.data.channels

    @property
    def whole(self) -> bool:
        """Return whether all parts of the model exist, which sampling from scratch needs."""
        model = self.multiscale
        return model is None or len(model.parts) == len(part_names(model.sizes))

    def drawn_numbers(self, levels: tf.Tensor) -> float:
        """Return the number of dimensions per image by which bits are divided.

        It is the number of values (pixels times channels) in an image; for a model of images of any
        shape, the number of values that its parts draw. `levels` have a static shape [batch,
        height, width, channels].
        """
        share = 1.0
        if self.multiscale is not None and self.multiscale.any_shape:
            share = self.multiscale.drawn_share
        return share * math.prod(levels.shape[1:])

    def nats(self, batch: dict, mode: Mode = EXACT, seeds: tf.Tensor | None = None) -> dict:
        """Return {part: log-probability}, in nats, float32 [batch] each.

        `batch` has "levels" int32 [batch, height, width, channels], and the conditioner's inputs;
        `seeds` int32 [batch, 2] select random crops of the larger scales; None: whole images.
        """
        levels, condition = batch["levels"], self.conditioner(batch)
        if self.multiscale is not None:
            return self.multiscale.nats(levels, condition, mode, seeds)
        parts = self.conditionals(levels, condition, mode)
        return {part: conditionals.nats() for part, conditionals in parts.items()}

    def drawn_nats(self, batch: dict, seed: tf.Tensor, rows: tf.Tensor) -> dict:
        """Return `nats`, part by part, of images that `ImageSampler` drew at temperature 1.

        For a base that is a flow, it is the density at the noise that was drawn, which needs no
        inverse of the flow (`ImageFlow.drawn_nats`).
        """
        model = self.multiscale
        if model is None or not model.has_flow:
            return self.nats(batch)
        condition, side = self.conditioner(batch), model.config.base_size
        words = multiscale_words(model, seed, rows, side)
        words = tf.reshape(words, [-1, side, side, model.noise_words])
        nats = {model.parts[0]: model.base.drawn_nats(words, condition_at(condition, side))}
        parts = self.conditionals(batch["levels"], condition)
        return nats | {part: conditionals.nats() for part, conditionals in parts.items()}

    def conditionals(
        self,
        levels: tf.Tensor,
        condition: Condition,
        mode: Mode = EXACT,
        seeds: tf.Tensor | None = None,
    ) -> dict[str, PixelOutputs]:
        """Return {part: distribution of every pixel}; a PixelCNN has one part.

        `levels` are int32 [batch, height, width, channels]; `condition` is the conditioner's
        output; `seeds` int32 [batch, 2] select random crops of the larger scales.
        """
        if self.multiscale is not None:
            return self.multiscale.conditionals(levels, condition, mode, seeds)
        if self.pixelcnn is None:
            raise ValueError("`config` must be of a PixelCNN or of a multiscale model.")
        size = str(self.config.data.size)
        return {size: self.pixelcnn.conditionals(levels, condition, mode)}

    def loss(self, batch: dict) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the negative log-likelihood in nats per dimension, and metric "bits_per_dim".

        A replica's share of a batch also contains the results of `ImageLoss.global_inputs`.
        """
        nats = tf.add_n(list(self.nats(batch, self.training_mode(batch), batch["seed"]).values()))
        value = -tf.reduce_mean(nats) / self.drawn_numbers(batch["levels"])
        return value, {"bits_per_dim": value / math.log(2.0)}

    def training_mode(self, batch: dict) -> Mode:
        """Return the precision and dropout for a training batch, or for a replica's share of it."""
        seed, share = batch["seed"][0], None
        if "share" in batch:
            seed = batch["seeds"][0, 0]
            share = BatchSlice(batch["share"], batch["seeds"].shape[0])
        return Mode(compute_dtype(self.config.compute_dtype), seed, share)


class CompiledNats:
    """A compiled function from batches to nats by part, of a density unless another is given."""

    def __init__(self, density: ImageDensity, nats: Callable[[dict], dict] | None = None) -> None:
        self._density = density
        function = density.nats if nats is None else nats
        self._nats = tf.function(function, autograph=False, reduce_retracing=True)

    def code_lengths(self, batches: Iterable[dict]) -> CodeLengths:
        """Return the code lengths of images, of which a part draws `drawn_numbers`."""

        def sizes(batch: dict) -> np.ndarray:
            levels = batch["levels"]
            return np.full(len(levels), self._density.drawn_numbers(levels))

        return measure_code_lengths(batches, self._nats, sizes)


class ImageLoss:
    """The training loss of a density, for a batch or a replica's share of it."""

    def __init__(self, density: ImageDensity) -> None:
        self.density = density

    def __call__(self, batch: dict) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the negative log-likelihood in nats per dimension, and metric "bits_per_dim"."""
        return self.density.loss(batch)

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict:
        """Return the inputs of dropout that depend on the whole batch, for `GlobalBatchLoss`.

        "seeds", int32 [replicas, rows, 2], are the seeds of the whole batch; "share", int32 [], is
        the index of the replica's share.
        """
        return {"seeds": replicator.all_gather(batch["seed"]), "share": replicator.replica_id}


def condition_specs(config: AnyTrainConfig) -> Specs:
    """Return the conditioner's inputs for a batch of one, as specs; `config` must be resolved."""
    side, conditioning = config.data.size, config.conditioning
    steps = conditioning.context_frames
    frames = [1, steps, side, side, config.data.channels]
    video = {"past": tf.TensorSpec(frames, tf.int32)}
    channels = {"action": conditioning.action_channels, "state": conditioning.state_channels}
    for name, count in channels.items():
        if count:
            video[name] = tf.TensorSpec([1, steps, count], tf.float32)
    kinds: dict[str, Specs] = {
        "class": {"label": tf.TensorSpec([1], tf.int32)},
        "text": {"caption": tf.TensorSpec([1, len(encode_caption(""))], tf.int32)},
        "map": {"map": tf.TensorSpec([1, side, side], tf.int32)},
        "video": video,
    }
    return kinds.get(conditioning.kind, {})
