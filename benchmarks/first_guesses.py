"""Passes that a PixelCNN's exact sampler by fixed point takes, guess by guess, as a table.

    python -m benchmarks.first_guesses shipped-digits-teacher --multiscale shipped-digits

Whatever the guess, the images are those of the cached sampler; the last column counts the ones that
are not (ties in float32, see docs/images.md).
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.likelihoods.noise import as_key
from onepass.samplers.fixed_point import FixedPoint
from onepass.trained import Trained
from pixelcnn.autoregression import ACTIVE_ROWS, Forecast, linear_forecast
from pixelcnn.model import load, pixelcnn_program, sampler_of
from pixelcnn.sampling.grids import enlarge_pixels

HEADER = "| first guess | next guess | passes | range | differ |\n|---|---|---|---|---|"


def lines(
    model: Trained, multiscale: Trained | None, num: int, seed: int, options: dict[str, Any]
) -> Iterator[str]:
    """Yield the rows of the table as they are measured.

    Args:
      model: a PixelCNN, of classes (all in turn) or of none.
      multiscale: of the same classes and size, whose images of the same seed are first guesses;
        None: there are none.
      num: number of images.
      seed: of the noise.
      options: of `by_windows`, for every row.
    """
    classes = model.config.conditioning.classes
    wanted: list[Any] = [i % classes if classes else None for i in range(num)]
    cached = model.sample(num, seed=seed, condition=wanted)
    for first, guess in _guesses(model, multiscale, wanted, seed):
        forecasts: dict[str, Forecast | None] = {"linear forecast": linear_forecast}
        if guess is None:
            forecasts = {"what the pass sampled": None, **forecasts}
        for then, forecast in forecasts.items():
            found = sampled(model, wanted, seed, guess=guess, forecast=forecast, **options)
            passes = found.passes.numpy()
            differ = (found.levels.numpy() != cached).any((1, 2, 3)).sum()
            span = f"{passes.min()} to {passes.max()}"
            yield f"| {first} | {then} | {passes.mean():.1f} | {span} | {differ} of {num} |"


def sampled(model: Trained, wanted: list, seed: int, **options) -> FixedPoint:
    """Return images 0, 1, ... of a seed by fixed point, one of each condition."""
    density: Any = model.network
    sampler = sampler_of("fixed-point", **options)
    each = [model.front.condition(value) for value in wanted]
    batch = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    program = pixelcnn_program(density.conditioner, density.pixelcnn, model.front.size, sampler)
    return program(batch, as_key(seed), tf.range(len(wanted)), None, tf.constant(1.0))


def _guesses(model: Trained, multiscale: Trained | None, wanted: list, seed: int):
    """Yield the name of each first guess, and the guess, int32 [num, side, side, channels]."""
    yield "grey", None
    if multiscale is None:
        return
    scales = list(multiscale.stream(len(wanted), seed=seed, condition=wanted, scales=True))
    for name, place in (("the multiscale model's image", -1), ("its last scale but one", -2)):
        yield (
            name,
            np.stack([enlarge_pixels(s[place][0], model.front.size) for s in scales]).astype(
                np.int32
            ),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a PixelCNN: run directory, model folder or shipped name")
    parser.add_argument("--multiscale", help="a multiscale model of the same classes and size")
    parser.add_argument("--num", type=int, default=16, help="images")
    parser.add_argument("--seed", type=int, default=0, help="of their noise")
    parser.add_argument("--batch", type=int, default=8, help="images that a pass computes")
    parser.add_argument("--active-rows", type=int, default=ACTIVE_ROWS, help="rows of a pass")
    given = parser.parse_args()
    known, guide = load(given.model), load(given.multiscale) if given.multiscale else None
    print(HEADER, flush=True)
    own = {"slots": given.batch, "active_rows": given.active_rows}
    for line in lines(known, guide, given.num, given.seed, own):
        print(line, flush=True)
