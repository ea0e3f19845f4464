"""Every trainer gives the parameters of one device, whatever it runs on.

Processes of their own make the runs, see strategy_runs.py; none outlives its test.
"""

import contextlib
import dataclasses
import functools
import types
from pathlib import Path

import numpy as np
import pytest
import strategy_runs
import tensorflow as tf
from processes import TensorflowProcess
from runs import newest
from strategy_runs import CONFIGS, ROWS, STEPS

from onepass.foundation.errors import UserError
from onepass.replicator import strategies
from onepass.replicator.launch.tf_config import local_tasks
from onepass.replicator.training.batches import split_microbatches
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import TrainState, check_rows
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss
from wavenet.network import WaveNet
from wavenet.training import ClipLoss

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
SCRIPT = Path(strategy_runs.__file__)
SECONDS = 540.0  # for the processes of a strategy to make their runs
TOLERANCE = 1e-5  # of the largest entry of a parameter
IMAGE_TRAINERS = ("pixelcnn", "multiscale")
CROSSING = "crossing/pixelcnn"  # a run that changes its strategy every few steps
STRATEGIES = {
    "local:2": ("local:2", {}),
    "local:4": ("local:4", {}),
    "multi_worker": ("multi_worker", {"worker": 2}),
    "parameter_server": ("parameter_server", {"chief": 1, "worker": 1, "ps": 1}),
    "sharded:2x2": ("sharded:2x2", {}),
}
# What is quick to see; the other strategies have laws of their own, of smaller models, too.
QUICK = {"local:2": ("multiscale",)}


# Processes


@contextlib.contextmanager
def processes(strategy, tasks, folder, *words):
    """One process of strategy_runs.py, or one for each task; they are gone afterwards."""
    clusters = local_tasks(**tasks) if tasks else []
    environments = [{"TF_CONFIG": task.tf_config} for task in clusters] or [{}]
    started = []
    try:
        for environment in environments:
            log = folder / f"{len(list(folder.glob('*.log')))}.log"
            given = (SCRIPT, log, strategy, folder, *words)
            started.append(TensorflowProcess(*given, environment=environment))
        yield started
    finally:
        for process in started:
            process.kill()


def make(strategy, tasks, folder, *words):
    """Makes runs; servers and workers that serve are ended with their chief."""
    with processes(strategy, tasks, folder, *words) as started:
        waited = started if set(tasks) <= {"worker"} else started[:1]
        for process in waited:
            assert process.ended(SECONDS) == 0, process.output()[-4000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data and a teacher."""
    folder = tmp_path_factory.mktemp("strategies")
    make("data", {}, folder)
    return folder


def alone(folder, *trainers):
    """Return the result of each trainer on one device."""
    missing = [f"single/{name}" for name in trainers if not (folder / "single" / name).exists()]
    if missing:
        make("single", {}, folder, *missing)
    return [newest(folder / "single" / name) for name in trainers]


def assert_near(found, expected):
    """Fails unless both states agree, relative to the largest entry of each parameter."""
    assert found.keys() == expected.keys()
    assert found["step"] == expected["step"] == STEPS
    for name, value in expected.items():
        if name.startswith(("weights/", "average/")):
            bound = TOLERANCE * np.max(np.abs(value))
            np.testing.assert_allclose(found[name], value, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(
    ("name", "trainers"),
    [
        *QUICK.items(),
        *(
            pytest.param(name, CONFIGS, marks=pytest.mark.slow, id=f"{name}, all")
            for name in STRATEGIES
        ),
    ],
)
def test_a_strategy_gives_the_parameters_of_one_device(folder, name, trainers):
    strategy, tasks = STRATEGIES[name]
    runs = [f"{name}_{len(trainers)}/{trainer}" for trainer in trainers]
    make(strategy, tasks, folder, *runs)
    for run, expected in zip(runs, alone(folder, *trainers), strict=True):
        assert_near(newest(folder / run), expected)


@pytest.mark.slow
def test_a_run_goes_on_under_any_other_strategy(folder):
    visited = ["single", *(name for name in STRATEGIES if name != "local:4"), "single"]
    for number, name in enumerate(visited, 1):
        strategy, tasks = STRATEGIES.get(name, (name, {}))
        steps = number * STEPS // len(visited)
        make(strategy, tasks, folder, f'{CROSSING}={{"num_steps": {steps}}}')
    assert_near(newest(folder / CROSSING), *alone(folder, "pixelcnn"))


@pytest.mark.slow
def test_replicas_may_be_compiled_too(folder):
    loop = '{"jit_compile": true, "num_steps": 5}'
    make("single", {}, folder, f"jit_single/wavenet={loop}")
    make("local:2", {}, folder, f"jit_local/wavenet={loop}")
    found, expected = (newest(folder / run / "wavenet") for run in ("jit_local", "jit_single"))
    for name, value in expected.items():
        if name.startswith("weights/"):
            bound = TOLERANCE * np.max(np.abs(value))
            np.testing.assert_allclose(found[name], value, rtol=0, atol=bound, err_msg=name)


# What a share of a batch lacks


def sounds():
    """A network, its loss and a batch of sounds of different lengths."""
    config = dataclasses.replace(CONFIGS["wavenet"].network, feature_channels=0, speakers=0)
    draws = np.random.default_rng(0)
    levels = draws.integers(0, 65536, [ROWS, 64]).astype(np.int32)
    lengths = np.array([64, 5, 40, 17])[:, None]
    mask = (np.arange(64) < lengths).astype(np.float32)
    network = WaveNet(config)
    batch = {"levels": tf.constant(levels), "mask": tf.constant(mask)}
    return network, ClipLoss(network), batch


def images(folder, trainer):
    """A density, its loss and a batch of its images."""
    dataset = ImageDataset.read(folder / "images", CONFIGS[trainer])
    dataset = dataclasses.replace(dataset, config=dataset.resolved_config)
    density = ImageDensity(dataset.config)
    return density, ImageLoss(density), next(iter(dataset.training(0)))


@pytest.fixture
def cases(tmp_path):
    """Return what makes a network, its loss and a batch of ROWS rows, by trainer."""
    strategy_runs.make_images(tmp_path)
    image_cases = {name: functools.partial(images, tmp_path, name) for name in IMAGE_TRAINERS}
    return {"wavenet": sounds, **image_cases}


@pytest.mark.parametrize("name", ["wavenet", *IMAGE_TRAINERS])
def test_the_mean_over_shares_is_the_whole_and_needs_what_they_have_in_common(cases, name):
    network, loss, batch = cases[name]()
    state = TrainState(network, OptimizerConfig(), 10)
    whole, _, gradients = state.gradients(loss, batch)

    def mean(cut):
        shares = ({key: value[i] for key, value in cut.items()} for i in range(2))
        parts = [state.gradients(loss, share) for share in shares]
        averaged = [(a + b) / 2 for a, b in zip(parts[0][2], parts[1][2], strict=True)]
        return float(parts[0][0] + parts[1][0]) / 2, averaged

    def off(averaged):
        """The largest difference from the whole batch's gradients, relative to a gradient."""
        pairs = zip(averaged, gradients, strict=True)
        return max(float(tf.norm(a - b, np.inf) / tf.norm(b, np.inf)) for a, b in pairs)

    value, averaged = mean(split_microbatches(loss, batch, 2))
    np.testing.assert_allclose(value, whole, rtol=1e-5)
    assert off(averaged) < 1e-4
    assert off(mean(split_microbatches(lambda share: share, batch, 2))[1]) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wavenet", *IMAGE_TRAINERS])
def test_a_batch_in_parts_or_rematerialised_is_the_whole_batch(cases, name):
    network, loss, batch = cases[name]()
    losses, averaged = [], []
    for parts, again in ((1, False), (2, False), (4, False), (1, True), (2, True)):
        optimizer = OptimizerConfig(accumulate=parts, rematerialise=again)
        state = TrainState(network, optimizer, 10)
        # Compiled, so that the parts are cut and gone through as in training.
        step = tf.function(lambda given, state=state: state.update(loss, given), autograph=False)
        values, metrics = step(batch)
        losses.append(float(metrics["loss"]))
        names = list(state.slots())
        averaged.append([v for n, v in zip(names, values, strict=True) if n.startswith("first/")])
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    for found in averaged[1:]:
        for value, expected in zip(found, averaged[0], strict=True):
            np.testing.assert_allclose(
                value, expected, rtol=0, atol=1e-4 * np.max(np.abs(expected))
            )


@pytest.mark.slow
@pytest.mark.parametrize("option", ['"accumulate": 2', '"rematerialise": true'])
@pytest.mark.parametrize("trainer", CONFIGS)
def test_replicas_that_need_less_memory_give_the_parameters_of_one_device(folder, trainer, option):
    run = f"{option[1:4]}/{trainer}"
    make("local:2", {}, folder, f"{run}={{{option}}}")
    assert_near(newest(folder / run), *alone(folder, trainer))


# Mistakes


def replicas(count):
    return types.SimpleNamespace(
        name="local", num_replicas=count, num_devices=count, is_async=False, is_chief=True
    )


def test_a_batch_that_replicas_cannot_share_is_refused(mistake, monkeypatch, tmp_path):
    monkeypatch.setattr(strategies, "from_environment", lambda word: replicas(3))
    refusal = "`batch_size` must be a multiple of 3, the replicas that share a batch, got "
    for preset in ("wavenet-smoke", "pixelcnn-smoke", "multiscale-smoke"):
        words = ["train", preset, "--data", tmp_path, "--workdir", tmp_path.parent / "run"]
        assert mistake(*words, "--data.batch-size", 4).startswith(refusal + "4")
    with pytest.raises(UserError, match="multiple of 3"):
        check_rows(4, replicas(3))
    check_rows(6, replicas(3))
    with pytest.raises(
        UserError, match="12, the replicas that share a batch in 4 microbatches each, got 6"
    ):
        check_rows(6, replicas(3), 4)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "wavenet-smoke", "--data", "data"),
        ("train", "pixelcnn-smoke", "--data", "data"),
        ("distill", "student-smoke", "--teacher", "shipped-teacher"),
    ],
)
def test_a_strategy_that_is_none_is_refused_in_a_line(mistake, words, tmp_path):
    said = mistake(*words, "--workdir", tmp_path / "run", "--strategy", "nil")
    assert said.startswith("`--strategy` must be one of auto, single")
