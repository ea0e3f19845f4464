"""Marks of tests that several files make."""

import shutil

import pytest

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)


def some_slow(kinds, slow) -> list:
    """The kinds as parameters of a test, which is slow for those whose parts others have, too."""
    return [
        pytest.param(*(kind if isinstance(kind, tuple) else (kind,)), marks=pytest.mark.slow)
        if kind in slow
        else kind
        for kind in kinds
    ]
