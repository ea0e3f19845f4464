"""Presets of distilled image models, each with its expected quality and its cost."""

import dataclasses

from distill.images.config import (
    FlowConfig,
    FlowTargets,
    GuidedConfig,
    GuidedTargets,
    ImageDistillConfig,
)
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset

_ADAM = OptimizerConfig(
    learning_rate=1e-3, warmup_steps=20, decay="cosine", average_decay=0.99, clip_norm=1.0
)
# Adam's first updates have nearly the same size for every weight, which harms a trained network.
_GENTLE_ADAM = dataclasses.replace(_ADAM, learning_rate=1.5e-4)
_FEW_STEPS = LoopConfig(num_steps=4, evaluate_every_steps=4)

PRESETS: dict[str, Preset[ImageDistillConfig]] = {
    "guided-smoke": Preset(
        "Guidance distilled into a class-conditional model, 4 steps: does everything run?",
        GuidedConfig(optimizer=_ADAM, loop=_FEW_STEPS, batch_size=8),
    ),
    "guided-32": Preset(
        "Guidance distilled into a class-conditional multiscale model of 32x32 pixels; three "
        "minutes of processor time. For shipped-digits, 89.5% of samples show their class (76.0% "
        "before; 92.5% with the guided teacher, which takes twice the time).",
        GuidedConfig(
            targets=GuidedTargets(guidance=1.5, temperature=(1.0, 0.9, 0.8)),
            optimizer=_GENTLE_ADAM,
            loop=LoopConfig(num_steps=200, evaluate_every_steps=200),
            batch_size=8,
            table_side=8,
            compute_dtype="bfloat16",
        ),
    ),
    "flow-smoke": Preset(
        "Two tiny flows in place of a PixelCNN, 4 steps: does everything run? Seconds.",
        FlowConfig(
            targets=FlowTargets(likelihood=1.0, forward=1.0, draws=4),
            optimizer=_ADAM,
            loop=_FEW_STEPS,
            batch_size=4,
            flows=(1, 1),
            units=8,
        ),
    ),
    "flow-base": Preset(
        "Flows that draw the base of a multiscale model in one pass, by forward KL: 7 passes for "
        "32x32 pixels instead of 70; 0.3 to 0.6 s of one core per step. With --targets.guidance "
        "1.5, 83% of samples show their class (shipped-digits: 71%, guided 90%).",
        FlowConfig(
            targets=FlowTargets(kl=0.0, forward=1.0),
            optimizer=_ADAM,
            loop=LoopConfig(num_steps=4_000, evaluate_every_steps=1_000),
        ),
    ),
    "flow-32": Preset(
        "Flows that draw a whole image of 32x32 pixels in one pass, for a PixelCNN teacher, by "
        "forward KL. A demonstration, trained here for only 300 steps, which is too short.",
        FlowConfig(
            targets=FlowTargets(kl=0.0, forward=1.0),
            optimizer=_ADAM,
            loop=LoopConfig(num_steps=20_000, evaluate_every_steps=1_000),
            batch_size=4,
        ),
    ),
}
