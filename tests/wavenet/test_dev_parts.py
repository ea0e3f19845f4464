"""Dev is halved by name: one half for choices, the other for figures."""

import pytest

from wavenet.dev_parts import dev_part

ITEMS = [{"name": name} for name in ("dev/c", "dev/a", "dev/e", "dev/b", "dev/d")]


def names(part, items=ITEMS):
    return [item["name"] for item in dev_part(items, part)]


def test_the_halves_share_nothing_and_are_all_of_dev():
    choose, report = names("choose"), names("report")
    assert set(choose).isdisjoint(report)
    assert sorted(choose + report) == names("dev") == sorted(item["name"] for item in ITEMS)


def test_every_second_name_is_for_choices_in_whatever_order_they_come():
    assert names("choose") == names("choose", ITEMS[::-1]) == ["dev/b", "dev/d"]
    assert names("report") == ["dev/a", "dev/c", "dev/e"]


def test_a_single_recording_serves_for_everything():
    for part in ("choose", "report", "dev"):
        assert names(part, ITEMS[:1]) == ["dev/c"]


def test_another_part_is_refused():
    with pytest.raises(ValueError, match=r"`part` must be one of .*, got 'test'"):
        dev_part(ITEMS, "test")
