"""Tokens whose logits are minus infinity: they are never drawn and have no probability."""

import numpy as np
from laws.own_networks import FORBIDDEN
from laws.table import subject_of


def test_a_forbidden_token_is_never_drawn_and_has_no_probability():
    for name in ("forbidden", "forbidden, top-k"):
        subject = subject_of(name)
        elements, scores = subject.draw(return_log_prob=True)
        assert not np.isin(elements, FORBIDDEN).any()
        assert np.isfinite(scores).all()
        other = elements.copy()
        other[:, 4] = FORBIDDEN[-1]
        assert np.isneginf(subject.score(other)[:, 4]).all()


def test_tokens_may_be_allowed_besides_forbidden_ones():
    drawn = subject_of("forbidden").draw(allowed={1, 3, 5})
    assert set(np.unique(drawn)) == {1, 5}
