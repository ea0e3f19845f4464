"""Tiny runs of every trainer, each in need of what a share of a batch does not hold.

As a program, `python strategy_runs.py STRATEGY FOLDER RUN...` makes them under a strategy, see
`main`, and `python strategy_runs.py data FOLDER` what they learn from.
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

import image_runs
import numpy as np
import soundfile
from runs import NEVER, TINY

from distill import training as distillation
from distill.config import ClipConfig, DistillConfig, LossConfig, StudentConfig
from distill.teacher import load_teacher
from onepass.foundation.rules import UserError
from onepass.replicator import Replicator, strategies
from onepass.replicator.training import training_run as recipes
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from pixelcnn import training as image_training
from pixelcnn.config import (
    ConditioningConfig,
    DataConfig,
    FactorConfig,
    MultiscaleConfig,
    MultiscaleTrainConfig,
    OutputConfig,
    PixelCNNConfig,
    PixelCNNTrainConfig,
)
from wavenet import training as sound_training

STEPS, ROWS, RATE_HZ, CLIP = 20, 4, 16_000, 2560
ADAM = OptimizerConfig(learning_rate=1e-3, warmup_steps=3, clip_norm=1.0, average_decay=0.9)
LOOP = LoopConfig(num_steps=STEPS, report_every_steps=1, evaluate_every_steps=NEVER)
GREY = OutputConfig(components=2, channels=1)
ONES = {"optimizer": ADAM, "loop": LOOP}
PIXELS = dict(
    output=GREY, conditioning=ConditioningConfig("class"), data=DataConfig(8, 1, batch_size=ROWS),
    compute_dtype="float32", **ONES,
)  # fmt: skip
CLIPS = dict(by_speaker=True, clip_samples=CLIP, batch_size=ROWS, min_seconds=0.05, level_db=None)
STUDENT = StudentConfig(
    flows=(1,), filter_width=2, residual_channels=4, gate_channels=4, front_width=4,
    condition_channels=6, sample_rate_hz=RATE_HZ,
)  # fmt: skip
FACTOR = FactorConfig("B", 1, 8, 8, 2, 1, 4, dropout=0.3)
CONFIGS = {
    # Recordings shorter than a clip: every share has its own number of samples that count.
    "wavenet": dataclasses.replace(TINY, data=dataclasses.replace(TINY.data, **CLIPS), **ONES),
    # Dropout: one mask for the whole batch.
    "pixelcnn": PixelCNNTrainConfig(
        **PIXELS, network=PixelCNNConfig(layers=1, units=8, output_units=8, dropout=0.3)
    ),
    # Random crops, and a mask of patches.
    "multiscale": MultiscaleTrainConfig(
        **PIXELS, network=MultiscaleConfig(2, factor=FACTOR, crop=4), parts=("8.3",)
    ),
    # Noise by row, other rows' conditions, energies of the batch, a prepared classifier.
    "plain": DistillConfig(
        STUDENT,
        LossConfig(draws=2, squared=1.0, multi=0.0, feature=1.0, style=1.0, contrastive=0.3),
        ClipConfig(clip_samples=CLIP, batch_size=ROWS),
        *(ADAM, LOOP),
    ),
}


def make_data(folder: Path) -> None:
    """Fills a folder with recordings of two speakers, images, and a teacher's run."""
    draws = np.random.default_rng(0)
    for split, lengths in {"train": [2000, 1000, 9000, 3000, 1500, 6000], "dev": [4000]}.items():
        for i, samples in enumerate(lengths):
            place = folder / "sounds" / split / ("ann", "bob")[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            tone = np.sin(np.arange(samples) * (0.05 + 0.02 * i))
            sound = 0.3 * tone + 0.05 * draws.normal(size=samples)
            soundfile.write(place / f"{i}.wav", sound, RATE_HZ, subtype="PCM_16")
    (folder / "images").mkdir()
    for seed, (split, count) in enumerate({"train": 24, "dev": 8}.items()):
        np.savez(folder / "images" / f"toy_{split}.npz", **image_runs.toys(count, seed))
    train("wavenet", folder, folder / "teacher", None, num_steps=2)


def train(
    trainer: str,
    folder: Path,
    workdir: Path,
    replicator: Replicator | None,
    accumulate: int = 1,
    rematerialise: bool = False,
    **loop,
):
    """Trains one of CONFIGS in a run directory, without evaluations; how it ended."""
    config = CONFIGS[trainer]
    less_memory = {"accumulate": accumulate, "rematerialise": rematerialise}
    config = dataclasses.replace(
        config,
        loop=dataclasses.replace(config.loop, **loop),
        optimizer=dataclasses.replace(config.optimizer, **less_memory),
    )
    if trainer == "wavenet":
        recipe: Any = sound_training.SpeechRecipe("tiny", config, folder / "sounds")
    elif trainer == "plain":
        teacher = folder / "teacher"
        model = load_teacher(teacher)
        data = folder / "sounds"
        recipe = distillation.StudentRecipe("tiny", config, data, model, teacher)
    else:
        recipe = image_training.ImageRecipe("tiny", config, folder / "images")
    return recipes.train(recipe, workdir, lambda line: None, replicator)


def blind() -> None:
    """Leaves out what takes long: evaluations, and most of the training of a classifier."""
    for training in (sound_training, image_training, distillation):
        training.EvaluationCallback.__init__ = lambda *_: None
        training.EvaluationCallback.__call__ = lambda *_: 1.0
    small = functools.partial(distillation.train_units, num_units=6, channels=4, steps=3)
    distillation.train_units = small


def main(strategy: str, folder: str, *words: str) -> int:
    """Makes runs FOLDER/RUN under a strategy, one after another; the exit status of the last.

    Args:
      strategy: the word for it.
      folder: filled by `make_data`.
      words: RUN, whose last part is a key of CONFIGS, or RUN={options of `train` as JSON}.
    """
    blind()
    status = 0
    try:
        replicator = strategies.from_environment(strategy)
        for word in words:
            run, _, options = word.partition("=")
            workdir, loop = Path(folder) / run, json.loads(options or "{}")
            outcome = train(workdir.name, Path(folder), workdir, replicator, **loop)
            print(f"{run} {outcome.step} {outcome.reason} {outcome.seconds:.1f}", flush=True)
            status = outcome.exit_status
    except UserError as error:
        print(f"onepass: {error}", file=sys.stderr, flush=True)
        return 2
    return status


if __name__ == "__main__":
    if sys.argv[1] == "data":
        blind()
        make_data(Path(sys.argv[2]))
    else:
        sys.exit(main(*sys.argv[1:]))
