"""How programs of the machine are run: the pace of threads, and kernels from a disk."""

import numpy as np
import pytest

from onepass.machine.compiler import compiled, entry
from onepass.machine.machine import Pace


def paced(pieces, seconds_of):
    """Return the ways that are chosen for pieces of which `seconds_of(piece, way)` is the time."""
    pace, ways = Pace(), []
    for piece in range(pieces):
        ways.append(pace.choose())
        pace.record(ways[-1], seconds_of(piece, ways[-1]), steps=1)
    return ways


def test_the_slower_way_of_working_is_left_and_tried_again_whatever_interrupts():
    trials, busy = 2 * Pace.RUNS, 2 * Pace.RUNS
    ways = paced(300, lambda piece, way: 2.0 if way else 1.0)
    assert not ways[0]  # with nothing known, threads apart
    assert sum(ways[:trials]) == Pace.RUNS
    assert 1 <= sum(ways[trials:]) <= 300 / Pace.LATE
    # One interruption chooses no slower way, and neither does a long piece with more to read.
    ways = paced(200, lambda piece, way: 9.0 if piece % 7 == 0 else 1.0 if way else 2.0)
    assert sum(ways[10:]) >= 186 - 5
    ways = paced(400, lambda piece, way: (1.0 if way else 1.1) * (1 if piece % 40 < 10 else 1.3))
    assert sum(ways[trials:]) >= 0.95 * (400 - trials)
    # A start next to another program is forgotten soon.
    ways = paced(300, lambda piece, way: 1.0 if not way else 9.0 if piece < busy else 0.5)
    assert not any(ways[busy : busy + 5]) and sum(ways[150:]) >= 0.85 * 150


def _doubled(number):
    return 2 * number


def test_a_disk_that_refuses_keeps_no_kernel_from_running(monkeypatch):
    def refused(*arguments):
        raise PermissionError

    made = entry(_doubled)
    for name in ("load", "save"):
        monkeypatch.setattr(made._cache._cache_file, name, refused)
    assert made(21) == 42


@compiled
def _scaled(values, factor):
    for i in range(len(values)):
        values[i] *= factor
    return values[0]


@compiled
def _scaled_twice(values, factor):
    return _scaled(values, factor) + _scaled(values, factor)


@entry
def _run(values, factor):
    return _scaled_twice(values, factor) + _scaled(values, 1)


def test_functions_that_compiled_ones_call_are_linked_for_each_type_and_refuse_other_callers():
    for kind in (np.float32, np.float64):
        values = np.arange(1, 4, dtype=kind)
        assert _run(values, 2.0) == 2 + 4 + 4
        np.testing.assert_array_equal(values, [4, 8, 12])
    with pytest.raises(TypeError, match="`_scaled` must be called by compiled functions"):
        _scaled(np.ones(1), 2.0)
