"""Samplers of images: a PixelCNN naively and cached, the multiscale model, and tfp's PixelCNN.

The networks of the small presets with random weights (the work does not depend on them), colour
images of one class, one at a time. A naive sampler is stopped after some of its passes; all passes
are alike, so the speed is that of the pixels that it has drawn.
"""

from benchmarks import image_samplers, tfp_pixelcnn
from benchmarks.image_samplers import MULTISCALE, Timed
from benchmarks.report import Benchmark, Row

SIZES = (16, 32, 64, 128)
NAIVE, CACHED, PEER = "naive", "cached", "tfp PixelCNN"


def benchmark(quick: bool = False, sizes: tuple[int, ...] = SIZES) -> Benchmark:
    """Return the benchmark of samplers of images; `quick` has images of 16 x 16 pixels."""
    found = Benchmark("images")
    sizes = (16,) if quick else sizes
    for side in sizes:
        _add(found, NAIVE, side, image_samplers.naive(side), (PEER,))
        _add(found, CACHED, side, image_samplers.cached(side), (NAIVE, PEER))
        for name in MULTISCALE:
            timed = image_samplers.multiscale(name, side, max(sizes))
            _add(found, name, side, timed, (NAIVE, CACHED, PEER))

        def peer(side: int = side) -> None:
            _add(found, PEER, side, tfp_pixelcnn.sampler(side), ())

        found.peer(PEER, peer)
    return found


def _add(found: Benchmark, name: str, side: int, timed: Timed, against: tuple[str, ...]) -> None:
    row = Row(name, f"{side}x{side}", 1, "pixels/s", against)
    found.add(row, lambda: side**2 / timed.measure())
