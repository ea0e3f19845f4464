"""Cases that are in the slow tier because others have the same law at less cost.

A law of which all cases are here has `ALL` instead of their names, and is in the slow tier alone.
"""

import pytest

ALL = ("",)
# By file and test, the identifiers between the brackets of its name.
SLOW: dict[str, dict[str, tuple[str, ...]]] = {
    "autoregressive/test_any_length.py": {
        "test_a_model_of_one_length_is_sampled_trained_stored_and_exported": (
            "masked",
            "conditioned",
            "gpt",
            "subclassed",
        ),
        "test_a_rebuilt_network_is_the_network_and_has_a_step": (
            "gpt",
            "masked",
            "reshaped",
            "sequential",
        ),
    },
}


def listed(item: pytest.Item) -> tuple[str, str, str] | None:
    """Return the entry of SLOW for a test, as (file, test, case), or None."""
    name, _, case = item.name.partition("[")
    for file, tests in SLOW.items():
        if item.path.as_posix().endswith(f"/tests/{file}") and name in tests:
            case = case.removesuffix("]")
            return (file, name, "") if tests[name] == ALL else _entry(file, name, case)
    return None


def _entry(file: str, name: str, case: str) -> tuple[str, str, str] | None:
    return (file, name, case) if case in SLOW[file][name] else None


def unknown(found: set[tuple[str, str, str]], files: set[str]) -> list[str]:
    """Return the entries of files whose tests were all collected that are no test's name.

    Args:
      found: entries that `listed` has returned.
      files: names of files as in SLOW.
    """
    entries = {
        (file, name, case)
        for file, tests in SLOW.items()
        for name, cases in tests.items()
        for case in cases
        if file in files
    }
    return sorted("{}::{}[{}]".format(*entry) for entry in entries - found)
