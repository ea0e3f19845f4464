"""Episodes as examples of a next frame, with the actions that are theirs or another's."""

import dataclasses
import types

import numpy as np
import pytest
from hostile_files import refused

from pixelcnn.data.batch_sampling import batches_of
from pixelcnn.data.corpus import ImageRules
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.video import read_episodes

EPISODES, VIEWS, STEPS = 4, 3, 6


def arrays(episodes=EPISODES, first=0):
    """Frames that spell episode, view and step; actions that spell episode and step."""
    frames = np.zeros((episodes, VIEWS, STEPS, 8, 8, 3), np.uint8)
    frames[..., 0] = first + np.arange(episodes)[:, None, None, None, None]
    frames[..., 1] = np.arange(VIEWS)[:, None, None, None]
    frames[..., 2] = np.arange(STEPS)[:, None, None]
    moments = np.stack(np.mgrid[first : first + episodes, :STEPS], -1).astype(np.float32)
    constant = np.full((episodes, STEPS, 1), 5.0, np.float32)
    states = np.concatenate([10 * moments, constant], axis=-1)
    return {"frames": frames, "actions": moments, "states": states}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video")
    np.savez(folder / "toy_train.npz", **arrays())
    np.savez(folder / "toy_dev.npz", **arrays(2, first=EPISODES))
    return folder


@pytest.fixture(scope="module")
def video(folder):
    return read_episodes(folder)


def dataset_of(video, context=2, split="train"):
    """The data set whose dev is a split of the video."""
    conditioning = types.SimpleNamespace(context_frames=context)
    config = types.SimpleNamespace(conditioning=conditioning, data=types.SimpleNamespace(crop=0))
    return ImageDataset(config, dataclasses.replace(video, splits={"dev": video.splits[split]}))


def drawn(video, count, start=0, shard=(0, 1), **settings):
    """Batches of train, one after another."""
    settings = {"kind": "video", "context": 2, "jitter": 0.0, **settings}
    batch = batches_of(video.splits["train"].stored, settings)
    batches = [batch(step, *shard) for step in range(start, start + count)]
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def joined(dataset):
    batches = [{k: v.numpy() for k, v in batch.items()} for batch in dataset]
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def raw_actions(video, batch):
    """The episode and the step that each action spells, int [examples, context, 2]."""
    statistics = video.statistics
    return np.rint(batch["action"] * statistics.action_std + statistics.action_mean).astype(int)


def test_train_is_centred_and_scaled_and_dev_by_the_same_numbers(video):
    train, dev = video.splits["train"], video.splits["dev"]
    for values in (train.actions, train.states[..., :2]):
        np.testing.assert_allclose(values.mean(axis=(0, 1)), 0, atol=1e-6)
        np.testing.assert_allclose(values.std(axis=(0, 1)), 1, atol=1e-5)
    expected = (4 - 1.5) / np.std(np.arange(4))
    np.testing.assert_allclose(dev.actions[0, :, 0], expected, rtol=1e-5)
    for split in (train, dev):  # a channel that never moves
        assert np.all(split.states[..., 2] == 0)


def test_every_frame_with_a_past_comes_with_the_past_and_actions_of_its_own(video):
    batch = joined(dataset_of(video, split="dev").dev(5))
    assert len(batch["levels"]) == 2 * VIEWS * (STEPS - 2)
    episode, view, step = batch["levels"][:, 0, 0].T
    places = set(zip(episode.tolist(), view.tolist(), step.tolist(), strict=True))
    assert places == {(e, v, s) for e in (4, 5) for v in range(VIEWS) for s in range(2, STEPS)}
    before = np.stack([step - 2, step - 1], axis=1)
    np.testing.assert_array_equal(batch["past"][:, :, 0, 0, 2], before)
    np.testing.assert_array_equal(batch["past"][:, 0, 0, 0, 0], episode)
    np.testing.assert_array_equal(batch["past"][:, 1, 0, 0, 1], view)
    actions = raw_actions(video, batch)
    np.testing.assert_array_equal(actions[..., 1], before)
    np.testing.assert_array_equal(actions[..., 0], episode[:, None] + [[0, 0]])
    np.testing.assert_allclose(batch["state"][..., :2], batch["action"], atol=1e-5)


def test_shuffled_actions_are_all_used_and_nobody_keeps_their_own(video):
    own, seen = joined(dataset_of(video).dev(7)), set()
    for seed in (1, 2, 3, 4, 5, 1):
        other = joined(dataset_of(video).dev(7, seed))
        for name in ("levels", "past", "seed"):
            np.testing.assert_array_equal(own[name], other[name])
        first, second = raw_actions(video, own), raw_actions(video, other)
        assert np.all(np.any(first != second, axis=(1, 2)))
        assert sorted(first.reshape(-1, 4).tolist()) == sorted(second.reshape(-1, 4).tolist())
        np.testing.assert_allclose(other["state"][..., :2], other["action"], atol=1e-5)
        seen.add(second.tobytes())
    assert len(seen) == 5


def test_jitter_moves_what_the_arm_did_by_its_standard_deviations_and_nothing_else(video):
    options = {"batch_size": 8, "seed": 3, "context": 2}
    still, moved = (drawn(video, 40, jitter=jitter, **options) for jitter in (0.0, 0.5))
    for name in ("levels", "past", "seed"):
        np.testing.assert_array_equal(still[name], moved[name])
    action, state = (moved[name] - still[name] for name in ("action", "state"))
    for noise in (action, state):
        assert abs(noise.mean()) < 0.05 and abs(noise.std() - 0.5) < 0.03
    assert abs(np.corrcoef(action[..., 0].ravel(), state[..., 0].ravel())[0, 1]) < 0.2


def test_an_epoch_of_batches_holds_every_frame_with_a_past(video):
    count = EPISODES * VIEWS * (STEPS - 2)
    batch = drawn(video, 4, batch_size=count // 4, seed=2)
    found = {tuple(place) for place in batch["levels"][:, 0, 0].tolist()}
    assert len(found) == count
    np.testing.assert_array_equal(
        raw_actions(video, batch)[:, 0, 1] + 2, batch["levels"][:, 0, 0, 2]
    )


def test_frames_are_reduced_by_the_rules(folder):
    video = read_episodes(folder, ImageRules(4, 1))
    assert video.splits["train"].frames.shape == (EPISODES * VIEWS, STEPS, 4, 4, 1)
    assert video.notes[1] == "dev: 2 episodes in 3 views, 6 steps of 4x4, 1 channel"
    assert np.all(video.splits["train"].frames[0, 0] == 0)
    assert video.splits["train"].frames[-1, -1].max() == round(0.299 * 3 + 0.587 * 2 + 0.114 * 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"states": None}, "a_train.npz: has no array `states`."),
        (lambda a: {"frames": a["frames"][:, 0]}, "any, any, 3], got [4, 6, 8, 8, 3]."),
        (lambda a: {"frames": a["frames"] / 255}, "`frames` must be uint8, got float64."),
        (lambda a: {"frames": a["frames"][:0]}, "`frames` is empty, [0, 3, 6, 8, 8, 3]."),
        (lambda a: {"actions": a["actions"][:, 1:]}, "shape [4, 6, any], got [4, 5, 2]."),
        (lambda a: {"states": np.nan * a["states"]}, "`states` has a value that is not finite."),
        (lambda a: {"states": a["states"].astype(int)}, "`states` must be floats, got int64."),
        (lambda a: {"actions": a["actions"][..., :1]}, "a_dev.npz: `actions` end in [1] and [2]."),
    ],
)
def test_wrong_episodes_are_named_in_one_line(tmp_path, change, message):
    train = {name: a for name, a in (arrays() | change(arrays())).items() if a is not None}
    np.savez(tmp_path / "a_train.npz", **train)
    np.savez(tmp_path / "a_dev.npz", **arrays(1))
    found = refused(read_episodes, tmp_path).replace(f"{tmp_path}/", "")
    assert found.startswith("a_train.npz") and found.endswith(message)


def test_what_has_no_episodes_or_too_short_ones_is_refused(folder, tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        assert "no folder with a *_train.npz and a *_dev.npz." in refused(read_episodes, path)
    conditioning = types.SimpleNamespace(kind="video", context_frames=STEPS)
    config = types.SimpleNamespace(conditioning=conditioning, data=None)
    line = "`context_frames` must be in [1, 6), got 6."
    assert line in refused(ImageDataset.read, folder, config)
