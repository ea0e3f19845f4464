"""The flags of a card's command bring its preset to the configuration that was run."""

import dataclasses

import tyro

from replicator.runs.stored_config import changed_flags
from wavenet.presets import PRESETS, TrainConfig

PRESET = PRESETS["wavenet-vocoder-16k"].config


def test_a_preset_needs_no_flags():
    assert changed_flags(PRESET, PRESET) == ""


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
