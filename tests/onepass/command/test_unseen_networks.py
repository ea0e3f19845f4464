"""The quickstart draws with networks that the library has never seen, and says what that saves."""

import importlib.util
import subprocess
import types

import numpy as np
import pytest

from onepass.command import unseen_networks
from onepass.command.unseen_networks import StepFigures, measure_keras, measure_torch, report_steps

has_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.fixture
def clock(monkeypatch):
    """A clock that only this test moves: `clock.now`, in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    stand_in = types.SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(unseen_networks, "time", stand_in)
    return clock


def answered(monkeypatch, **done):
    """Let the process of PyTorch end as said, and return the commands that started one."""
    commands = []

    def run(command, **options):
        commands.append(command)
        if "error" in done:
            raise done["error"]
        return types.SimpleNamespace(stdout="", stderr=done["stderr"], returncode=1)

    monkeypatch.setattr(unseen_networks, "is_installed", lambda package: package == "torch")
    monkeypatch.setattr(unseen_networks.subprocess, "run", run)
    return commands


def test_the_seconds_of_a_step_hold_all_but_the_drawing_and_those_of_the_network_no_compiling(
    monkeypatch, clock
):
    class Model:
        def __init__(self, network, distribution):
            clock.now += 5.0  # derives the step
            self._compiled = {"auto": 3.0, "naive": 7.0}

        def sample(self, num, length, *, seed, temperature, method):
            clock.now += self._compiled.pop(method, 0.0)
            clock.now += {"auto": 0.5, "naive": 20.0}[method]
            return np.zeros([num, length], np.int32)

    monkeypatch.setattr(unseen_networks, "keras_gpt", lambda: None)
    monkeypatch.setattr(unseen_networks, "Autoregressive", Model)
    assert measure_keras() == StepFigures("Keras", 8.0, 0.5, 20.0, unseen_networks.TOKENS)


def test_a_gpt_of_keras_draws_by_its_step_what_the_whole_network_draws_and_not_one_token_alone(
    monkeypatch,
):
    monkeypatch.setattr(unseen_networks, "TOKENS", 12)
    drawn = []
    count = unseen_networks._count_equal
    monkeypatch.setattr(
        unseen_networks, "_count_equal", lambda *tokens: drawn.extend(tokens) or count(*tokens)
    )
    assert measure_keras().equal == 12
    assert len(set(drawn[0].tolist())) > 3 and drawn[0].shape == drawn[1].shape == (12,)


def test_the_report_says_the_seconds_the_ratio_and_the_equal_tokens():
    found = [StepFigures("Keras", 3.21, 0.5, 20.0, 256), "There is no network of PyTorch."]
    report = report_steps(found)
    assert "| Keras | 3.2 s | 40.0 times | 256 of 256 |" in report
    assert report.endswith("There is no network of PyTorch.")
    assert [line.count("|") for line in report.splitlines() if line[:1] == "|"] == [5, 5, 5]


@pytest.mark.parametrize(
    ("done", "said"),
    [
        ({"stderr": "a\nImportError: libc is too old\n"}, ": ImportError: libc is too old"),
        ({"stderr": ""}, ": no message"),
        (
            {"error": subprocess.TimeoutExpired("torch", 300)},
            "PyTorch did not answer within 300 s.",
        ),
    ],
)
def test_a_broken_torch_or_none_does_not_end_the_quickstart(monkeypatch, done, said):
    commands = answered(monkeypatch, **done)
    assert measure_torch().endswith(said)
    assert commands[0][1:3] == ["-m", "onepass.command.torch_gpt"]
    monkeypatch.setattr(unseen_networks, "is_installed", lambda package: False)
    assert "onepass[torch]" in measure_torch() and len(commands) == 1


@has_torch
@pytest.mark.integration
def test_a_gpt_of_pytorch_draws_by_its_step_what_pytorch_draws(monkeypatch):
    monkeypatch.setattr(unseen_networks, "TOKENS", 12)
    drawn = []
    count = unseen_networks._count_equal
    monkeypatch.setattr(
        unseen_networks, "_count_equal", lambda *tokens: drawn.extend(tokens) or count(*tokens)
    )
    found = measure_torch()
    assert (found.name, found.equal) == ("PyTorch", 12) and len(set(drawn[1].tolist())) > 3
