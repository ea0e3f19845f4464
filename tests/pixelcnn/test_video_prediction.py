"""The frames of a video follow from those before them, the actions and the seed."""

import image_runs
import numpy as np
import pytest
from hostile_files import refused
from image_runs import model
from PIL import Image

import onepass
from onepass.command.sample import images
from pixelcnn.model import predict

STEPS, CONTEXT = 4, 2


@pytest.fixture
def clip():
    arrays = image_runs.episodes(2, 2)
    return arrays["frames"][0, 0], arrays["actions"][0], arrays["states"][0]


def drawn(frames, actions, states, given=CONTEXT, **options):
    """The frames that follow the given ones, uint8 [frames, 16, 16, 3]."""
    found = predict(model("video"), frames[:given], actions[:-1], states[:-1], **options)
    return np.stack(list(found))


@pytest.mark.slow
def test_a_frame_follows_each_step_and_each_seed_and_row_has_its_own(clip):
    first = drawn(*clip)
    assert first.shape == (STEPS - CONTEXT, 16, 16, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(drawn(*clip), first)
    assert not np.array_equal(drawn(*clip, row=1), first)
    assert not np.array_equal(drawn(*clip, seed=1), first)
    assert not np.array_equal(first[0], first[1])


@pytest.mark.slow
def test_only_the_last_frames_before_one_are_read(clip):
    frames, *steps = clip
    own = drawn(frames, *steps, given=3)
    for changed, same in ((0, True), (1, False), (2, False)):
        other = frames.copy()
        other[changed] = 255 - other[changed]
        assert np.array_equal(drawn(other, *steps, given=3), own) == same


def test_frames_that_are_given_stand_for_those_that_would_be_drawn(clip):
    frames, *steps = clip
    first, second = drawn(frames, *steps)
    known = np.stack([*frames[:CONTEXT], first])
    np.testing.assert_array_equal(drawn(known, *steps, given=3), [second])


def test_an_action_changes_no_frame_before_its_own(clip):
    frames, actions, states = clip
    other = actions.copy()
    other[2] += 30
    before, after = drawn(frames, actions, states), drawn(frames, other, states)
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_actions_are_normalised_as_in_training(clip, monkeypatch):
    asked = []
    known = model("video")
    paint = known.model.images

    def images(request):
        asked.append(request)
        return paint(request)

    monkeypatch.setattr(known.model, "images", images)
    drawn(*clip, row=2)
    statistics = known.front.statistics
    expected = (clip[1][1:3] - statistics.action_mean) / statistics.action_std
    np.testing.assert_allclose(asked[1].condition["action"][0], expected, rtol=1e-5)
    assert [request.row for request in asked] == [2 * 65536 + 2, 2 * 65536 + 3]


def test_what_does_not_fit_the_model_is_refused_before_a_frame_is_drawn(clip):
    frames, actions, states = clip
    wide, few = np.repeat(actions, 2, -1), "There must be at least 2 frames, and an action and a"
    still = "The model draws images, not the next frame of a video."
    for kind, given, heat, line in (
        ("video", (frames[:2], wide, states), 1.0, "An action has 2 numbers and a state 1, got 4"),
        ("video", (frames[:1], actions, states), 1.0, few),
        ("video", (frames[:3], actions[:2], states[:2]), 1.0, few),
        ("video", (frames[:2], actions, states[:3]), 1.0, few),
        ("pixelcnn", clip, 1.0, still),
        ("video", (frames[:2], actions, states), -1.0, "`temperature` must be at least 0 and"),
    ):
        assert refused(predict, model(kind), *given, temperature=heat).startswith(line)


@pytest.fixture
def sample(monkeypatch):
    monkeypatch.setattr("pixelcnn.model.load", lambda path: model("video"))
    return ["sample", str(image_runs.run("video")), "--video", str(image_runs.videos())]


def test_a_video_is_an_animation_and_a_strip_beside_the_real_one(sample, tmp_path, capsys):
    (tmp_path / "video_3_0.gif").write_bytes(b"mine")
    words = ["--out", str(tmp_path), "--num", "1", "--seed", "3", "--overwrite"]
    assert onepass.main([*sample, *words]) == 0
    assert f"{tmp_path}: 1 video; real frames left" in capsys.readouterr().out
    names = ["video_3_0.gif", "video_3_0.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    real = image_runs.episodes(2, 2)["frames"][0, 0]
    arrays = image_runs.episodes(2, 2)
    mine = drawn(real, arrays["actions"][0], arrays["states"][0], seed=3)
    with Image.open(tmp_path / names[1]) as opened:
        sheet = np.asarray(opened)
    rows = [[*real], [*real[:CONTEXT], *mine]]
    assert sheet.shape == (2 * 98 + 2, STEPS * 98 + 2, 3)
    for row, frames in enumerate(rows):
        for column, frame in enumerate(frames):
            top, left = 2 + 98 * row, 2 + 98 * column
            np.testing.assert_array_equal(sheet[top : top + 96 : 6, left : left + 96 : 6], frame)
    with Image.open(tmp_path / names[0]) as opened:
        assert (opened.n_frames, opened.size) == (STEPS, (198, 100))


def test_a_video_is_not_written_over_unasked(mistake, sample, tmp_path, monkeypatch):
    words = [*sample, "--out", tmp_path, "--num", "1"]
    monkeypatch.setattr(images, "predict", None)  # nothing is drawn before
    for name in ("video_0_0.gif", "video_0_0.png"):
        (tmp_path / name).write_bytes(b"mine")
        assert mistake(*words) == f"{tmp_path / name} already exists; --overwrite replaces it."
        assert (tmp_path / name).read_bytes() == b"mine"
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--label cat", "`--label` is for a model of another kind; this one has video."),
        ("--size 8", "`--size` is not for a video model."),
        ("--prime-rows 3", "`--prime-rows` is not for a video model."),
        ("--temperature -1", "`--temperature` must be at least 0 and finite, got -1."),
        ("--temperature 1 1 1", "`temperature` must be one number or 2, got 3."),
        ("--video /nowhere", "/nowhere: no folder with a *_train.npz and a *_dev.npz."),
        ("--video WIDE", "WIDE: `actions` have 5 numbers, the model knows 2."),
        ("", "A video model needs `--video`, a folder of episodes to continue."),
    ],
)
def test_a_video_that_cannot_be_drawn_is_one_line_and_no_folder(
    mistake, sample, tmp_path, words, line
):
    for split in ("train", "dev"):
        np.savez(tmp_path / f"x_{split}.npz", **image_runs.episodes(2, 0, actions=5))
    given = words.replace("WIDE", str(tmp_path)).split()
    found = mistake(*(sample if words else sample[:2]), "--out", tmp_path / "out", *given)
    assert found.replace(str(tmp_path), "WIDE") == line
    assert not (tmp_path / "out").exists()
