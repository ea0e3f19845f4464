"""`benchmarks.first_guesses`: a row for every guess, with the passes that it takes."""

import types

import numpy as np

from benchmarks import first_guesses as guesses
from onepass.samplers.fixed_point import FixedPoint
from pixelcnn.autoregression import linear_forecast


def test_every_guess_has_a_row_with_its_passes_and_the_images_that_differ(monkeypatch):
    draws = np.random.default_rng(0)
    images, asked = draws.integers(0, 256, [3, 8, 8, 1]), []
    scales = [[draws.integers(0, 256, [side, side, 1]) for side in (4, 8)] for _ in range(3)]
    parts = [[scale[None] for scale in image] for image in scales]

    def sampled(model, wanted, seed, guess, forecast, slots):
        asked.append((wanted, seed, guess, forecast, slots))
        other = images + (np.arange(3) == 1)[:, None, None, None] * (forecast is None)
        return FixedPoint(*map(guesses.tf.constant, (other, [3, 5, 7 + len(asked)], 9)))

    def sample(num, seed, condition):
        return images

    conditioning = types.SimpleNamespace(classes=2)
    config = types.SimpleNamespace(conditioning=conditioning)
    front = types.SimpleNamespace(size=8)
    known = types.SimpleNamespace(config=config, front=front, sample=sample)
    multiscale = types.SimpleNamespace(stream=lambda num, seed, condition, scales: iter(parts))
    monkeypatch.setattr(guesses, "sampled", sampled)
    assert list(guesses.lines(known, multiscale, 3, 5, {"slots": 2})) == [
        "| grey | what the pass sampled | 5.3 | 3 to 8 | 1 of 3 |",
        "| grey | linear forecast | 5.7 | 3 to 9 | 0 of 3 |",
        "| the multiscale model's image | linear forecast | 6.0 | 3 to 10 | 0 of 3 |",
        "| its last scale but one | linear forecast | 6.3 | 3 to 11 | 0 of 3 |",
    ]
    assert [each[3] for each in asked] == [None, *[linear_forecast] * 3]
    assert all((each[0], each[1], each[4]) == ([0, 1, 0], 5, 2) for each in asked)
    assert asked[0][2] is asked[1][2] is None
    np.testing.assert_array_equal(asked[2][2], [last for _, last in scales])
    np.testing.assert_array_equal(asked[3][2][:, ::2, 1::2], [small for small, _ in scales])
