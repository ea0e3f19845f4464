"""Bits after minutes of two cores: the clock, the marks, and tfp's PixelCNN as it is trained."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import image_minutes, tfp_pixelcnn
from benchmarks.image_minutes import OURS, PEER, Course, PeerSettings
from pixelcnn.config import PRESETS

SIDE, CLASSES = 8, 3


def colours(count, seed):
    """Images of three kinds, bright by their class."""
    draws = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = draws.integers(0, 30, [count, SIDE, SIDE, 3]) + 80 * labels[:, None, None, None]
    names = np.array(["dark", "grey", "light"])
    return {"images": images.astype(np.uint8), "labels": labels, "classes": names}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colours")
    np.savez(folder / "colours_train.npz", **colours(24, 1))
    np.savez(folder / "colours_dev.npz", **colours(12, 2))
    return str(folder)


def small_config():
    config = PRESETS[image_minutes.PRESET].config
    network = dataclasses.replace(config.network, layers=1, units=8, output_units=8)
    images = dataclasses.replace(config.data, size=SIDE, batch_size=4)
    return dataclasses.replace(config, network=network, data=images)


SMALL_PEER = PeerSettings({"num_filters": 4}, batch_size=4, learning_rate=1e-2)


class Clock:
    """Processor seconds that a test sets; each look at it takes `step` seconds."""

    now, step = 0.0, 0.0

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(image_minutes, "processor_seconds", clock)
    return clock


def course_of(folder, clock, scored):
    def score():
        scored.append(clock.now)
        clock.now += 1000.0  # as long as an evaluation may take
        return np.ones(4)

    return Course(folder, (1.0, 2.0), score, {})


def test_a_mark_is_scored_at_the_first_update_after_it_and_scoring_takes_no_time(tmp_path, clock):
    scored = []
    course = course_of(tmp_path, clock, scored)
    course.begin(0)
    ends = []
    for step in range(1, 6):
        clock.now += 50.0
        ends.append(course.advance(step))
    assert scored == [150.0, 1250.0]  # of two cores: 120 s and 240 s, once each
    assert ends == [False, False, False, False, True]
    assert [point["updates"] for point in image_minutes.read_points(tmp_path)] == [3, 5]


def test_a_resumed_training_has_taken_what_its_checkpoint_had(tmp_path, clock):
    scored = []
    course = course_of(tmp_path, clock, scored)
    course.begin(0)
    for step in (1, 2, 3):
        clock.now += 50.0
        course.advance(step)
    clock.now = 7.0  # of another process
    resumed = course_of(tmp_path, clock, scored)
    resumed.begin(2)  # the third update is lost, and made again
    clock.now += 50.0
    assert not resumed.advance(3)
    assert scored == [150.0]  # the mark is not scored again
    assert image_minutes.seconds_at(tmp_path / image_minutes.CLOCK, 3) == 150.0


def test_both_sides_learn_and_continue_where_they_were(data, tmp_path, clock):
    clock.step = 1.2  # a hundredth of a minute of two cores
    starts = {}
    for side in (OURS, PEER):
        folder = tmp_path / side
        for marks in ((0.05,), (0.05, 1.0)):
            if side == OURS:
                found = image_minutes.train_preset(data, folder, small_config(), marks)
            else:
                found = image_minutes.train_peer(data, folder, SMALL_PEER, marks, SIDE)
            starts.setdefault(side, found[0])
        first, second = found
        assert first == starts[side]  # kept, not trained again
        assert second["updates"] > first["updates"]
        assert np.mean(second["bits"]) < np.mean(first["bits"])
        assert len(first["bits"]) == 12
    compared = image_minutes.compare(tmp_path, [PEER])
    (first, second) = compared["rows"]
    ours, peer = compared["points"][OURS][1]["bits"], compared["points"][PEER][1]["bits"]
    assert second["half_b"][OURS] == pytest.approx(np.mean(ours[1::2]))
    assert second["half_a"]["lower_by"] == pytest.approx(np.mean(peer[::2]) - np.mean(ours[::2]))
    assert f"| {second['half_b'][PEER]:.3f} |" in image_minutes.format_rows(compared["rows"])
    json.dumps(compared)


def test_the_peer_reads_no_later_pixel_before_or_after_an_update():
    training = tfp_pixelcnn.Training(tfp_pixelcnn.make(SIDE, CLASSES, num_filters=4), 1e-2, 0.9)
    levels = np.random.default_rng(0).integers(256, size=[2, SIDE, SIDE, 3]).astype(np.int32)
    changed = levels.copy()
    changed[:, 4, 3:] = 255 - changed[:, 4, 3:]
    changed[:, 5:] = 255 - changed[:, 5:]
    labels = tf.constant([0, 2])

    def parameters(images):
        values = tf.cast(images, tf.float32) / 127.5 - 1.0
        outputs = training.distribution.network([values, tf.one_hot(labels, CLASSES)])
        return np.concatenate([out.numpy().reshape(2, SIDE, SIDE, -1) for out in outputs], -1)

    for _ in range(2):
        ours, others = parameters(levels), parameters(changed)
        np.testing.assert_allclose(ours[:, :4], others[:, :4], atol=1e-6)
        np.testing.assert_allclose(ours[:, 4, :4], others[:, 4, :4], atol=1e-6)
        assert not np.allclose(ours[:, 4, 4:], others[:, 4, 4:])
        training.update({"levels": tf.constant(levels), "label": labels})
    for average, weight in zip(training.averages, training.weights, strict=True):
        if weight.constraint is not None:
            np.testing.assert_array_equal(average, weight.constraint(average))
