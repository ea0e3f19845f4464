"""What a WaveNet is made of: one frozen dataclass, every field settable on the command line."""

import dataclasses
import math
from typing import Literal

from likelihoods import Categorical, Gaussian, LogisticMixture
from likelihoods.protocol import Likelihood


@dataclasses.dataclass(frozen=True)
class WaveNetConfig:
    """The architecture of a WaveNet (van den Oord et al. 2016, sections 2.1 to 2.6).

    Channel counts are those of one half of a gate; the convolution feeding it has twice as many.
    """

    likelihood: Literal["logistic", "gaussian", "categorical"] = "logistic"
    """What the output means: mixture of logistics, Gaussian, or a softmax over mu-law levels."""
    levels: int = 65536
    """Amplitude levels: 65536 is 16-bit linear PCM, 256 the usual mu-law."""
    components: int = 10
    """Logistics in the mixture."""
    min_log_scale: float = -16.0
    """Lower bound of a log-scale, in log units of full scale."""
    layers: int = 30
    """Residual layers in all."""
    stacks: int = 3
    """Dilation cycles; each runs 1, 2, 4, ... over layers/stacks layers."""
    filter_width: int = 3
    """Taps of a dilated convolution: 2 or 3."""
    residual_channels: int = 64
    """Channels from layer to layer."""
    gate_channels: int = 64
    """Gated units in a layer."""
    skip_channels: int = 128
    """Channels from the layers to the output, and of its two layers."""
    front_width: int = 1
    """Past samples that the first convolution reads (1 for a softmax)."""
    linear_prediction: bool = False
    """Add a learned linear prediction from the `front_width` past samples to every mean."""
    input_gain: float = 1.0
    """Factor on the waveform inside the network, for quiet recordings kept at their level."""
    feature_channels: int = 0
    """Channels of the conditioning frames (mel bands, F0, ...); 0: no local condition."""
    condition_channels: int = 64
    """Channels of the upsampled condition that every gate reads."""
    frame_width: int = 5
    """Frames that the convolution in front of the upsampling reads, centred."""
    upsample_factors: tuple[int, ...] = ()
    """Factors of the learned upsampling; their product is the hop in samples."""
    speakers: int = 0
    """Number of speakers (or classes) for the global condition; 0: none."""
    speaker_channels: int = 16
    """Size of a learned speaker embedding; 0: one-hot."""
    context_layers: int = 0
    """Layers of the context stack, which reads whole blocks of past sound; 0: none."""
    context_block_samples: int = 64
    """Samples in a block of the context stack."""
    context_channels: int = 32
    """Channels of the context stack and of the condition it gives."""
    compute_dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Arithmetic inside the network; variables and outputs stay float32. float64 is for judging:
    with it, samplers whose sums run in another order still draw the very same levels."""

    def __post_init__(self):
        """Raises ValueError, naming the field, for an impossible network."""
        _require(self.stacks >= 1, "stacks", "at least 1", self.stacks)
        _require(self.layers >= 1, "layers", "at least 1", self.layers)
        _require(self.layers % self.stacks == 0, "layers", "a multiple of `stacks`", self.layers)
        _require(self.filter_width in (2, 3), "filter_width", "2 or 3", self.filter_width)
        _require(self.front_width >= 1, "front_width", "at least 1", self.front_width)
        for name in ("residual_channels", "gate_channels", "skip_channels"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.input_gain > 0, "input_gain", "positive", self.input_gain)
        for name in ("feature_channels", "speakers", "speaker_channels", "context_layers"):
            _require(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        _require(self.frame_width % 2 == 1, "frame_width", "odd", self.frame_width)
        if self.feature_channels:
            _require(len(self.upsample_factors) > 0, "upsample_factors", "given", ())
        if self.likelihood == "categorical":
            _require(self.front_width == 1, "front_width", "1 for a softmax", self.front_width)
            _require(not self.linear_prediction, "linear_prediction", "off for a softmax", True)
        self.make_likelihood()

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each layer, in samples."""
        cycle = self.layers // self.stacks
        return tuple(2 ** (layer % cycle) for layer in range(self.layers))

    @property
    def receptive_field(self) -> int:
        """Past samples that one conditional depends on, the context stack left aside."""
        return (self.filter_width - 1) * sum(self.dilations) + self.front_width

    @property
    def hop_samples(self) -> int:
        """Samples between two conditioning frames; 1 without a local condition."""
        return math.prod(self.upsample_factors) if self.feature_channels else 1

    @property
    def gate_inputs(self) -> int:
        """Channels of the whole condition [batch, time, gate_inputs] that the gates read."""
        local = self.condition_channels if self.feature_channels else 0
        speaker = (self.speaker_channels or self.speakers) if self.speakers else 0
        return local + speaker + (self.context_channels if self.context_layers else 0)

    @property
    def context_blocks(self) -> int:
        """Past blocks that the context stack sees."""
        return 2**self.context_layers if self.context_layers else 0

    def make_likelihood(self) -> Likelihood:
        """The distribution that the output parametrises."""
        if self.likelihood == "logistic":
            return LogisticMixture(self.levels, self.components, self.min_log_scale)
        if self.likelihood == "gaussian":
            return Gaussian(self.levels, self.min_log_scale)
        return Categorical(self.levels)


def _require(holds: bool, field: str, rule: str, value) -> None:
    if not holds:
        raise ValueError(f"`{field}` must be {rule}, got {value}.")
