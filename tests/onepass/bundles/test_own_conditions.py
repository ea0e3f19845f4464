"""Conditions of any structure in streams, and what bundles, servers and the command refuse."""

import json

import causal_networks
import http_running
import numpy as np
import own_models
import pytest
import tensorflow as tf
from own_models import ENTRIES, LONGEST, SHAPE, bundle, model, ran

import onepass
import serving
from onepass import likelihoods
from onepass.bundles.errors import InvalidInput
from onepass.foundation.rules import UserError
from onepass.remote_model import RemoteModel

LENGTH, SEED, NUM = 30, 5, 3
RANDOM = np.random.default_rng(4)
GIVEN = {
    "voices": {
        "voice": np.array([3, 0, 1], np.int32),
        "tone": RANDOM.normal(size=[NUM, 3]).astype(np.float32),
        "mel": RANDOM.normal(size=[NUM, LENGTH, 2]).astype(np.float32),
    },
    "reading": 2.0 * RANDOM.normal(size=[NUM, ENTRIES, 3]).astype(np.float32),
    "classes": np.array([1, 3, 0], np.int32),
}


def length(name):
    return SHAPE if name == "classes" else LENGTH


def same(found, expected):
    assert found[0].dtype == expected[0].dtype
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-4)


def drawn(made, name, condition=None, num=NUM, **options):
    given = GIVEN[name] if condition is None else condition
    return made.sample(num, length(name), SEED, given, return_log_prob=True, **options)


@pytest.mark.integration
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_of_another_client_is_answered_or_refused(protocol):
    """One row of a condition stands for all rows; a wrong condition is an invalid input."""
    inputs = {"num_samples": [LENGTH] * NUM, "row": [0, 1, 2], "seed": [SEED] * NUM}
    named = {f"condition_{name}": value for name, value in GIVEN["voices"].items()}
    live = drawn(model("voices"), "voices", GIVEN["voices"] | {"voice": 2})[0]
    with own_models.served(protocol, "voices") as (url, _), serving.Client(url) as client:
        given = inputs | named
        made = client.predict("voices", given | {"condition_voice": [2]})["elements"]
        np.testing.assert_allclose(made, live, rtol=0, atol=1e-6)
        for text, changed in RAW.items():
            asked = {name: x for name, x in (given | changed).items() if x is not None}
            with pytest.raises(UserError, match=text) as refused:
                client.predict("voices", asked)
            assert refused.value.code == "invalid_input" and "\n" not in str(refused.value)
        elements = {"elements": live, **named}
        with pytest.raises(UserError, match="`condition_mel` must be as long as `elements`"):
            client.predict("voices", elements | {"elements": live[:, 1:]}, "log_prob")


RAW = {
    "`condition_voice` must be between 0 and 3, got 4": {"condition_voice": [0, 4, 1]},
    "`condition_voice` must be int32, got float": {"condition_voice": np.array([0.5, 1, 1])},
    "`condition_voice` must be given": {"condition_voice": None},
    "`condition_mel` must be given": {"condition_mel": None},
    "must have [23] rows as": {"condition_voice": [0, 1]},  # the order of inputs is the client's
    r"`condition_tone` must have the shape \[any, 3\]": {"condition_tone": np.ones([3, 2])},
    "`num_samples` must be at most the 9 of `condition_mel`": {"condition_mel": np.ones([3, 9, 2])},
    "`condition_mel` must be finite, got nan": {"condition_mel": np.full([3, LENGTH, 2], np.nan)},
    "`condition_pitch` is not an input": {"condition_pitch": [1, 1, 1]},
    "`frames` is not an input": {"frames": np.ones([3, LENGTH, 2])},
}


def test_what_cannot_be_exported_is_said(tmp_path):
    out = tmp_path / "made" / "1"
    with pytest.raises(UserError, match="`entries` must say how many entries its condition"):
        onepass.export(model("reading"), out, length=LENGTH)
    for entries in (0, 1.5, [2, 3]):
        with pytest.raises(ValueError, match="`entries` must be a number of entries, at least 1"):
            onepass.export(model("reading"), out, length=LENGTH, entries=entries)
    with pytest.raises(ValueError, match="`entries` must be of conditions with an axis of any"):
        onepass.export(model("voices"), out, length=LENGTH, entries={"tone": 3})
    named = {"a b": tf.TensorSpec([None]), "c": tf.TensorSpec([None])}

    def network(x, first, second):
        return tf.concat([x, x], -1) * (first + second)[:, tf.newaxis, tf.newaxis]

    odd = onepass.Autoregressive(network, likelihoods.Gaussian(levels=16), conditions=named)
    with pytest.raises(UserError, match="named by letters, digits and _, not 'a b'"):
        onepass.export(odd, out, length=LENGTH)
    assert not out.exists()


def test_a_bundle_that_does_not_name_its_frames_is_as_before(tmp_path):
    folder = own_models.changed_bundle(tmp_path, "framed", lambda spec: spec.pop("conditions"))
    given = own_models.condition("framed")
    found = serving.load(folder).sample(2, LONGEST, SEED, *given)
    np.testing.assert_allclose(found, model("framed").sample(2, LONGEST, SEED, *given))


BROKEN = {
    "no names": lambda spec: spec.pop("conditions"),
    "another input": lambda spec: spec["conditions"].update(tone="condition_pitch"),
    "one too few": lambda spec: spec["conditions"].pop("tone"),
    "no text": lambda spec: spec["conditions"].update(tone=3),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_bundle_whose_conditions_are_not_its_inputs_is_refused(tmp_path, case):
    folder = own_models.changed_bundle(tmp_path, "voices", BROKEN[case])
    with pytest.raises(UserError, match="does not describe a model that can be served"):
        serving.load(folder)


SINGING = {
    "score": onepass.Memory([None, None, 3]),
    "singer": tf.TensorSpec([None], tf.int64),
    "vowel": tf.TensorSpec([None, None], tf.int32),
}


class Singing(tf.Module):
    """A network that brings its step, with a class, a memory, and a class at every time."""

    def __init__(self):
        super().__init__()
        sizes = ([4, 6], [3, 6], [5, 6], [6, 2])
        self.parts = [causal_networks.variable(size, n) for n, size in enumerate(sizes)]

    def __call__(self, x, score, singer, vowel):
        singers, keys, vowels, head = self.parts
        h = tf.tanh(x + tf.gather(singers, singer)[:, tf.newaxis] + tf.gather(vowels, vowel))
        notes = tf.tensordot(score, keys, 1)
        h += tf.matmul(tf.nn.softmax(tf.matmul(h, notes, transpose_b=True)), notes)
        return tf.tensordot(h, head, 1)

    def initial_state(self, batch):
        return tf.zeros([batch])

    def step(self, inputs, state, *conditions):
        return self(inputs, *conditions), state + 1.0


SUNG = {
    "score": RANDOM.normal(size=[NUM, ENTRIES, 3]),
    "singer": [3, 0, 1],
    "vowel": RANDOM.integers(0, 5, [NUM, LENGTH]),
}


class Store:
    """A folder of models that are all the same one."""

    def __init__(self, root, made):
        self.root, self.load = root, lambda *arguments, **named: made


@pytest.mark.integration
def test_sound_with_a_step_of_its_own_is_streamed_by_a_server(tmp_path):
    gaussian = likelihoods.Gaussian(levels=64)
    live = onepass.Autoregressive(Singing(), gaussian, conditions=SINGING)
    options = {"length": LENGTH, "entries": {"score": ENTRIES}, "sample_rate_hz": 4000}
    made = serving.load(onepass.export(live, tmp_path / "singing" / "1", **options))
    made.warm()
    expected = live.sample(NUM, LENGTH, SEED, SUNG)
    np.testing.assert_allclose(made.sample(NUM, LENGTH, SEED, SUNG), expected, atol=1e-6)
    with pytest.raises(InvalidInput, match=r'`condition\["vowel"\]` must be 0 to 4, .* got 5'):
        made.sample(NUM, LENGTH, SEED, SUNG | {"vowel": np.full([NUM, LENGTH], 5)})

    with http_running.Running(Store(tmp_path, made)) as server:
        remote = RemoteModel(f"{server.url}/singing")
        assert remote.makes_sound
        one = {name: value[0] for name, value in SUNG.items()}
        parts = list(remote.stream(condition=one, seed=SEED, length=LENGTH))
        np.testing.assert_allclose(np.concatenate(parts, 1), expected[:1], atol=1e-6)
        with pytest.raises(UserError, match="`condition_score` must be given"):
            speak(remote, server.url)
        remote.close()


def speak(remote, url):
    """Ask for sound without the conditions."""
    with serving.Client(url) as client, client.speak(remote.name, seconds=0.005) as speech:
        return list(speech)


class Upsampled(tf.Module):
    """A network of waves and frames, of which it reads one more than the waves have."""

    def __init__(self):
        super().__init__()
        self.kernel = causal_networks.variable([2, 3, 2], 1)

    def __call__(self, x, mel):
        up = tf.repeat(tf.nn.conv1d(mel, self.kernel, 1, "VALID"), 4, axis=1)
        return tf.tanh(up) + 0.1 * tf.cumsum(x, 1)


@pytest.mark.integration
def test_a_request_to_a_model_of_frames_has_all_frames_of_the_sequence(tmp_path):
    spec = onepass.Frames([None, None, 3], hop=4, extra=1)
    gaussian = likelihoods.Gaussian(levels=64)
    live = onepass.Autoregressive(Upsampled(), gaussian, conditions={"mel": spec})
    with pytest.raises(UserError, match="reads frames, so that `length` must be given"):
        onepass.export(live, tmp_path / "frames" / "1")
    folder = onepass.export(live, tmp_path / "frames" / "1", length=LENGTH, sample_rate_hz=4000)
    mel = RANDOM.normal(size=[NUM, 9, 3]).astype(np.float32)
    made = serving.load(folder)
    expected = live.sample(NUM, LENGTH, SEED, mel, return_log_prob=True)
    same(made.sample(NUM, LENGTH, SEED, mel, return_log_prob=True), expected)
    prefix = expected[0][:, :5]
    same(
        made.sample(NUM, LENGTH, SEED, mel, return_log_prob=True, prefix=prefix),
        live.sample(NUM, LENGTH, SEED, mel, return_log_prob=True, prefix=prefix),
    )
    np.testing.assert_allclose(made.log_prob(expected[0], mel), expected[1], 1e-4, 1e-4)
    with pytest.raises(InvalidInput, match="condition"):
        made.sample(NUM, LENGTH, SEED, mel[:, 1:])
    with pytest.raises(InvalidInput, match="`frames` cannot stream: call `sample`"):
        next(iter(made.stream(mel, length=LENGTH)))

    with http_running.Running(Store(tmp_path, made)) as server:
        remote = RemoteModel(f"{server.url}/frames")
        found = remote.sample(NUM, LENGTH, SEED, mel)
        np.testing.assert_allclose(found, expected[0], atol=1e-6)
        remote.close()


def test_a_bundle_is_evaluated_by_the_command_with_conditions_by_name(tmp_path, capsys):
    given = GIVEN["voices"] | {"voice": 1}
    elements, nats = drawn(model("voices"), "voices", given)
    for name, array in (("rows", elements), ("tone", given["tone"]), ("mel", given["mel"])):
        np.save(tmp_path / f"{name}.npy", array)
    words = ["--data", tmp_path / "rows.npy", "--json", "--condition", "voice=1"]
    for name in ("tone", "mel"):
        words += ["--condition", f"{name}={tmp_path / name}.npy"]
    assert ran("evaluate", own_models.bundle_folder("voices"), *words) == 0
    bits = json.loads(capsys.readouterr().out)["bits_per_element"]["mean"]
    assert bits == pytest.approx(-nats.mean() / np.log(2.0), rel=1e-4)


def test_a_row_for_all_takes_no_memory_for_each():
    inputs = {"num_samples": np.ones([1000], np.int32), "condition": GIVEN["reading"][:1]}
    checked = bundle("reading").check("compiled", inputs)["condition"]
    assert checked.shape[0] == 1000 and checked.strides[0] == 0


LINES = {
    "--condition must be NAME=FILE.npy or NAME=NUMBER for each": ["voice=1", "voice=2"],
    "--condition must be NAME=FILE.npy": ["voice=1", "2"],
    "none.npy: no such file": ["voice=none.npy"],
    "must be a dict with voice": ["voice=1"],
    "tone": ["voice=1", "tone=0.5", "mel=mel.npy"],
}


@pytest.mark.integration
@pytest.mark.usefixtures("loaded_once")
def test_the_command_refuses_conditions_that_do_not_fit_with_status_2(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("tone", "mel"):
        np.save(f"{name}.npy", GIVEN["voices"][name][:1])
    with http_running.Running(own_models.Store("voices")) as server:
        for place in own_models.places("voices", server.url):
            for text, words in LINES.items():
                given = [word for each in words for word in ("--condition", each)]
                assert ran("sample", place, "--out", "out", "--length", LENGTH, *given) == 2
                said = capsys.readouterr().err
                assert text in said and said.count("\n") == 1, (place, words, said)


@pytest.mark.integration
def test_a_saved_memory_is_exported_by_the_command(tmp_path, capsys):
    words = ["export", own_models.saved_folder("reading"), "--length", LENGTH, "--out"]
    assert ran(*words, tmp_path / "made" / "1") == 2
    assert "`entries` must say how many" in capsys.readouterr().err
    assert ran(*words, tmp_path / "made" / "1", "--entries", "x") == 2
    assert "entries" in capsys.readouterr().err
    assert ran(*words, tmp_path / "made" / "1", "--entries", ENTRIES) == 0
    made = serving.load(tmp_path / "made" / "1")
    same(drawn(made, "reading"), drawn(model("reading"), "reading"))
