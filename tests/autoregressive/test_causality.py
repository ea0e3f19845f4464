"""`check_causal` says whether a network looks ahead, and where."""

import re

import causal_networks
import pytest

from autoregressive.causality import check_causal, observed_lookahead


def test_a_causal_network_has_nothing_to_report():
    found = check_causal(causal_networks.dilated_functional())
    assert found and found.has_step and found.message == ""


def test_the_layer_that_looks_ahead_is_named():
    found = check_causal(causal_networks.future())
    assert not found and not found.has_step
    assert re.search(causal_networks.REFUSED[causal_networks.future], found.message)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (causal_networks.future, "output t depends on input t [+] 1"),
        (causal_networks.dilated_future, "output t depends on input t [+] 2"),
        (causal_networks.noisy, "random numbers of its own"),
        (causal_networks.length_scaled, "change with the length"),
        (causal_networks.unrolled, "^$"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_outputs_show_it_without_the_graph(make, text):
    assert re.search(text, observed_lookahead(make()))


def test_attention_with_shifted_scores_is_causal_and_has_no_step():
    found = check_causal(causal_networks.attention())
    assert found.is_causal and not found.has_step
    assert "attend" in found.message


@pytest.mark.parametrize(
    ("make", "is_causal"),
    [
        (causal_networks.unrolled, True),
        (causal_networks.first_repeated, True),
        (causal_networks.last_subtracted, False),
        (causal_networks.repeated, False),
        (causal_networks.reversed_time, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_graph_does_not_settle_the_outputs_do(make, is_causal):
    found = check_causal(make())
    assert found.is_causal == is_causal and not found.has_step and found.message
