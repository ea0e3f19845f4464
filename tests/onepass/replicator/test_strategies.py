"""Every trainer gives the parameters of one device, whatever it runs on; see strategy_runs.py."""

import dataclasses
import types
from pathlib import Path

import numpy as np
import pytest
import strategy_runs
import tensorflow as tf
from processes import Started
from runs import newest
from shares import assert_cuts_change_nothing
from strategy_runs import CONFIGS, STEPS

from onepass.foundation.rules import UserError
from onepass.replicator import strategies
from onepass.replicator.launch.tf_config import local_tasks
from onepass.replicator.training.state import check_rows
from wavenet.network import WaveNet
from wavenet.training import ClipLoss

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
SCRIPT = Path(strategy_runs.__file__)
SECONDS = 540.0  # for the processes of a strategy to make their runs
TOLERANCE = 1e-5  # of the largest entry of a parameter
CROSSING = "crossing/pixelcnn"  # a run that changes its strategy every few steps
STRATEGIES = {
    "local:2": ("local:2", {}),
    "local:4": ("local:4", {}),
    "multi_worker": ("multi_worker", {"worker": 2}),
    "parameter_server": ("parameter_server", {"chief": 1, "worker": 1, "ps": 1}),
    "sharded:2x2": ("sharded:2x2", {}),
}


def make(strategy, tasks, folder, *words):
    """Makes runs, in one process or one for each task.

    Servers and workers that serve are ended with their chief.
    """
    with Started(folder) as group:
        given = (SCRIPT, strategy, folder, *words)
        started = group.start_tasks(local_tasks(**tasks), *given) or [group.start(*given)]
        for process in started if set(tasks) <= {"worker"} else started[:1]:
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


def assert_near(found, expected, steps=STEPS):
    """Fails unless both states agree, relative to the largest entry of each parameter."""
    assert found.keys() == expected.keys()
    assert found["step"] == expected["step"] == steps
    for name, value in expected.items():
        if name.startswith(("weights/", "average/")):
            bound = TOLERANCE * np.max(np.abs(value))
            np.testing.assert_allclose(found[name], value, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(
    ("name", "trainers"),
    [
        # The other strategies have laws of their own, of smaller models, too.
        ("local:2", ("multiscale",)),
        *(pytest.param(name, CONFIGS, marks=pytest.mark.slow) for name in STRATEGIES),
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
    assert_near(*(newest(folder / f"jit_{word}" / "wavenet") for word in ("local", "single")), 5)


def test_a_sound_s_loss_on_shares_is_that_of_the_whole_batch():
    config = dataclasses.replace(CONFIGS["wavenet"].network, feature_channels=0, speakers=0)
    levels = np.random.default_rng(0).integers(0, 65536, [8, 64]).astype(np.int32)
    lengths = np.array([64, 5, 40, 17, 60, 1, 33, 20])[:, None]
    mask = (np.arange(64) < lengths).astype(np.float32)
    network = WaveNet(config)
    batch = {"levels": tf.constant(levels), "mask": tf.constant(mask)}
    assert_cuts_change_nothing(ClipLoss(network), batch, network.trainable_variables)


@pytest.mark.slow
@pytest.mark.parametrize("option", ['"accumulate": 2', '"rematerialise": true'])
@pytest.mark.parametrize("trainer", CONFIGS)
def test_replicas_that_need_less_memory_give_the_parameters_of_one_device(folder, trainer, option):
    run = f"{option[1:4]}/{trainer}"
    make("local:2", {}, folder, f"{run}={{{option}}}")
    assert_near(newest(folder / run), *alone(folder, trainer))


def test_a_batch_that_replicas_cannot_share_is_refused(mistake, monkeypatch, tmp_path):
    replicas = types.SimpleNamespace(
        name="local", num_replicas=3, num_devices=3, is_async=False, is_chief=True
    )
    monkeypatch.setattr(strategies, "from_environment", lambda word: replicas)
    refusal = "`batch_size` must be a multiple of 3, the replicas that share a batch, got "
    for preset in ("wavenet-smoke", "pixelcnn-smoke", "multiscale-smoke"):
        words = ["train", preset, "--data", tmp_path, "--workdir", tmp_path.parent / "run"]
        assert mistake(*words, "--data.batch-size", 4).startswith(refusal + "4")
    check_rows(6, replicas)
    with pytest.raises(
        UserError, match="12, the replicas that share a batch in 4 microbatches each, got 6"
    ):
        check_rows(6, replicas, 4)


@pytest.mark.parametrize(
    "words", ["train wavenet-smoke --data data", "distill student-smoke --teacher shipped-teacher"]
)
def test_a_strategy_that_is_none_is_refused_in_a_line(mistake, words, tmp_path):
    said = mistake(*words.split(), "--workdir", tmp_path / "run", "--strategy", "nil")
    assert said.startswith("`--strategy` must be one of auto, single")
