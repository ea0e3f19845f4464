"""Rules of settings: the ranges of numbers, choices, and that every class asks for its own."""

import dataclasses
import importlib
import math
from typing import Literal, get_args, get_origin

import pytest

from onepass.foundation.rules import Checked, Count, Positive, Range, Share, UserError
from wavenet.config import MelConvention

MODULES = (  # with classes of settings
    *("distill.config", "distill.images.config", "distill.losses.perceptual"),
    *("onepass.command.arguments", "onepass.replicator.training.config", "pixelcnn.config"),
    *("serving.client.calls", "serving.settings", "wavenet.config", "wavenet.data.recordings"),
    "wavenet.front",
)
NEEDED = {"num_samples": 1, "retries": 1, "convention": MelConvention()}  # fields without default


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        (Range(1), (1, 1.5, math.inf), (0, 0.999, -math.inf, math.nan)),
        (Range(0, is_above=True), (1e-300, 1e300), (0, -0.0, math.inf, math.nan)),
        (Range(0, 1), (0, 0.5, math.nextafter(1, 0)), (1, -1e-9, math.inf, math.nan)),
    ],
    ids=str,
)
def test_a_range_holds_at_its_ends(rule, inside, outside):
    assert all(map(rule.holds, inside)) and not any(map(rule.holds, outside))


def broken():
    """Yields every class with each field that has a rule, a value that breaks it, and its words."""
    found = (vars(importlib.import_module(name)).values() for name in MODULES)
    kinds = [x for each in found for x in each if isinstance(x, type) and issubclass(x, Checked)]
    for kind in dict.fromkeys(kinds):
        for field in dataclasses.fields(kind) if kind is not Checked else ():
            place = f"{kind.__module__}.{kind.__name__}.{field.name}"
            if get_origin(field.type) is Literal:
                yield pytest.param(
                    kind, field.name, "other", str(get_args(field.type)[-1]), id=place
                )
            for rule in getattr(field.type, "__metadata__", ()):
                if isinstance(rule, Range):
                    yield pytest.param(kind, field.name, math.nan, str(rule), id=place)


@pytest.mark.parametrize(("kind", "name", "value", "words"), [*broken()])
def test_every_class_of_settings_asks_for_its_rules(kind, name, value, words):
    missing = dataclasses.MISSING
    needed = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is missing]
    given = {each: NEEDED.get(each) for each in needed} | {name: value}
    with pytest.raises(UserError, match=f"^`{name}` must be ") as error:
        kind(**given)
    assert words in str(error.value)


def test_rules_of_one_class_do_not_reach_another():
    @dataclasses.dataclass(frozen=True)
    class Settings(Checked):
        count: Count = 1
        scale: Positive = 1.0
        share: Share = 0.0
        name: Literal["a", "b", "c"] = "a"
        free: float = math.nan

    assert Settings(2, 0.5, 0.9, "c", -1.0).count == 2
    for changed, message in (
        ({"count": 0}, "`count` must be at least 1, got 0."),
        ({"scale": 0}, "`scale` must be above 0 and finite, got 0."),
        ({"share": 1.0}, "`share` must be in [0, 1), got 1.0."),
        ({"name": "d"}, "`name` must be one of a, b, c, got d."),
    ):
        with pytest.raises(UserError) as error:
            dataclasses.replace(Settings(), **changed)
        assert str(error.value) == message
