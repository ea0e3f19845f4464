"""The shipped models draw what they drew: seeds keep their bits."""

import draws
import numpy as np
import pytest
from draws import QUICK, cases, differing, stored

from onepass.foundation.model_folders import SHIPPED

CASES = [
    pytest.param(case, id=case.name, marks=[] if case.name.endswith(QUICK) else pytest.mark.slow)
    for case in cases()
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_a_seed_draws_what_it_drew(case):
    assert differing(case, case.draw(), stored()[case.key]) == ""


def test_every_shipped_model_and_every_stored_sample_has_a_case():
    keys = {case.key for case in cases()}
    assert keys == stored().keys()
    assert {key.split("/")[0] for key in keys} == set(SHIPPED)
    assert draws.VALUES.stat().st_size < 300_000


@pytest.mark.parametrize("dtype", [np.int16, np.uint8])
def test_another_sample_is_seen(dtype):
    (case, *_) = cases()
    one = np.arange(9, dtype=dtype)
    assert differing(case, one, one) == ""
    assert (differing(case, one + dtype(1), one) == "") == (dtype == np.int16)
    assert differing(case, one + dtype(3), one).startswith("9 of 9 levels, by 3")
    assert "stored" in differing(case, one[1:], one)
