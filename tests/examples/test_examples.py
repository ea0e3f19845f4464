"""The example models: their mathematics against slow code, two replicas against one device."""

import contextlib
import functools
import io
import re
from pathlib import Path

import numpy as np
import pytest
import scipy
import tensorflow as tf
from PIL import Image
from runs import assert_same

from examples import control, d4pg, mpo, own_step, resnet50, sn_gan, trust_region, v_mpo
from onepass.foundation.files import read_npz
from onepass.replicator import strategies

FOUR_DEVICES = pytest.mark.four_devices("tensorflow")


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


CONTROL = "--episodes 2 --updates 4 --updates-per-call 2 --batch 16 --hidden 8"
GAN = "--batch 8 --width 4 --sheet-steps 1"
RESNET = "--steps 2 --batch 4 --side 32 --blocks 1 1 --width 4 --warmup-steps 1 --data"
# Small runs: the example, its words, and the step that they end at.
RUNS = {
    "d4pg": (d4pg, CONTROL, 8),
    "mpo": (mpo, f"{CONTROL} --samples 3", 8),
    "v_mpo": (v_mpo, f"{CONTROL} --episodes-per-round 1", 8),
    "own_step": (own_step, "--batch 8 --save-steps 3 --steps 6", 6),
    "own_step, half": (own_step, "--batch 8 --save-steps 3 --steps 3", 3),
    "resnet50": (resnet50, RESNET, 2),
    "sn_gan": (sn_gan, f"{GAN} --steps 1", 1),
    "sn_gan, longer": (sn_gan, f"{GAN} --steps 2", 2),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Makes a run in a folder, once; gives what it printed and what it stored."""
    images = tmp_path_factory.mktemp("images")
    write_images(images)

    @functools.cache
    def run(strategy, name, folder):
        example, words, step = RUNS[name]
        more = [str(images)] if example is resnet50 else []
        with contextlib.redirect_stdout(io.StringIO()) as said:
            example.main(["--strategy", strategy, "--out", str(folder), *words.split(), *more])
        return said.getvalue(), read_npz(folder / "checkpoints" / f"step_{step:08d}.npz")

    return run


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


@pytest.mark.slow
@FOUR_DEVICES
@pytest.mark.parametrize("name", ["d4pg", "mpo", "v_mpo", "own_step", "resnet50", "sn_gan"])
def test_two_replicas_end_where_one_device_does(run, out, name):
    one, two = (run(word, name, out / word / name)[1] for word in ("single", "local:2"))
    assert one.keys() == two.keys()
    for key, values in one.items():
        bound = 1e-5 * np.max(np.abs(values)) + 1e-7
        np.testing.assert_allclose(two[key], values, rtol=0.0, atol=bound, err_msg=key)


@pytest.mark.integration
@FOUR_DEVICES
@pytest.mark.parametrize(
    ("half", "whole"),
    [
        ("own_step, half", "own_step"),
        pytest.param("sn_gan", "sn_gan, longer", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(run, out, half, whole):
    run("single", half, out / "parts" / whole)
    _, resumed = run("single", whole, out / "parts" / whole)
    assert_same(resumed, run("single", whole, out / "single" / whole)[1])


@pytest.mark.slow
@FOUR_DEVICES
def test_a_sheet_has_a_row_of_samples_for_each_class(run, out):
    run("single", "sn_gan, longer", out / "sheet")
    with Image.open(out / "sheet" / "step_000002.png") as sheet:
        levels = np.asarray(sheet)
    assert levels.shape == (10 * 32, 8 * 32, 3)
    cells = levels.reshape(10, 32, 8, 32, 3).transpose(0, 2, 1, 3, 4).reshape(80, -1)
    assert len(np.unique(cells, axis=0)) == 80


@pytest.mark.integration
@FOUR_DEVICES
@pytest.mark.parametrize("strategy", ["single", pytest.param("local:2", marks=pytest.mark.slow)])
def test_the_accuracy_counts_every_dev_image_once(run, out, strategy):
    said = (run(word, "resnet50", out / word / "resnet50")[0] for word in (strategy, "single"))
    accuracy, other = (re.search(r"accuracy on dev: ([\d.]+)", text).group(1) for text in said)
    right = 5 * float(accuracy)
    assert right == pytest.approx(round(right), abs=1e-3)
    assert accuracy == other


def test_resnet50_has_no_class_of_a_hidden_folder_or_of_an_archive(tmp_path):
    names = ("train/a/1.png", "train/b/2.PNG", "train/.x/3.png", "train/__MACOSX/a/4.png")
    for name in (*names, "train/a/._1.png", "train/a/deep/5.png", "dev/b/6.png", "dev/.x/7.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    settings = resnet50.Settings(tmp_path, tmp_path)
    train = [str(tmp_path / name) for name in names[:2]]
    assert resnet50.listed(settings, "train") == (train, [0, 1], 2)
    assert resnet50.listed(settings, "dev") == ([str(tmp_path / "dev/b/6.png")], [1], 2)


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
    layer, through = sn_gan.Layer(np.random.default_rng(1), *shape), sn_gan.Pass()
    for _ in range(100):
        sigma, u = sn_gan.power_iteration(layer.kernel, layer.u)
        layer.u.assign(u)
    matrix = layer.kernel.numpy().reshape(-1, shape[-1])
    assert float(sigma) == pytest.approx(np.linalg.svd(matrix)[1][0], rel=1e-4)
    if len(shape) == 2:  # which stretches nothing by more than one
        divided = layer(np.eye(shape[0], dtype=np.float32), through).numpy()
        assert np.linalg.svd(divided)[1][0] == pytest.approx(1.0, rel=1e-4)
        np.testing.assert_allclose(through.left[layer.u.ref()], u, atol=1e-3)  # its next vector


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
    settings = control.Settings(out=Path(), reward_scale=0.5)
    replay = control.Replay(settings, rng)
    replay.add(observations, np.zeros([length, 1]), rewards, ended)
    for t in range(length):
        total, discount, now = 0.0, 1.0, t
        while now < min(t + settings.returns, length):
            total, discount, now = total + discount * 0.5 * rewards[now], discount * 0.99, now + 1
        row = {key: values[t, 0] for key, values in replay.rows.items()}
        assert row["reward"] == pytest.approx(total, rel=1e-5)
        assert row["after"] == now
        assert row["discount"] == pytest.approx(0.0 if ended and now == length else discount)


def test_the_replay_keeps_what_came_last():
    settings = control.Settings(out=Path(), remembered=1000)
    replay = control.Replay(settings, np.random.default_rng(6))
    for start in (0.0, settings.remembered - 5.0):
        times = start + np.arange(995 if not start else 10.0)
        observations = np.append(times, 0.0)[:, None]
        replay.add(observations, times[:, None], np.zeros(len(times)), False)
    kept = replay.rows["action"][:, 0]
    assert len(kept) == 1000 and kept[0] == 5.0 and kept[-1] == 1004.0


@pytest.mark.parametrize(("shape", "bound"), [((50,), 0.1), ((8, 20), 0.1), ((8, 20), 1.0)])
def test_the_temperature_minimises_the_dual_as_scipy_does(shape, bound):
    values = 3.0 * np.random.default_rng(7).normal(size=shape)

    def dual(log_eta):
        eta = np.exp(log_eta)
        partition = scipy.special.logsumexp(values / eta, axis=-1) - np.log(shape[-1])
        return eta * (bound + np.mean(partition))

    best = scipy.optimize.minimize_scalar(dual, bounds=(-10, 10), options={"xatol": 1e-9})
    found = trust_region.temperature(tf.constant(values, tf.float32), bound)
    assert float(found) == pytest.approx(np.exp(best.x), rel=1e-3)
    weights, divergence = trust_region.tempered(tf.constant(values, tf.float32), found)
    weights = weights.numpy().astype(np.float64)
    kl = np.mean(np.sum(weights * np.log(weights * shape[-1]), axis=-1))
    assert kl == pytest.approx(float(divergence), abs=1e-5)
    assert bound - 1e-3 < kl <= bound + 1e-5


def test_divergences_are_those_of_gaussians_of_which_one_number_moved():
    def kl(mean, deviation, new_mean, new_deviation):
        x = np.linspace(-9.0, 9.0, 20_001)
        log_p, log_q = (
            scipy.stats.norm.logpdf(x, *pair)
            for pair in ((mean, deviation), (new_mean, new_deviation))
        )
        return np.sum(np.exp(log_p) * (log_p - log_q)) * (x[1] - x[0])

    before, now = (0.2, 0.8), (-0.3, 0.5)
    pairs = [tuple(tf.constant([[number]]) for number in pair) for pair in (before, now)]
    expected = kl(*before, now[0], before[1]), kl(*before, before[0], now[1])
    np.testing.assert_allclose(trust_region.divergences(*pairs), expected, rtol=1e-5)


@pytest.mark.parametrize("agent", [mpo, v_mpo])
def test_a_policy_moves_and_stays_within_its_bounds(agent):
    rng, rows = np.random.default_rng(8), 32
    settings = agent.Settings(out=Path(), hidden=8, learning_rate=0.01)
    learner = agent.Learner(settings, 3, 1, strategies.single())
    shapes = {"observation": 3, "after": 3, "action": 1, "reward": 1, "discount": 1}
    batch = {
        name: rng.normal(size=[rows, size]).astype(np.float32) for name, size in shapes.items()
    }
    batch["draws"] = rng.normal(size=[rows, 4, 1]).astype(np.float32)
    before = learner.before(batch)

    def moved():
        return trust_region.divergences(
            before, trust_region.gaussian(learner.actor, batch["observation"])
        ).numpy()

    steps = iter(tf.data.Dataset.from_tensors(batch).repeat())
    learn = learner.replicator.compile(learner.learn)
    for _ in range(20):
        learn(steps)
        assert np.all(moved() <= learner.bounds)
    assert np.all(moved() > 0.0)
    # Multipliers rise above 1 only where an update would have left the region.
    assert np.max(learner.log_multipliers) > 0.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("agent", [d4pg, mpo, v_mpo])
def test_an_agent_solves_the_pendulum(agent, tmp_path, capsys):
    agent.main(["--out", str(tmp_path), "--strategy", "single"])
    found = re.search(r"without noise: return (\S+)", capsys.readouterr().out)
    assert float(found.group(1)) >= control.SOLVED
