"""Every model obeys every law: a table of models (`table.MODELS`) by laws (`onepass.testing`)."""

import dataclasses

import numpy as np
import pytest
from laws.table import MODELS, subject_of

import onepass
from onepass import testing
from onepass.interface import Model
from onepass.testing import LAWS, BrokenLawError, Subject, check_law, check_laws

# A model of every kind; the others, of the same kinds, are in the slow tier.
QUICK = (
    *("start", "mixture", "conditions", "integers of channels", "codes", "reals", "images"),
    *("frames", "rates"),
    *("flow", "sound: residual", "sound: softmax, frames", "sound: vocoder"),
    *("images: pixelcnn", "images: multiscale"),
)
# Laws that compile a model anew, whose quick models are fewer: test_own_agreement.py has bundles of
# models that draw elements one after another.
OF_SEVERAL = {
    "what_is_exported_is_the_model": ("flow",),
    "what_is_saved_is_the_model": ("start", "codes", "conditions", "frames", "flow"),
    "methods_agree": (
        *("start", "codes", "conditions", "frames", "rates", "sound: softmax, frames"),
        *("images: pixelcnn", "images: multiscale"),
    ),
}


def tier_of(name, law):
    return () if name in OF_SEVERAL.get(law, QUICK) else pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "law"),
    [
        pytest.param(name, law, marks=tier_of(name, law))
        for name, row in MODELS.items()
        for law in LAWS
        if law not in row.lacks
    ],
)
def test_a_model_obeys_a_law(name, law):
    assert check_law(law, subject_of(name)) == ""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=tier_of(name, "")) for name in MODELS if MODELS[name].lacks]
)
def test_what_a_model_lacks_is_in_the_table(name):
    for law in MODELS[name].lacks:
        assert check_law(law, subject_of(name)), f"{law} applies to {name}"


class Faulty(Model):
    """A model of tokens that draws with a fault."""

    methods = ("auto", "naive", "cached", "speculative")
    options = frozenset(
        {"method", "draft", "temperature", "prefix", "stop", "allowed", "top_k", "return_log_prob"}
    )

    def __init__(self, fault):
        self.fault = fault

    def _sample(self, draw):
        seed = 0 if self.fault == "seed" else draw.seed
        if self.fault == "temperature":
            seed += 1
        elif draw.temperature == 0 or draw.top_k == 1:
            seed = -1 if not (self.fault == "top_k" and draw.top_k == 1) else 3
        rows = np.stack([self._row(seed, row, draw.length, draw) for row in range(draw.num)])
        return (
            (rows, self.log_prob(rows) - 1.0 * (self.fault == "score"))
            if draw.return_log_prob
            else rows
        )

    def _row(self, seed, row, length, draw):
        words = [max(seed, 0), 0 if seed < 0 or self.fault == "rows" else row]
        if self.fault == "batch":
            words.append(draw.num)
        if self.fault == "length":
            words.append(length)
        tokens = np.random.default_rng(words).integers(0, 5, length)
        if self.fault == "method" and draw.method == "cached":
            tokens[-1] = 4 - tokens[-1]
        if self.fault == "draft" and draw.draft is not None:
            tokens[0] = 4 - tokens[0]
        if draw.prefix is not None:
            tokens[: draw.prefix.shape[1]] = draw.prefix[row]
            if self.fault == "prefix":
                tokens[-1] = 4 - tokens[-1]
        if draw.allowed is not None and self.fault != "allowed":
            tokens = np.asarray(draw.allowed)[tokens % len(draw.allowed)]
        if draw.stop is not None and (tokens == draw.stop).any() and self.fault != "stop":
            tokens[np.argmax(tokens == draw.stop) :] = draw.stop
        return tokens

    def _stream(self, draw, chunk):
        rows = self._sample(draw)
        if self.fault == "chunks" and chunk == 7:
            rows[:, 7] = 4 - rows[:, 7]
        parts = [rows[:, i : i + chunk] for i in range(0, rows.shape[1], chunk)]
        return iter([parts[0][0], *parts[1:]] if self.fault == "parts" else parts)

    def log_prob(self, elements, condition=None, *, lengths=None, speaker=None):
        scores = -0.1 - 0.1 * np.cumsum(elements, 1)
        if self.fault == "causal":
            scores = scores[:, -1:] + 0 * scores
        if self.fault == "mean":
            scores = scores + elements.mean()
        if lengths is not None and self.fault != "padding":
            scores = np.where(
                np.arange(elements.shape[1]) < np.asarray(lengths)[:, None], scores, 0.0
            )
        return scores


FAULTS = {
    "seed": "a_seed_decides",
    "rows": "a_seed_decides",
    "method": "methods_agree",
    "draft": "a_draft_changes_nothing",
    "chunks": "chunks_are_the_whole",
    "parts": "chunks_are_the_whole",
    "batch": "a_row_depends_on_no_other_row",
    "length": "a_shorter_draw_is_a_beginning",
    "prefix": "a_prefix_is_continued",
    "stop": "a_stop_ends_rows",
    "temperature": "temperature_zero_leaves_no_chance",
    "top_k": "temperature_zero_leaves_no_chance",
    "allowed": "only_allowed_tokens_are_drawn",
    "score": "scores_are_those_of_draws",
    "causal": "scores_are_causal",
    "mean": "scores_of_a_row_depend_on_no_other_row",
    "padding": "padding_changes_no_score",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_law_and_none_without_it(fault):
    law = FAULTS[fault]
    assert check_law(law, Subject(Faulty(""), 30)) == ""
    with pytest.raises(BrokenLawError, match=law):
        check_law(law, Subject(Faulty(fault), 30))


def test_probabilities_that_do_not_sum_to_one_are_seen():
    class Doubled(onepass.Autoregressive):
        def log_prob(self, *arguments, **options):
            return super().log_prob(*arguments, **options) + np.log(2.0)

    model = subject_of("start").model
    doubled = Doubled(model.network, model.distribution, start=6)
    with pytest.raises(BrokenLawError, match=r"ACTUAL: array.2"):
        check_law("probabilities_sum_to_one", Subject(doubled, 8))


def test_another_model_in_place_of_the_saved_or_exported_one_is_seen(monkeypatch):
    other = dataclasses.replace(subject_of("start"), seed=6)
    monkeypatch.setattr(testing, "save", lambda model, path: path)
    monkeypatch.setattr(testing, "export", lambda model, path, **options: path)
    monkeypatch.setattr(testing, "load", lambda path: Faulty(""))
    for law in ("what_is_saved_is_the_model", "what_is_exported_is_the_model"):
        with pytest.raises(BrokenLawError, match=law):
            check_law(law, other)


def test_what_is_checked_and_what_is_not_is_said():
    found = check_laws(Faulty(""), length=20, laws=["a_seed_decides", "probabilities_sum_to_one"])
    assert found == {
        "a_seed_decides": "",
        "probabilities_sum_to_one": "The elements are no tokens, or too many.",
    }
