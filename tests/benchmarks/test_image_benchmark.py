"""The programs that `python -m benchmarks images` times draw what the samplers draw."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from image_networks import QuickInitial

from benchmarks import image_samplers, images, tfp_pixelcnn
from benchmarks.image_samplers import Timed
from pixelcnn.config import PRESETS, FactorConfig, MultiscaleConfig, OutputConfig, PixelCNNConfig

TINY = PixelCNNConfig(layers=1, units=4, output_units=4)


def tiny_preset(name, kind=None):
    """The preset with the smallest networks: the base is of 2 x 2 pixels, patches too."""
    preset, network = PRESETS[name], TINY
    if kind:
        factor = FactorConfig(kind, 1, 4, 4, patch=2, shallow_layers=1, shallow_units=4)
        network = MultiscaleConfig(base_size=2, base=TINY, factor=factor)
    config = dataclasses.replace(preset.config, output=OutputConfig(components=2))
    config = dataclasses.replace(config, network=network)
    return dataclasses.replace(preset, config=config)


@pytest.fixture
def tiny(monkeypatch):
    """Tiny networks and images; engines that take long to compile left out."""
    preset = tiny_preset(image_samplers.PIXELCNN)
    monkeypatch.setitem(PRESETS, image_samplers.PIXELCNN, preset)
    for name, preset in image_samplers.MULTISCALE.items():
        monkeypatch.setitem(PRESETS, preset, tiny_preset(preset, name[-1]))
    monkeypatch.setattr(image_samplers, "LARGEST_COMPILED", 0)


def test_every_sampler_is_held_against_naive_and_the_peer(tiny):
    held = {row.what: row.against for row in images.benchmark(sizes=(4,)).rows}
    fast = ("naive", "cached", "tfp PixelCNN")
    assert held == {
        "naive": ("tfp PixelCNN",),
        "cached": ("naive", "tfp PixelCNN"),
        "multiscale-A": fast,
        "multiscale-B": fast,
        "tfp PixelCNN": (),
    }


@pytest.mark.parametrize("xla", [False, True])
def test_a_stopped_naive_sampler_draws_the_first_pixels_and_no_more(tiny, xla):
    (whole,) = image_samplers.cached(4).calls["XLA"]()
    part = image_samplers.naive_part(image_samplers.pixelcnn(), 4, 8, xla)()
    assert np.array_equal(part.reshape(-1, 3)[:8], whole[0].reshape(-1, 3)[:8])
    assert not part.reshape(-1, 3)[8:].any() and whole[0].reshape(-1, 3)[8:].any()


def test_loops_after_the_first_and_outside_run_to_their_end():
    def iterations():
        return int(tf.while_loop(lambda n, _: n < 9, lambda n, _: (n + 1, 0), (0, 0))[0])

    with image_samplers.stopped(tf, 3):
        assert (iterations(), iterations()) == (3, 9)
    with image_samplers.stopped(tf, 3):
        pass
    assert iterations() == 9


@pytest.mark.parametrize(
    ("engines", "share", "times", "engine", "seconds"),
    [
        (["graph"], 1 / 8, [0.0, 2.0, 10.0, 10.5], "graph", 4.0),  # choosing it, then measuring
        (["graph", "XLA"], 1.0, [9, 12, 12, 14, 20, 21], "XLA", 1.0),  # 3 and 2 s once compiled
    ],
)
def test_the_faster_engine_is_kept_and_a_part_scaled_to_an_image(
    monkeypatch, engines, share, times, engine, seconds
):
    clock = iter(times)
    monkeypatch.setattr(image_samplers.time, "perf_counter", lambda: next(clock))
    timed = Timed({name: lambda: None for name in engines}, share=share)
    assert timed.measure() == seconds and timed.engine == engine


def test_the_peer_is_of_like_size(monkeypatch):
    monkeypatch.setattr("pixelcnn.density.Initial", QuickInitial)
    image_samplers._sampler_of.cache_clear()
    own = image_samplers.weights_and_work(image_samplers.pixelcnn())
    image_samplers._sampler_of.cache_clear()
    assert own[0] == 757_720
    theirs = tfp_pixelcnn.weights_and_work(tfp_pixelcnn.make(32))
    assert theirs == pytest.approx(own, rel=0.1)
