"""The example models: their mathematics against slow code, two replicas against one device."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from processes import TensorflowProcess

from examples import d4pg, resnet50, sn_gan
from replicator import strategies

SCRIPT = Path(__file__).with_name("example_runs.py")
SECONDS = 280


def write_images(folder):
    """Writes six images for train and five for dev, of two classes."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("dev", 2)):
        for name in ("dark", "light"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count + (split == "dev" and name == "light")):
                levels = rng.integers(0, 128, [40, 48, 3]) + 127 * (name == "light")
                image = Image.fromarray(levels.astype(np.uint8))
                image.save(folder / split / name / f"{number}.png")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """From a strategy's word to its folder and what it printed; both run side by side."""
    folder = tmp_path_factory.mktemp("examples")
    write_images(folder / "images")
    started = {}
    try:
        for word in ("single", "local:2"):
            out, log = folder / word[:5], folder / f"{word[:5]}.log"
            images = folder / "images"
            started[word] = out, TensorflowProcess(SCRIPT, log, word, out, images)
        for word, (_, process) in started.items():
            assert process.ended(SECONDS) == 0, f"{word}: {process.output()[-3000:]}"
    finally:
        for _, process in started.values():
            process.kill()
    return {word: (out, process.output()) for word, (out, process) in started.items()}


def stored(folder, step):
    with np.load(folder / "checkpoints" / f"step_{step:08d}.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize(
    ("example", "step"), [("d4pg", 8), ("own_step", 6), ("resnet50", 2), ("sn_gan", 1)]
)
def test_two_replicas_end_where_one_device_does(runs, example, step):
    one, two = (stored(runs[word][0] / example, step) for word in ("single", "local:2"))
    assert one.keys() == two.keys()
    for name, values in one.items():
        bound = 1e-5 * np.max(np.abs(values)) + 1e-7
        np.testing.assert_allclose(two[name], values, rtol=0.0, atol=bound, err_msg=name)


@pytest.mark.parametrize(
    ("parts", "whole", "step"), [("sn_gan", "straight", 2), ("own_parts", "own_step", 6)]
)
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(runs, parts, whole, step):
    resumed, straight = (stored(runs["single"][0] / run, step) for run in (parts, whole))
    for name, values in straight.items():
        np.testing.assert_array_equal(resumed[name], values, err_msg=name)


def test_a_sheet_has_a_row_of_samples_for_each_class(runs):
    with Image.open(runs["single"][0] / "straight" / "step_000002.png") as sheet:
        levels = np.asarray(sheet)
    assert levels.shape == (10 * 32, 8 * 32, 3)
    cells = levels.reshape(10, 32, 8, 32, 3).transpose(0, 2, 1, 3, 4).reshape(80, -1)
    assert len(np.unique(cells, axis=0)) == 80


def test_the_accuracy_counts_every_dev_image_once(runs):
    found = {word: re.search(r"accuracy on dev: ([\d.]+)", runs[word][1]) for word in runs}
    accuracies = {word: float(match.group(1)) for word, match in found.items()}
    assert accuracies["single"] == accuracies["local:2"]
    assert accuracies["single"] * 5 == pytest.approx(round(accuracies["single"] * 5), abs=1e-3)


def test_resnet50_has_the_parameters_of_the_paper():
    network = resnet50.ResNet(np.random.default_rng(0), (3, 4, 6, 3), 64, 1000)
    # 25.6 million; of which kernels, with a scale and a shift for each output, and the last layer.
    assert sum(int(np.prod(v.shape)) for v in network.trainable_variables) == 25_557_032


def test_the_rate_rises_with_the_batch_and_falls_three_times():
    settings = resnet50.Settings(
        out=Path(), steps=90, batch=512, warmup_steps=4, blocks=(1,), width=4
    )
    trainer = resnet50.Trainer(settings, 2, strategies.single())
    rates = []
    for step in (0, 3, 29, 30, 60, 80):
        trainer.step.assign(step)
        rates.append(float(trainer.rate()))
    np.testing.assert_allclose(rates, [0.05, 0.2, 0.2, 0.02, 0.002, 0.0002], rtol=1e-5)


def test_smoothed_labels_are_best_met_short_of_certainty():
    labels = tf.one_hot([0], 10)
    best, first = np.log([0.91] + [0.01] * 9), np.eye(10)[0]
    losses = [
        float(resnet50.smoothed_cross_entropy(np.float32([logits]), labels))
        for logits in (best, best + first, best - first)
    ]
    entropy = -0.91 * np.log(0.91) - 0.09 * np.log(0.01)
    assert losses[0] == pytest.approx(entropy, rel=1e-5)
    assert min(losses[1:]) > losses[0] + 0.01


@pytest.mark.parametrize("shape", [(3, 3, 5, 8), (12, 7)])
def test_a_spectral_layer_divides_by_the_largest_singular_value(shape):
    layer = sn_gan.Layer(np.random.default_rng(1), *shape)
    for _ in range(100):
        sigma, u = sn_gan.power_iteration(layer.kernel, layer.u)
        layer.u.assign(u)
    matrix = layer.kernel.numpy().reshape(-1, shape[-1])
    assert float(sigma) == pytest.approx(np.linalg.svd(matrix)[1][0], rel=1e-4)


def test_a_spectral_layer_stretches_nothing_by_more_than_one():
    layer, through = sn_gan.Layer(np.random.default_rng(2), 12, 7), sn_gan.Pass()
    for _ in range(100):
        matrix = layer(np.eye(12, dtype=np.float32), through).numpy()
        layer.u.assign(through.left[layer.u.ref()])
    assert np.linalg.svd(matrix)[1][0] == pytest.approx(1.0, rel=1e-4)


def test_a_gan_learns_labels_in_its_norms_and_its_projection():
    rng, through = np.random.default_rng(3), sn_gan.Pass()
    norm = sn_gan.Norm(2, 3)
    norm.scale.assign(rng.normal(size=[2, 3]))
    critic = sn_gan.Discriminator(rng, 2, 4)
    x = rng.normal(size=[2, 4, 4, 3]).astype(np.float32)
    mine, other = np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)[::-1]
    swapped = norm(x[::-1], mine, through).numpy()[::-1]
    np.testing.assert_allclose(norm(x, other, through), swapped, rtol=1e-6)
    images = rng.normal(size=[2, 32, 32, 3]).astype(np.float32)
    scores = critic(images, mine, through), critic(images, other, through)
    assert np.all(np.abs(scores[0] - scores[1]) > 1e-4)


def slowly_projected(atoms, moved, probabilities):
    """Bellemare et al. 2017, algorithm 1, atom by atom."""
    result, gap = np.zeros(len(atoms)), atoms[1] - atoms[0]
    for place, probability in zip(moved, probabilities, strict=True):
        b = (min(max(place, atoms[0]), atoms[-1]) - atoms[0]) / gap
        low, high = int(np.floor(b)), int(np.ceil(b))
        if low == high:
            result[low] += probability
        else:
            result[low] += probability * (high - b)
            result[high] += probability * (b - low)
    return result


def test_the_categorical_projection_is_that_of_a_slow_loop():
    rng, atoms = np.random.default_rng(4), np.linspace(-3.0, 2.0, 11)
    moved = rng.normal(0.0, 3.0, [6, 11])
    moved[0] = atoms  # exactly on the atoms
    probabilities = rng.dirichlet(np.ones(11), 6)
    found = d4pg.projected(*(np.float32(x) for x in (atoms, moved, probabilities)))
    rows = zip(moved, probabilities, strict=True)
    np.testing.assert_allclose(found, [slowly_projected(atoms, m, p) for m, p in rows], atol=1e-6)


@pytest.mark.parametrize("ended", [False, True])
def test_n_step_returns_are_those_of_a_slow_loop(ended):
    rng, length = np.random.default_rng(5), 12
    rewards = rng.normal(size=length)
    observations = np.arange(length + 1.0)[:, None]
    settings = d4pg.Settings(out=Path(), reward_scale=0.5)
    replay = d4pg.Replay(settings, rng)
    replay.add(observations, np.zeros([length, 1]), rewards, ended)
    for t in range(length):
        total, discount, now = 0.0, 1.0, t
        while now < min(t + d4pg.RETURNS, length):
            total, discount, now = total + discount * 0.5 * rewards[now], discount * 0.99, now + 1
        row = {key: values[t, 0] for key, values in replay.rows.items()}
        assert row["reward"] == pytest.approx(total, rel=1e-5)
        assert row["after"] == now
        assert row["discount"] == pytest.approx(0.0 if ended and now == length else discount)


def test_the_replay_keeps_what_came_last():
    settings = d4pg.Settings(out=Path())
    replay = d4pg.Replay(settings, np.random.default_rng(6))
    for start in (0.0, d4pg.REMEMBERED - 5.0):
        times = start + np.arange(d4pg.REMEMBERED - 5 if not start else 10.0)
        observations = np.append(times, 0.0)[:, None]
        replay.add(observations, times[:, None], np.zeros(len(times)), False)
    kept = replay.rows["action"][:, 0]
    assert len(kept) == d4pg.REMEMBERED and kept[0] == 5.0 and kept[-1] == d4pg.REMEMBERED + 4.0
