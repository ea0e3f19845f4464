"""`benchmarks.image_students`: a row for every model, measured alike."""

import re
import sys
import types

import image_runs
import numpy as np
import pytest

from benchmarks import image_students as students
from pixelcnn import measures


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
