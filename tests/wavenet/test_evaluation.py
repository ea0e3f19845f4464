"""Figures of dev: its halves, and bits beside a codec's where both code the same levels."""

import dataclasses
import json

import pytest
import runs

from onepass.likelihoods import Linear, MuLaw
from onepass.replicator.training.training_run import train
from wavenet import evaluation
from wavenet.dev_parts import dev_part
from wavenet.model import load
from wavenet.training import SpeechRecipe


def test_only_linear_levels_of_16_bits_compare_with_flac():
    assert evaluation.codes_16_bit_samples(Linear(65536))
    for codec in (Linear(256), Linear(4096), MuLaw(256), MuLaw(65536)):
        assert not evaluation.codes_16_bit_samples(codec)


@pytest.mark.slow
def test_bits_of_mu_law_are_not_set_beside_flac(tmp_path):
    data, config = runs.recordings(tmp_path / "speech", train=1, dev=2), runs.looped(num_steps=1)
    mu_law = dict(likelihood="categorical", levels=256, front_width=1, linear_prediction=False)
    config = dataclasses.replace(
        config,
        network=dataclasses.replace(config.network, upsample_factors=(), **mu_law),
        data=dataclasses.replace(config.data, features=()),
    )
    train(SpeechRecipe("wavenet-smoke", config, data), tmp_path / "run", lambda line: None)
    model = load(tmp_path / "run")
    figures = evaluation.evaluate(model, evaluation.dev_corpus(model, data), copies=1)
    text = evaluation.format_report({"model": "m", "step": 1, "data": "d"} | figures)
    assert figures["codec"] == {} and "untrained_predictor" not in figures
    assert "%)" not in text and "FLAC               not compared" in text
    json.dumps(figures)


ITEMS = [{"name": name} for name in ("dev/c", "dev/a", "dev/e", "dev/b", "dev/d")]


def names(part, items=ITEMS):
    return [item["name"] for item in dev_part(items, part)]


def test_every_second_name_is_for_choices_and_the_others_are_reported():
    assert names("choose") == names("choose", ITEMS[::-1]) == ["dev/b", "dev/d"]
    assert names("report") == ["dev/a", "dev/c", "dev/e"]
    assert names("dev") == sorted(item["name"] for item in ITEMS)
    assert [names(part, ITEMS[:1]) for part in ("choose", "report", "dev")] == [["dev/c"]] * 3


def test_another_part_is_refused():
    with pytest.raises(ValueError, match=r"`part` must be one of .*, got 'test'"):
        dev_part(ITEMS, "test")
