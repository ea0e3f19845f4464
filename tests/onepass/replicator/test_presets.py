"""Presets are read from TOML: a preset is its own settings over those of the one it is like."""

import dataclasses
from typing import ClassVar

import pytest

from onepass.replicator.training.config import LoopConfig, read_presets


@dataclasses.dataclass(frozen=True)
class Wide:
    kind: ClassVar[str] = "wide"
    loop: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    taps: tuple[int, ...] = (1,)


@dataclasses.dataclass(frozen=True)
class Narrow(Wide):
    kind: ClassVar[str] = "narrow"


FILE = """
[first]
about = "One"
kind = "narrow"
taps = [2, 3]
loop.num_steps = 7
loop.patience = 1

[second]
about = "Two"
like = "first"
loop.num_steps = 8

[third]
about = "Three"
like = "second"
kind = "wide"
taps = []
"""


def test_a_preset_has_its_own_settings_over_those_of_the_one_that_it_is_like(tmp_path):
    file = tmp_path / "presets.toml"
    file.write_text(FILE)
    presets = read_presets(file, Wide, Narrow)
    assert [presets[name].about for name in ("first", "second", "third")] == ["One", "Two", "Three"]
    assert presets["first"].config == Narrow(LoopConfig(7, patience=1), (2, 3))
    assert presets["second"].config == Narrow(LoopConfig(8, patience=1), (2, 3))
    assert presets["third"].config == Wide(LoopConfig(8, patience=1), ())


@pytest.mark.parametrize("line", ["loop.num_step = 3", "tap = [1]", "loop.num_steps = 0"])
def test_a_setting_that_does_not_exist_or_fit_is_refused(line, tmp_path):
    file = tmp_path / "presets.toml"
    file.write_text(FILE + line)
    with pytest.raises((TypeError, ValueError)):
        read_presets(file, Wide, Narrow)
