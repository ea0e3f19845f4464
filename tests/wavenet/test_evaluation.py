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


@pytest.mark.parametrize(
    ("codec", "same"),
    [
        (Linear(65536), True),
        (Linear(256), False),
        (Linear(4096), False),
        (MuLaw(256), False),
        (MuLaw(65536), False),
    ],
)
def test_only_linear_levels_of_16_bits_compare_with_flac(codec, same):
    assert evaluation.codes_16_bit_samples(codec) == same


@pytest.fixture(scope="module")
def figures_of(tmp_path_factory):
    """The figures of a network of a likelihood, trained for one step."""

    def figures_of(**network):
        folder = tmp_path_factory.mktemp("run")
        data = runs.recordings(folder / "speech", train=1, dev=2)
        config = runs.looped(num_steps=1)
        network = {"upsample_factors": (), **network}
        config = dataclasses.replace(
            config,
            network=dataclasses.replace(config.network, **network),
            data=dataclasses.replace(config.data, features=()),
        )
        train(SpeechRecipe("wavenet-smoke", config, data), folder / "run", lambda line: None)
        model = load(folder / "run")
        corpus = evaluation.dev_corpus(model, data)
        return {"model": "m", "step": 1, "data": "d"} | evaluation.evaluate(model, corpus, copies=1)

    return figures_of


@pytest.mark.slow
def test_bits_of_mu_law_are_not_set_beside_flac(figures_of):
    mu_law = dict(likelihood="categorical", levels=256, front_width=1, linear_prediction=False)
    figures = figures_of(**mu_law)
    text = evaluation.format_report(figures)
    assert figures["codec"] == {} and "untrained_predictor" not in figures
    assert "%)" not in text and "FLAC               not compared" in text
    json.dumps(figures)


@pytest.mark.slow
def test_bits_of_16_bit_samples_are_set_beside_flac(figures_of):
    figures = figures_of()
    bits, flac = figures["bits_per_sample"], figures["codec"]["flac"]
    assert (
        f"on the same 16-bit samples ({100 * (bits / flac - 1):+.1f}%)"
        in evaluation.format_report(figures)
    )


ITEMS = [{"name": name} for name in ("dev/c", "dev/a", "dev/e", "dev/b", "dev/d")]


def names(part, items=ITEMS):
    return [item["name"] for item in dev_part(items, part)]


def test_the_halves_share_nothing_and_are_all_of_dev():
    choose, report = names("choose"), names("report")
    assert set(choose).isdisjoint(report)
    assert sorted(choose + report) == names("dev") == sorted(item["name"] for item in ITEMS)


def test_every_second_name_is_for_choices_in_whatever_order_they_come():
    assert names("choose") == names("choose", ITEMS[::-1]) == ["dev/b", "dev/d"]
    assert names("report") == ["dev/a", "dev/c", "dev/e"]


def test_a_single_recording_serves_for_everything():
    for part in ("choose", "report", "dev"):
        assert names(part, ITEMS[:1]) == ["dev/c"]


def test_another_part_is_refused():
    with pytest.raises(ValueError, match=r"`part` must be one of .*, got 'test'"):
        dev_part(ITEMS, "test")
