"""A model folder is the run that it was made from, and its card says so."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import runs

import onepass
from onepass.replicator.training.training_run import train
from wavenet import model as models
from wavenet.config import DataConfig
from wavenet.training import SpeechRecipe


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    data = runs.recordings(folder / "speech")
    config = runs.looped(num_steps=2, evaluate_every_steps=4)
    with runs.eagerly(), runs.unevaluated():
        train(SpeechRecipe("wavenet-smoke", config, data), folder / "run", lambda line: None)
    words = ["export", str(folder / "run"), "--out", str(folder / "model"), "--bare"]
    with pytest.MonkeyPatch.context() as patch:  # a second is measured as quickly as it is read
        patch.setattr("wavenet.dev_recordings.LONGEST_SECONDS", 1)
        assert onepass.main([*words, "--data-licence", "CC0 of a voice."]) == 0
    return folder


@pytest.mark.slow
def test_exported_model_speaks_as_its_run_does(exported):
    run, folder = models.load(exported / "run"), models.load(exported / "model")
    speech = 0.1 * np.sin(np.arange(4096) / 9).astype(np.float32)
    np.testing.assert_array_equal(run.front.frames(speech), folder.front.frames(speech))
    one = run.sample(condition=run.front.frames(speech), seed=3, length=300)
    other = folder.sample(condition=folder.front.frames(speech), seed=3, length=300)
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one)) > 50


def test_a_run_and_its_export_say_what_the_training_heard(exported):
    run, folder = models.load(exported / "run"), models.load(exported / "model")
    stored = json.loads((exported / "model" / "model.json").read_text())
    assert folder.front.level_db == run.front.level_db == stored["level_db"] < 0
    assert folder.front.statistics == run.front.statistics
    assert stored["frames"] == dataclasses.asdict(run.front.statistics)


def test_card_names_licence_command_and_measured_figures(exported):
    spec = json.loads((exported / "model" / "model.json").read_text())
    card = (exported / "model" / "card.md").read_text()
    assert "CC0 of a voice." in card
    assert spec["command"] in card
    assert "--loop.evaluate-every-steps 4" in spec["command"]
    assert spec["features"]["mel"]["hop_samples"] == 256
    measured = spec["quality"]["measures"]["bits_per_sample"]
    assert (measured["n"], measured["low"]) == (1, None)
    assert f"| bits per sample | {measured['mean']:.3f} | no interval, n 1 |" in card
    assert str(exported) not in card


def test_a_prefix_that_leaves_nothing_to_draw_or_is_no_sound_is_refused(exported):
    model = models.load(exported / "model")
    frames = np.full([3, 8], 0.5, np.float32)
    for prefix, line in ((np.zeros(600), "shorter than `length`, 600, got 600"), ([1], "float")):
        with pytest.raises(ValueError, match=line):
            model.sample(1, 600, 1, frames, prefix=np.asarray(prefix))


def test_a_recording_stands_for_its_frames_and_its_length(exported):
    model = models.load(exported / "model")
    recording = 0.1 * np.sin(np.arange(700) / 9).astype(np.float32)
    expected = model.sample(1, 700, 1, model.front.frames(recording))
    np.testing.assert_array_equal(model.sample(seed=1, condition=recording), expected)
    assert model.sample(1, 300, 1, recording).shape == (1, 300)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """A run of two speakers, each with a recording in train and in dev."""
    folder = tmp_path_factory.mktemp("two")
    files = iter(sorted(runs.recordings(folder / "speech", train=3).rglob("*.flac")))
    for place in ("train/ann", "train/bob", "dev/ann", "dev/bob"):
        (folder / "voices" / place).mkdir(parents=True)
        shutil.copy(next(files), folder / "voices" / place / f"{place[-3:]}.flac")
    data = DataConfig(16_000, by_speaker=True, clip_samples=512, batch_size=2)
    config = dataclasses.replace(runs.looped(num_steps=2), data=data)
    train(
        SpeechRecipe("wavenet-smoke", config, folder / "voices"), folder / "run", lambda line: None
    )
    return folder / "run"


@pytest.mark.slow
def test_the_card_of_several_speakers_measures_each(of_two, tmp_path):
    words = ["export", str(of_two), "--out", str(tmp_path / "model"), "--bare"]
    assert onepass.main([*words, "--data-licence", "CC0"]) == 0
    quality = json.loads((tmp_path / "model" / "model.json").read_text())["quality"]
    bits = [quality["by_speaker"][name]["bits_per_sample"]["mean"] for name in ("ann", "bob")]
    assert bits[0] != bits[1]
    assert f"| bits per sample | {bits[0]:.3f} (" in (tmp_path / "model" / "card.md").read_text()


@pytest.mark.slow
def test_one_speaker_of_several_is_evaluated_alone(of_two, capsys):
    assert onepass.main(["evaluate", str(of_two), "--speaker", "bob", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dev"]["recordings"] == 1
    assert onepass.main(["evaluate", str(of_two), "--speaker", "zoe"]) == 2
    assert "There is no speaker 'zoe'; there are ann, bob." in capsys.readouterr().err


@pytest.mark.parametrize(
    "waveform", [np.zeros(300, np.int16), np.zeros((1, 1, 300)), np.full(300, np.inf), [0, 1]]
)
def test_log_prob_of_what_is_no_waveform_is_refused(exported, waveform):
    model = models.load(exported / "model")
    with pytest.raises(ValueError, match="`waveform` must be finite floating-point samples"):
        model.log_prob(waveform)
