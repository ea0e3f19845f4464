"""`onepass.foundation.rules`: the options of a function that are a dataclass's fields."""

import dataclasses
import inspect

import pytest

import onepass
from onepass.foundation.rules import takes
from onepass.interface import Draw


@dataclasses.dataclass(frozen=True)
class Heat:
    """Settings.

    Args:
      temperature: at least 0;
        1 samples.
      rows: none.

    Raises:
      ValueError: never.
    """

    temperature: float = 1.0
    rows: list = dataclasses.field(default_factory=list)


@takes(Heat)
def drawn(num, *, seed=0, **options):
    """Draw.

    Args:
      num: how many.
      **options: `temperature` and
        `rows`.

    Returns:
      All.
    """
    return num, seed, Heat(**options)


def test_options_reach_the_function_and_its_signature_has_their_defaults():
    assert drawn(2, temperature=0.5) == (2, 0, Heat(0.5))
    assert str(inspect.signature(drawn)).startswith(
        "(num, *, seed=0, temperature: float = 1.0, rows"
    )
    assert drawn.__name__ == "drawn"
    arguments = "  num: how many.\n  temperature: at least 0;\n    1 samples.\n  rows: none."
    assert drawn.__doc__ == f"Draw.\n\nArgs:\n{arguments}\n\nReturns:\n  All."


def test_an_unknown_option_is_refused_with_the_one_that_was_meant():
    with pytest.raises(TypeError, match=r"drawn\(\) has no argument 'temprature'\. Did you mean"):
        drawn(2, temprature=0.5)
    with pytest.raises(TypeError, match=r"drawn\(\) has no argument 'q'\.$"):
        drawn(2, q=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'num'"):
        drawn(seed=1)


@pytest.mark.parametrize("method", [onepass.Autoregressive.sample, onepass.Autoregressive.stream])
def test_users_see_every_option_of_a_draw(method):
    known = inspect.signature(method).parameters
    assert {field.name for field in dataclasses.fields(Draw)} < known.keys()
    assert "batch_size" in inspect.signature(onepass.fit).parameters
    assert "top_k: number of most probable tokens" in method.__doc__
