"""Settings of a training run: how long, and with which optimiser. Needs no TensorFlow."""

import dataclasses
import math
from typing import Generic, Literal, TypeVar

from replicator.runs.field_rules import at_least, require

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Preset(Generic[Config]):
    """A configuration, what it is for, what it should reach and what it costs."""

    about: str
    config: Config


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train and how often to look; may change when a run is resumed."""

    num_steps: int = 10_000
    """Updates in all; a resumed run counts those it has made. A cosine decay ends here."""
    max_minutes: float = 0.0
    """Stop after so many minutes of this run, the last evaluation among them once one was made; 0:
    no limit."""
    report_every_steps: int = 20
    """Steps between two lines of metrics."""
    evaluate_every_steps: int = 1000
    """Steps between two evaluations on dev; there is one at the end too."""
    save_every_minutes: float = 5.0
    """Minutes between two checkpoints, beside those at evaluations and at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept, beside the best on dev."""
    jit_compile: bool = False
    """Compile the step with XLA."""

    def __post_init__(self):
        """Raises ValueError, naming the field, for a number out of range."""
        at_least(self, 1, "num_steps", "report_every_steps", "evaluate_every_steps")
        at_least(self, 1, "keep_checkpoints")
        at_least(self, 0, "max_minutes", "save_every_minutes")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam's settings, with the schedule of its learning rate."""

    learning_rate: float = 1e-3
    """Peak step size of Adam."""
    warmup_steps: int = 200
    """Steps over which the rate rises linearly from 0."""
    decay: Literal["constant", "cosine", "halve", "cooldown"] = "constant"
    """What the rate does afterwards: stay, fall to 0 along a cosine, halve now and then, or stay
    and fall linearly to 0 over the last `cooldown_steps`. With the last one a run that is made
    longer before they begin goes on as if it had been planned so."""
    cooldown_steps: int = 1_000
    """Length of the final decay when `decay` is cooldown."""
    halve_every_steps: int = 200_000
    """Steps between halvings when `decay` is halve."""
    beta1: float = 0.9
    """Decay of Adam's average of gradients."""
    beta2: float = 0.999
    """Decay of Adam's average of squared gradients."""
    epsilon: float = 1e-8
    """Added to the root of that average, in units of the gradient."""
    clip_norm: float = 10.0
    """Global norm that a gradient is clipped to; 0: never."""
    average_decay: float = 0.999
    """Decay of the Polyak average of the weights, which samples and evaluations use."""
    accumulate: int = 1
    """Microbatches whose gradients are accumulated in turn, so that a step needs the memory of one
    microbatch; the update is the same."""
    rematerialise: bool = False
    """Compute the insides of layers again for the gradient instead of keeping them: less memory,
    more time; the update is the same."""

    def __post_init__(self):
        """Raises ValueError, naming the field, for a rate or decay out of range."""
        for name in ("learning_rate", "epsilon"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "positive and finite", value)
        for name in ("beta1", "beta2", "average_decay"):
            require(0 <= getattr(self, name) < 1, name, "in [0, 1)", getattr(self, name))
        at_least(self, 0, "warmup_steps", "clip_norm")
        at_least(self, 1, "halve_every_steps", "cooldown_steps", "accumulate")
