"""A trained model is three parts: what draws, its front, and what model.json says of it."""

import numpy as np
import pytest
import sound_bundles
from image_densities import model_of

import onepass
from onepass.interface import Draw
from onepass.trained import Trained

SOUNDS = ("softmax, frames", "mixture, context, speakers", "plain", "plain, speakers")
IMAGES = ("PixelCNN", "multiscale A, colour")
EVERY = {name: sound_bundles.model for name in SOUNDS} | dict.fromkeys(IMAGES, model_of)
VOICE = np.sin(np.arange(900) / 7.0).astype(np.float32) / 3.0


def asked(name):
    if name in IMAGES:
        return {"condition": "dog"}
    speaker = {"speaker": "ben"} if "speakers" in name else {}
    conditional = sound_bundles.model(name).front.conditional
    return speaker | ({"condition": VOICE} if conditional else {"length": 60})


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", EVERY)
def test_a_model_draws_what_its_front_reads_and_gives_back(name):
    model = EVERY[name](name)
    assert type(model) is Trained and model.kind == model.spec["kind"]
    draw = model.front.read(model.model.check_draw(Draw(2, seed=5, **asked(name))))
    own = model.front.finish(model.model.sample(draw), draw)
    found = model.sample(2, seed=5, **asked(name))
    np.testing.assert_array_equal(found, own)
    assert len(found) == 2 and len(np.unique(found)) > 5
    if name in IMAGES:
        assert draw.condition["label"].tolist() == [1, 1]
    else:
        assert draw.speaker == (1 if "speakers" in name else None)
        assert draw.condition is None or draw.condition.shape[1] == 7
        assert draw.temperature == model.front.temperature == 1.0


@pytest.mark.parametrize(
    ("name", "ask", "line"),
    [
        ("plain", lambda m: m.log_prob(VOICE), "has no log-probability."),
        ("plain", lambda m: m.compress([VOICE]), "has no exact conditionals to compress with."),
        ("plain", lambda m: m.decompress(b""), "has no exact conditionals to compress with."),
        ("plain", lambda m: m.autoregressive, "does not draw elements one by one."),
        ("softmax, frames", lambda m: m.log_density(1, 20, 0), "has no density of what it draws."),
        ("PixelCNN", lambda m: m.sample(speaker="ben", condition=1), "`speaker` must not be given"),
        ("PixelCNN", lambda m: m.log_density(1, 8, 0, 1, speaker="ben"), "`speaker` must not"),
        ("PixelCNN", lambda m: m.as_draft(m), "proposes symbols, got a pixelcnn."),
        ("softmax, frames", lambda m: m.as_draft(m), "proposes symbols, got a wavenet."),
        ("multiscale A, colour", lambda m: m.autoregressive, "a multiscale model draws groups."),
    ],
)
def test_what_a_model_lacks_is_said_in_one_line(name, ask, line):
    with pytest.raises(onepass.UserError) as refused:
        ask(EVERY[name](name))
    assert line in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["softmax, frames", "plain"])
def test_the_same_front_reads_for_a_model_and_for_its_bundle(name):
    model = sound_bundles.model(name)
    found, own = sound_bundles.bundle(name).frames(VOICE), model.front.frames(VOICE)
    np.testing.assert_array_equal(found, own)
    assert found.gain_db == own.gain_db != 0.0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", IMAGES)
def test_images_are_evaluated_with_a_class_for_each(name):
    model = model_of(name)
    images = model.sample(3, seed=2, condition="dog")
    nats = -np.asarray(model.log_prob(images, [1, 0, 1]), np.float64) / images[0].size
    for condition in ([1, 0, 1], np.array([1, 0, 1]), ["dog", "cat", "dog"]):
        found = onepass.evaluate(model, images, condition, batch_size=2)
        assert found.nats.mean == pytest.approx(nats.mean(), rel=1e-5)
        assert (found.elements, found.nats.n) == (images.size, 3)


@pytest.mark.parametrize("name", ["softmax, frames", "mixture, context, speakers"])
def test_sounds_of_several_lengths_and_levels_are_evaluated_with_their_frames(name):
    model = sound_bundles.model(name)
    sounds = [VOICE, 0.1 * VOICE, VOICE[:420]]
    frames = [model.front.frames(x) for x in sounds] if model.front.conditional else None
    found = onepass.evaluate(model, sounds, frames, batch_size=2)
    each = [model.log_prob(x, frames and frames[n]) for n, x in enumerate(sounds)]
    nats = [-np.mean(row, dtype=np.float64) for row in each]
    assert found.nats.mean == pytest.approx(np.mean(nats), rel=1e-5)
    assert found.elements == sum(map(len, sounds))
    together = model.log_prob(np.stack(sounds[:2]), frames and frames[:2])
    np.testing.assert_array_equal(together, each[:2])
    if frames:
        with pytest.raises(onepass.UserError, match="must have 2 rows, got 3"):
            model.log_prob(np.stack(sounds[:2]), frames)


def test_captions_and_frames_that_fit_no_row_are_refused_in_one_line():
    for condition in ([1, 0], np.array([1, 0])):
        with pytest.raises(onepass.UserError, match="`condition` must have 3 rows, got 2"):
            onepass.evaluate(model_of("PixelCNN"), np.zeros((3, 8, 8, 1), np.uint8), condition)
