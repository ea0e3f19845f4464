"""The options of `onepass sample`: one declaration each, for models here and on servers."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, get_type_hints

import pytest

import onepass
from onepass import remote_model
from onepass.command.sample import command
from onepass.command.sample.command import AS_IT_IS, AT_LEAST_0, KINDS, Reaches
from onepass.command.sample.drawing import Drawing

FOLDER = Path(command.__file__).parent
CODE = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
NEEDED = {"arrays": ["--length", "3"]}
URL = "http://127.0.0.1:1/toy"


class Recorded(Drawing):
    """A drawing of nothing, which notes what would reach the model."""

    seen: list

    def start(self):
        self.seen.append(self.arguments)
        return iter(())


@pytest.fixture(params=KINDS)
def with_toy(request, monkeypatch, tmp_path):
    """The words that sample a model of each kind, for which one more option is declared, and what
    reaches the model."""
    makes, seen = request.param, []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Toy(KINDS[makes]):
        """A request with one more option."""

        toy_frames: Annotated[int, AT_LEAST_0, AS_IT_IS] = 7
        """Frames of the toy."""

    class Model:
        name = "toy"

        def __init__(self, *words, **limits):
            self.spec = {"kind": makes.removeprefix("served ")}

        def close(self):
            pass

    drawing = type("Seen", (Recorded,), {"seen": seen})
    monkeypatch.setitem(KINDS, makes, Toy)
    monkeypatch.setattr(
        command, "_drawing", lambda *given: drawing(*given, command.arguments_of(given[0]))
    )
    monkeypatch.setattr(command, "_model_here", lambda makes, given: Model())
    monkeypatch.setattr(remote_model, "RemoteModel", Model)
    monkeypatch.setattr("onepass.models.family_of", lambda word: SimpleNamespace(makes=makes))
    place = URL if makes.startswith("served") else "here"
    return ["sample", place, "--out", str(tmp_path / "out"), *NEEDED.get(makes, ())], seen


def test_an_option_that_is_declared_reaches_the_model(with_toy, capsys):
    words, seen = with_toy
    assert onepass.main([*words, "--toy-frames", "3"]) == 0
    assert onepass.main(words) == 0
    assert seen == [{"toy_frames": 3}, {}]  # a default is the model's own
    assert onepass.main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--toy-frames INT" in out and "Frames of the toy. (default: 7)" in out


def test_an_option_is_checked_by_its_rule_before_anything_is_drawn(with_toy, mistake):
    words, seen = with_toy
    assert mistake(*words, "--toy-frames", "-1") == "`--toy-frames` must be at least 0, got -1."
    assert seen == []


@pytest.mark.parametrize("makes", KINDS)
def test_every_option_reaches_the_model_or_is_read(makes):
    kind = KINDS[makes]
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        marks = getattr(hints[field.name], "__metadata__", ())
        reaches = any(isinstance(mark, Reaches) for mark in marks)
        read = re.search(rf'given\.{field.name}\b|"{field.name}"', CODE)
        assert reaches or read, field.name


def test_an_option_of_another_kind_of_models_is_unknown(with_toy, mistake):
    words, _ = with_toy
    assert mistake(*words, "--no-such-option", "3").startswith("Unrecognized options: --no-such-op")
