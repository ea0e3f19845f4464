"""Chains and passes of image models: what is counted."""

import re
import sys
import types

import image_runs
import numpy as np
import pytest
import tensorflow as tf
from image_networks import output_of, pixelcnn_of

from benchmarks import dependence_chains as chains
from benchmarks import image_students as students
from pixelcnn import measures
from pixelcnn.density import image_words
from pixelcnn.model import sampler_of
from pixelcnn.networks.layers import NONE

SIDE = 5


def running_sum(images):
    """Every pixel is the one before it in its row plus one; the first of a row is 0."""
    drawn = np.zeros_like(images)
    drawn[:, :, 1:] = images[:, :, :-1] + 1
    return drawn


def test_the_longest_chain_is_found_among_shorter_ones():
    depends = np.zeros([6, 6], bool)
    for late, early in [(1, 0), (2, 0), (4, 2), (5, 4), (5, 0)]:
        depends[late, early] = True
    assert chains.longest_chain(depends) == 4  # 0, 2, 4, 5
    assert chains.longest_chain(np.zeros([3, 3], bool)) == 1


def test_a_change_is_seen_in_the_pixels_that_read_it():
    image = np.tile(np.arange(4), [3, 1])[..., np.newaxis]
    depends = chains.dependence(running_sum, image, image + 1)
    expected = np.zeros([12, 12], bool)
    for i in range(12):
        expected[i, i - 1] = i % 4 > 0
    np.testing.assert_array_equal(depends, expected)
    assert chains.longest_chain(depends) == 4


def test_a_change_by_one_level_stays_among_the_levels():
    np.testing.assert_array_equal(chains.one_level(np.array([0, 3, 4, 7]), 8), [1, 4, 3, 6])


def test_no_pixel_of_a_network_changes_one_before_it():
    network = pixelcnn_of(output_of("logistic", 1, 16), layers=2)
    words = image_words(network, 1, tf.constant([0]), SIDE, SIDE)
    image = sampler_of("fixed-point")(network, words, NONE).levels.numpy()
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(conditioning=types.SimpleNamespace(classes=0)),
        network=types.SimpleNamespace(pixelcnn=network, conditioner=lambda given: NONE),
        front=types.SimpleNamespace(condition=lambda value: {}, size=SIDE, channels=1, levels=16),
    )
    draw = chains._draw(model, None, 1, 0)
    depends = chains.dependence(draw, image[0], chains.one_level(image[0], 16))
    assert depends.any()
    assert not np.triu(depends).any()


def model_of(size, base=0, flow=False):
    config = types.SimpleNamespace(base_size=base)
    multiscale = types.SimpleNamespace(config=config, has_flow=flow) if base else None
    front = types.SimpleNamespace(size=size)
    return types.SimpleNamespace(front=front, network=types.SimpleNamespace(multiscale=multiscale))


@pytest.mark.parametrize(
    ("model", "passes"),
    [
        (model_of(32), 1024),
        (model_of(32, 8), 70),
        (model_of(32, 8, True), 7),
        (model_of(32, 32, True), 1),
    ],
)
def test_passes_are_those_of_the_base_and_three_for_each_doubling(model, passes):
    assert students.passes(model) == passes


def test_bits_are_those_of_a_number():
    density = types.SimpleNamespace(num_dims=12)

    def log_prob(images, labels):
        return np.log(2.0) * np.array([-12.0, -36.0])

    model = types.SimpleNamespace(network=density, log_prob=log_prob)
    assert students.bits(model, np.zeros([2, 2, 2, 3]), [0, 1]) == pytest.approx(2.0)


@pytest.mark.slow
def test_a_table_and_grids_are_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measures, "STEPS", 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = image_runs.run("multiscale")
    words = [str(run), f"{run}@1", "--data", str(image_runs.images()), "--num", "6"]
    monkeypatch.setattr(sys, "argv", ["students", *words, "--out", str(tmp_path / "grids")])
    students.main()
    header, rule, plain, guided = capsys.readouterr().out.splitlines()
    assert header.count("|") == rule.count("|") == plain.count("|") == 10
    numbers = [re.findall(r"\d+\.\d+", row.replace(str(run), "")) for row in (plain, guided)]
    assert numbers[0][-1] == numbers[1][-1] and numbers[0][1] != numbers[1][1]
    assert len(list((tmp_path / "grids").glob("*.png"))) == 2
