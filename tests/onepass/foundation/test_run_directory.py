"""A run directory belongs to one configuration and to one process at a time."""

import dataclasses
import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tyro
from processes import ROOT

from onepass.foundation import run_directory as module
from onepass.foundation.rules import UserError, changed_flags, defaults, differences
from onepass.foundation.run_directory import Checkpoints, RunDirectory
from onepass.replicator.training.config import OptimizerConfig
from wavenet.config import PRESETS, TrainConfig

CONFIG = {"kind": "toy", "network": {"layers": 6, "factors": (4, 4)}, "loop": {"num_steps": 10}}
PRESET = PRESETS["wavenet-vocoder-16k"].config
HOLD = """
import sys
from pathlib import Path
from onepass.foundation.run_directory import RunDirectory
run = RunDirectory.lock_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path):
    """A run directory that no process holds."""
    run = RunDirectory.create(tmp_path / "run", CONFIG)
    run.unlock()
    return run


def test_a_new_run_says_what_it_is_and_is_taken_up_again(run):
    before = (run.path / "config.json").read_bytes()
    RunDirectory.create(run.path, CONFIG).unlock()
    assert (run.path / "config.json").read_bytes() == before
    assert RunDirectory.open(run.path).config() == json.loads(json.dumps(CONFIG))


def test_another_configuration_is_refused_naming_fields_and_both_values(run):
    other = CONFIG | dict(kind="other", network={"layers": 7, "factors": (4, 4), "width": 2})
    with pytest.raises(UserError) as raised:
        RunDirectory.create(run.path, other)
    message = str(raised.value)
    assert f"{run.path} holds a run of another configuration" in message
    assert "kind is toy there, other here" in message
    assert "network.layers is 6 there, 7 here" in message
    assert "network.width is None there, 2 here" in message
    assert "factors" not in message and "loop" not in message
    assert RunDirectory.open(run.path).config()["kind"] == "toy"


def test_many_differences_are_counted_and_a_refused_run_is_not_held(run):
    other = CONFIG | {"network": {f"field_{n}": n for n in range(10)}}
    with pytest.raises(UserError, match=r"; and 8 more\. Choose another --workdir"):
        RunDirectory.create(run.path, other)
    RunDirectory.create(run.path, CONFIG).unlock()


def test_what_may_change_is_changed(run):
    RunDirectory.create(run.path, CONFIG | {"loop": {"num_steps": 99}}, ("loop",)).unlock()
    assert run.config()["loop"] == {"num_steps": 99}
    with pytest.raises(UserError, match=r"loop.num_steps is 99 there, 10 here"):
        RunDirectory.create(run.path, CONFIG)


def test_a_part_can_be_checked_before_the_whole_is_known(run):
    run.check({"network": CONFIG["network"]})
    with pytest.raises(UserError, match=r"network is .* there, 3 here"):
        run.check({"network": 3})
    RunDirectory(run.path.with_name("new")).check({"network": 3})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        ("", "cannot be read"),
        ("[1]", "must hold one JSON object, got a list"),
        ("null", "must hold one JSON object, got a null"),
    ],
)
def test_a_broken_configuration_is_named(run, text, complaint):
    (run.path / "config.json").write_text(text, encoding="latin-1")
    for attempt in (RunDirectory.open, lambda path: RunDirectory.create(path, CONFIG)):
        with pytest.raises(UserError, match=rf"run/config\.json {complaint}"):
            attempt(run.path)
    assert (run.path / "config.json").read_text(encoding="latin-1") == text


def test_what_is_no_run_directory_is_not_opened_or_taken_over(run):
    with pytest.raises(UserError, match=r"There is no run directory .*none"):
        RunDirectory.open(run.path / "none")
    (run.path / "config.json").unlink()
    with pytest.raises(UserError, match=r"is not a run directory: no config.json"):
        RunDirectory.open(run.path)
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "step_00000001.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds checkpoints but no config.json"):
        RunDirectory.create(run.path, CONFIG)


def test_a_setting_that_an_earlier_version_did_not_have_is_at_its_default(tmp_path):
    earlier = {"kind": "toy", "optimizer": {"rate": 0.1}}
    RunDirectory.create(tmp_path / "run", earlier).unlock()
    here = OptimizerConfig(cooldown_steps=1_000)
    settings = {"rate": 0.1, "cooldown_steps": 1_000}
    unsaid = {"optimizer": {"cooldown_steps": defaults(here)["cooldown_steps"]}}
    other = {"kind": "toy", "optimizer": {**settings, "cooldown_steps": 7}}
    with pytest.raises(UserError, match="cooldown_steps is 1000 there, 7 here"):
        RunDirectory.create(tmp_path / "run", other, defaults=unsaid)
    config = {"kind": "toy", "optimizer": settings}
    with pytest.raises(UserError, match="cooldown_steps is None there"):
        RunDirectory.create(tmp_path / "run", config)
    run = RunDirectory.create(tmp_path / "run", config, defaults=unsaid)
    assert run.config() == config
    run.unlock()


def test_a_file_is_no_run_directory(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file must be a folder, but it is a file"):
        RunDirectory.create(tmp_path / "file", CONFIG)
    with pytest.raises(UserError, match=r"Cannot create the folder .*file/run: Not a dir"):
        RunDirectory.create(tmp_path / "file" / "run", CONFIG)
    with pytest.raises(UserError, match=r"Cannot create the folder .*file/checkpoints: Not a dir"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, {"step": np.int32(1)})
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.integration
def test_a_second_process_is_refused_with_who_holds_the_run_until_that_one_is_killed(run):
    words, pipe = [sys.executable, "-c", HOLD, str(run.path)], subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        said = f"in use by process {holder.pid}; wait for it or choose"
        with pytest.raises(UserError, match=said):
            RunDirectory.create(run.path, CONFIG)
        assert RunDirectory.open(run.path).config()["kind"] == "toy"
        holder.kill()
    taken = RunDirectory.create(run.path, CONFIG)
    assert (run.path / "lock").read_text() == str(os.getpid())
    taken.unlock()


def test_a_run_is_held_until_it_is_unlocked(run):
    held = RunDirectory.lock_folder(run.path)
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        RunDirectory.lock_folder(run.path)
    held.unlock()
    RunDirectory.lock_folder(run.path).unlock()


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("open", OSError(errno.EROFS, "read-only"), "Cannot write in the run directory .*: read-o"),
        ("write_text", UserError("full"), "full"),
    ],
)
def test_what_cannot_be_written_is_named_and_keeps_the_configuration(
    run, monkeypatch, name, error, said
):
    def fail(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail, raising=False)
        with pytest.raises(UserError, match=said):
            RunDirectory.create(run.path, CONFIG | {"loop": {"num_steps": 99}}, ("loop",))
    assert run.config()["loop"] == {"num_steps": 10}
    RunDirectory.create(run.path, CONFIG).unlock()  # it is not held


def test_differences_are_found_at_any_depth():
    stored = {"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None}
    given = {"a": {"b": {"c": 1.5}, "d": [1, 2]}, "e": 0}
    assert differences(stored, given, "x") == [
        "x.a.b.c is 1 there, 1.5 here",
        "x.e is None there, 0 here",
    ]
    assert differences(stored, stored, "x") == []


def resumed_on(run, before, now):
    """A run of data `before`, scored 0.5 at step 2, that goes on on data `now`."""
    changeable = ("data_folder", "dev_digest")
    for data in (before, now):
        resumed = RunDirectory.create(run.path.with_name("other"), CONFIG | data, changeable)
        resumed.unlock()
        if data is before:
            resumed.checkpoints().save(2, {"step": np.int32(2)})
            resumed.checkpoints().mark_scored(2, 0.5)
    return resumed


A, B = {"data_folder": "/a"}, {"data_folder": "/b"}
X, Y = {"dev_digest": "x"}, {"dev_digest": "y"}


@pytest.mark.parametrize(("before", "now"), [(A, B), (A | X, B | Y), (A | X, A | Y)])
def test_a_run_that_goes_on_on_other_data_says_so_and_forgets_its_best_score(run, before, now):
    resumed = resumed_on(run, before, now)
    (note,) = resumed.notes
    assert note.startswith(f"{resumed.path} was trained on /a")
    assert note.endswith("0.5 at step 2, was measured on the earlier data and is dropped")
    kept = resumed.checkpoints()
    assert (kept.best_step(), kept.scored_step(), kept.steps()) == (None, None, [2])


@pytest.mark.parametrize(("before", "now"), [(A, A | X), (A | X, B | X), ({}, {})])
def test_a_run_whose_data_moved_keeps_its_best_score(run, before, now):
    resumed = resumed_on(run, before, now)
    assert resumed.notes == [] and resumed.checkpoints().best_score() == 0.5


def test_the_command_line_with_the_flags_gives_the_configuration():
    given = dataclasses.replace(
        PRESET,
        seed=3,
        start_from="my runs/first",
        data=dataclasses.replace(PRESET.data, features=("mel", "f0"), augment_speeds=(0.9, 1.1)),
        loop=dataclasses.replace(PRESET.loop, num_steps=70),
    )
    flags = changed_flags(PRESET, given)
    assert "--loop.num-steps 70" in flags and "cooldown" not in flags
    words = [word.replace("'", "") for word in flags.replace("my runs", "my_runs").split()]
    parsed = tyro.cli(TrainConfig, default=PRESET, args=words)
    assert parsed == dataclasses.replace(given, start_from="my_runs/first")
    assert changed_flags(PRESET, PRESET) == ""
