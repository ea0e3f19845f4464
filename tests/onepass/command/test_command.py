"""The command line: every mistake is one line and exit status 2, and loses nothing."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import soundfile
import tyro
from runs import eagerly, looped, newest, options, recordings, unevaluated

import distill.config
import onepass
import onepass.command.verbs
from onepass.command.sample.sound import SoundHere
from onepass.foundation.rules import UserError
from pixelcnn.config import PRESETS as IMAGE_PRESETS
from wavenet import training
from wavenet.config import PRESETS
from wavenet.data import audio
from wavenet.network import WaveNet

SAMPLE = "--num 2 --seconds 0.25 --seed 7"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Evaluations while training give 1.0 and no sound."""
    monkeypatch.setattr(training.EvaluationCallback, "__call__", lambda *_: 1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("data") / "speech")


def arguments(data, workdir, **loop):
    words = ["train", "wavenet-smoke", *options(looped(**{"num_steps": 2, **loop}))]
    return [*words, "--data", str(data), "--workdir", str(workdir)]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of two steps; tests that change it take a `copy`."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with unevaluated(), eagerly():
        assert onepass.main(arguments(data, run)) == 0
    return run


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


# Words


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name a verb: quickstart, train, distill, evaluate, sample"),
        (["xyz"], "there is no verb `xyz`; there are quickstart, train, "),
        (["trian"], "there is no verb `trian`; did you mean `train`?"),
        (["train"], "name a preset: wavenet-smoke, "),
        (["train", "wavnet-smoke"], "there is no preset `{}`; did you mean `wavenet-smoke`?"),
        (["train", "pixelcn-smoke"], "there is no preset `{}`; did you mean `pixelcnn-smoke`?"),
    ],
)
def test_a_missing_or_wrong_word_names_what_there_is_or_the_near_one(mistake, words, line):
    assert mistake(*words).startswith(line.format(*words[-1:]) if words else line)


SMOKE = ["train", "wavenet-smoke"]
PLACES = ["--data", "a", "--workdir", "b"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (SMOKE, "--workdir PATH and --data PATH must be given"),
        (["sample", "run"], "--out PATH must be given"),
        (["evaluate"], "MODEL must be given"),
        ([*SMOKE, "--data"], "Missing value for argument '--data'. Expected 1 values"),
        ("--loop.num-steps 1.5", "--loop.num-steps must be a whole number, got '1.5'"),
        ("--optimizer.epsilon x", "--optimizer.epsilon must be a number, got 'x'"),
        (
            "--loop.num-step 3",
            "Unrecognized options: --loop.num-step, 3; did you mean --loop.num-steps?",
        ),
        ("--steps 3", "Unrecognized options: --steps, 3; did you mean --loop.num-steps?"),
        ("--loop.steps 3", "Unrecognized options: --loop.steps, 3; did you mean --loop.num-steps?"),
        (
            "--learning-rate 3",
            "Unrecognized options: --learning-rate, 3; did you mean --optimizer.learning-rate?",
        ),
        ("--network.layers 7", "network: `layers` must be a multiple of `stacks`, got 7"),
        ("--loop.keep-checkpoints 0", "loop: `keep_checkpoints` must be at least 1, got 0"),
        (
            "--network.upsample-factors 16 0",
            "network: `upsample_factors` must be at least 1 each, got (16, 0)",
        ),
        ("--data.batch-size 0", "data: `batch_size` must be at least 1, got 0"),
        (
            "--data.features f0 mel",
            "data: `features` must be mel, f0, mel f0 (in this order) or nothing, got f0 mel",
        ),
    ],
)
@pytest.mark.parametrize("utf8", ["0", "1"], ids=["ASCII", "boxes"])
def test_an_option_that_does_not_fit_is_said_in_a_short_line(
    mistake, words, line, utf8, monkeypatch
):
    monkeypatch.setattr(tyro._fmtlib, "_should_use_utf8_drawing_chars", lambda: utf8 == "1")
    words = [*SMOKE, *PLACES, *words.split()] if isinstance(words, str) else words
    program = " ".join(["onepass", *words[: 2 if words[0] == "train" else 1]])
    assert mistake(*words) == f"{line} (see {program} --help)"


# Help and presets


@pytest.mark.parametrize("verb", ["", *onepass.command.verbs.RUN])
def test_help_is_given_and_is_no_mistake(capsys, verb):
    assert onepass.main([*verb.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: onepass {verb}") and err == ""


@pytest.mark.parametrize(
    "words",
    [
        *(["train", f"{kind}-smoke"] for kind in ("wavenet", "pixelcnn", "multiscale")),
        *(["distill", "student-smoke"], ["quickstart"], ["export", "shipped"]),
        *(
            [verb, model]
            for verb in ("evaluate", "sample")
            for model in ("shipped", "shipped-digits")
        ),
    ],
    ids=" ".join,
)
def test_help_explains_every_option_and_says_its_default(capsys, words):
    assert onepass.main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    text = " ".join(out[out.rindex("-h, --help") :].replace("│", " ").split())
    options = re.split(r" (?=--[a-z][\w.-]*[ ,])", text)[2:]
    assert len(options) >= 4
    for option in options:
        assert option.endswith(",") or re.search(r"\. \((default: .*|required)\)", option), option


@pytest.mark.parametrize("verb", ["train", "distill"])
def test_help_lists_the_presets(capsys, verb):
    onepass.main([verb, "--help"])
    out, _ = capsys.readouterr()
    presets = [*PRESETS, *IMAGE_PRESETS] if verb == "train" else distill.config.PRESETS
    assert all(f"\n  {name} " in out for name in presets)
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.fixture
def parsed(monkeypatch):
    """The configuration that a command line would train."""

    def parsed(*words):
        seen = []

        def train(recipe, workdir, replicator):
            seen.append(recipe.config)
            raise UserError("enough")

        monkeypatch.setattr("onepass.replicator.training.training_run.train", train)
        assert onepass.main(["train", *words, *PLACES]) == 2
        return seen[0]

    return parsed


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_goes_through_the_command_line_and_makes_a_network(parsed, name):
    assert parsed(name) == PRESETS[name].config
    config = parsed(name, "--seed", "5", "--optimizer.beta1", "0.5", "--network.components", "2")
    assert (config.seed, config.optimizer.beta1, config.network.components) == (5, 0.5, 2)
    config = config.resolve_settings(1)
    assert config.data.clip_samples % config.network.hop_samples == 0
    if name != "wavenet-paper-24k":
        slim = dataclasses.replace(
            config.network, residual_channels=4, gate_channels=4, skip_channels=4
        )
        assert WaveNet(slim).likelihood.num_parameters == 6


def test_the_preset_of_the_paper_is_that_of_the_paper():
    config = PRESETS["wavenet-paper-24k"].config.resolve_settings(1)
    assert config.network.dilations == tuple(2**i for i in range(10)) * 3
    assert config.network.receptive_field == 1 + 2 * 3 * 1023
    assert config.network.hop_samples == 240 and config.network.components == 10
    assert config.data.batch_size * config.data.clip_samples == 32 * 7680


# Recordings


def test_a_folder_that_is_missing_or_a_file_is_named_and_no_run_is_made(mistake, data, tmp_path):
    file = next(data.glob("train/*"))
    run = tmp_path / "run"
    assert mistake(*arguments("/nowhere", run)) == "/nowhere: no such folder."
    assert mistake(*arguments(file, run)) == f"{file}: is not a folder."
    assert not run.exists()
    (tmp_path / "file").touch()
    line = mistake(*arguments(data, tmp_path / "file" / "run"))
    assert line.startswith("Cannot create the folder ")


def test_only_training_recordings_are_not_enough(mistake, data, tmp_path):
    (tmp_path / "data").mkdir()
    shutil.copy(next(data.glob("train/*")), tmp_path / "data" / "only.flac")
    for share, split in (("0.5", "train"), ("0", "dev")):
        words = arguments(tmp_path / "data", tmp_path / "run")
        line = mistake(*words, "--data.dev-share", share)
        assert f"for {split}" in line and "train and dev need at least one each" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("eager")
def test_odd_files_among_good_ones_are_used_or_counted(data, tmp_path, capsys):
    folder = shutil.copytree(data, tmp_path / "mixed")
    sound, rate_hz = soundfile.read(next(folder.glob("train/*")))
    wide = np.repeat(sound[: rate_hz // 2], 96_000 // rate_hz)
    soundfile.write(folder / "train" / "wide.wav", np.stack([wide, -0.5 * wide], 1), 96_000)
    (folder / "train" / "empty.wav").write_bytes(b"")
    assert onepass.main(arguments(folder, tmp_path / "run")) == 0
    out, err = capsys.readouterr()
    assert "train 4 recordings" in out
    assert "left out, unreadable: 1: train/empty.wav (holds zero bytes)" in out
    assert "Traceback" not in err
    assert newest(tmp_path / "run")["step"] == 2


# Run directories


@pytest.mark.parametrize("inside", ["", "runs/a"])
def test_a_run_inside_its_data_is_refused(mistake, data, inside):
    line = mistake(*arguments(data, data / inside))
    assert "must be outside the data folder" in line
    assert sorted(path.name for path in data.iterdir()) == ["dev", "train"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c["network"].pop("layers") and c["network"].update(layer=3), "layer"),
        (lambda c: c["network"].update(layers="six"), "configuration"),
        (lambda c: c.pop("gain_db"), "gain_db"),
        (lambda c: c.pop("data"), "data"),
        (lambda c: c.update(kind="vocoder"), "holds a vocoder, expected a wavenet"),
        (lambda c: c.update(kind="pixelcnn"), "has no 'class_names'"),
        (
            lambda c: c["network"].update(skip_channels=5),
            "do not fit the configuration of the network",
        ),
    ],
)
def test_a_model_whose_configuration_was_changed_by_hand_is_refused(
    mistake, copy, change, complaint
):
    config = json.loads((copy / "config.json").read_text())
    change(config)
    (copy / "config.json").write_text(json.dumps(config))
    line = mistake("evaluate", copy)
    assert complaint in line and str(copy) in line


# Trained models


def test_a_model_that_is_not_there_is_named(mistake, tmp_path, copy):
    assert mistake("evaluate", tmp_path / "no") == f"There is no run directory {tmp_path / 'no'}."
    empty = mistake("sample", tmp_path, "--out", tmp_path / "out")
    assert empty == f"{tmp_path} is not a run directory: no config.json."
    shutil.rmtree(copy / "checkpoints")
    untrained = f"{copy} has no checkpoint yet; training writes one."
    assert mistake("evaluate", copy) == untrained
    assert not (copy / "checkpoints").exists()


def test_data_that_went_away_is_named(mistake, copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "data_folder": "/gone"}))
    line = mistake("evaluate", copy)
    assert line == f"{copy} was trained on /gone, which is gone; name a folder with --data."


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--num 0", "`--num` must be at least 1, got 0."),
        ("--seconds 0", "`--seconds` must be above 0 and finite, got 0."),
        ("--seconds nan", "`--seconds` must be above 0 and finite, got nan."),
        ("--seconds inf", "`--seconds` must be above 0 and finite, got inf."),
        ("--temperature -1", "`--temperature` must be at least 0 and finite, got -1."),
        ("--prime-seconds -1", "`--prime-seconds` must be at least 0 and finite, got -1."),
        (
            "--seconds 0.5 --prime-seconds 0.6",
            "`--prime-seconds` must be less than the length of the sound, 0.50, got 0.6.",
        ),
        ("--recording /no.wav", "/no.wav: no such file."),
        ("--speaker ann", "This model knows no speakers, got 'ann'."),
    ],
)
def test_a_sound_that_cannot_be_made_is_explained(mistake, trained, tmp_path, words, complaint):
    out = tmp_path / "out"
    assert mistake("sample", trained, "--out", out, *words.split()) == complaint
    assert not list(out.glob("*"))


def test_a_folder_that_cannot_be_made_is_named_before_any_sound(mistake, trained, monkeypatch):
    monkeypatch.setattr(SoundHere, "write", None)
    out = trained / "config.json" / "out"
    line = mistake("sample", trained, "--out", out)
    assert line == f"Cannot create the folder {out}: Not a directory."
    out = trained / "mine.wav"
    line = mistake("sample", trained, "--out", out)
    assert line == f"{out} must name a folder, not a .wav file."
    assert not out.exists()


def test_sounds_and_images_are_written_and_named_by_their_seed(trained, tmp_path, capsys):
    words = ["sample", str(trained), *SAMPLE.split()]
    assert onepass.main([*words, "--out", str(tmp_path / "a")]) == 0
    out, _ = capsys.readouterr()
    names = [f"arctic_a0099_7_{row}.{kind}" for row in (0, 1) for kind in ("png", "wav")]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    assert f"{tmp_path / 'a' / 'arctic_a0099_7_0.wav'}: 0.25 s, peak" in out
    first, second = (soundfile.read(tmp_path / "a" / name)[0] for name in names[1::2])
    assert len(first) == 4000 and not np.array_equal(first, second)


@pytest.mark.slow
def test_a_primed_sound_begins_with_the_recording(trained, data, tmp_path, capsys):
    recording = next(data.glob("dev/*"))
    words = ["--recording", str(recording), "--seconds", "0.2", "--prime-seconds", "0.1"]
    assert onepass.main(["sample", str(trained), "--out", str(tmp_path), *words]) == 0
    assert "0.10 s of sound in" in capsys.readouterr().out
    sound, _ = soundfile.read(tmp_path / f"{recording.stem}_0_0.wav", dtype="int16")
    known = audio.read(recording, 16_000)
    assert len(sound) == 3200
    np.testing.assert_array_equal(sound[:1600], audio.to_int16(known[:1600]))
    assert not np.array_equal(sound[1600:], audio.to_int16(known[1600:3200]))


def test_figures_as_json_are_one_object_and_nothing_else(trained, data, capsys):
    assert onepass.main(["evaluate", str(trained), "--json", "--spoken", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["model"], figures["data"]) == (str(trained), str(data))
    assert (figures["step"], figures["dev"]["recordings"]) == (2, 1)
    measure = figures["measures"]["bits_per_sample"]
    assert figures["bits_per_sample"] == measure["mean"]
    assert (measure["n"], measure["low"], measure["high"]) == (1, None, None)
    assert {"log_mel_distance_db", "level_difference_db"} < figures["measures"].keys()
    assert 3 < figures["codec"]["flac"] < 16 and figures["real_time_factor"] > 0


def test_speaking_nothing_again_is_refused(mistake, trained):
    assert mistake("evaluate", trained, "--spoken", "0").endswith("must be at least 1, got 0.")
