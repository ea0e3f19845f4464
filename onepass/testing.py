"""Laws that every model must obey, and `check_laws`, which puts a model through them.

A law compares public calls of a model: draws by other methods, in chunks, in other batches, after a
prefix; log-probabilities; what is saved and exported. So it holds for a network, a likelihood or a
sampler of one's own as for the models of this library.

import onepass.testing

model = onepass.Autoregressive(network, onepass.likelihoods.Categorical(256))
onepass.testing.check_laws(model, length=40)
"""

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.bundles.export import export
from onepass.compression.arrays import compress, decompress
from onepass.foundation.rules import takes
from onepass.models import load, save
from onepass.step import UnsupportedNetworkError

_OPTIONS_OF_ROWS = ("temperature", "prefix")
_FEW_LEVELS = 64  # for each of which a log-probability is computed


class Inapplicable(Exception):  # noqa: N818  (nothing is wrong)
    """A law has nothing to compare in a model, for the reason given."""


def _skip_if(lacks: Any, reason: str) -> None:
    if lacks:
        raise Inapplicable(reason)


@contextlib.contextmanager
def _may_refuse() -> Iterator[None]:
    """Raise Inapplicable where a model says in one sentence what it lacks."""
    try:
        yield
    except (ValueError, InvalidInput) as error:
        raise Inapplicable(str(error)) from error


class BrokenLawError(AssertionError):
    """A model breaks a law."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, and the draws by which it is judged.

    Args:
      model: an `Autoregressive` or any other `Model`.
      length: the `length` of `sample`; short rows suffice, such as 40 elements.
      condition: the `condition` of `sample`. An array, a list, or arrays in a dict that have an
        entry for each of `num` rows are conditions of the rows, others stand for all rows.
      num: number of rows, at least 2.
      seed: seed of the draws.
      options: other options of `sample` for all draws, by name; a list or an array of `num`
        temperatures or prefixes has one for each row.
      atol: largest difference of elements that is rounding; 0 for tokens and levels.
      tolerance: largest relative and absolute difference, in nats, of log-probabilities that is
        rounding.
      block: number of elements of a row that are drawn together; prefixes have whole blocks.
    """

    model: Any
    length: Any = None
    condition: Any = None
    num: int = 3
    seed: int = 5
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    atol: float = 0.0
    tolerance: float = 1e-4
    block: int = 1

    @functools.cached_property
    def draws(self) -> np.ndarray:
        """The rows, drawn by whole passes where the model has such a method."""
        if "naive" in self.methods:
            with contextlib.suppress(Inapplicable):  # a part of the model has none
                return self.draw(method="naive")
        return self.draw()

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that need no draft."""
        return tuple(n for n in getattr(self.model, "methods", ("auto",)) if n != "speculative")

    @property
    def is_sound(self) -> bool:
        """Return whether the model makes sounds."""
        return getattr(self.model, "makes", "") == "sound"

    @functools.cached_property
    def in_time(self) -> bool:
        """Return whether rows are sequences [num, time, ...], and no images."""
        if hasattr(self.model, "order"):
            return bool(self.model.order == "time")
        return self.is_sound or self.draws.ndim < 4

    def draw(self, rows: Sequence[int] | None = None, **changed: Any) -> Any:
        """Return what `sample` returns for the conditions and options of `rows`, by default all."""
        rows = range(self.num) if rows is None else rows
        asked = {"num": len(rows), "length": self.length, "seed": self.seed}
        with _may_refuse():
            return self.model.sample(**(asked | self.arguments(rows) | changed))

    def stream(self, chunk: int | None) -> list[Any]:
        """Return the parts of a stream of all rows."""
        asked = {"num": self.num, "length": self.length, "seed": self.seed, "chunk": chunk}
        with _may_refuse():
            return list(self.model.stream(**(asked | self.arguments(range(self.num)))))

    def arguments(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the condition and the options of some rows, as keyword arguments."""
        options = {name: self._of_rows(name, value, rows) for name, value in self.options.items()}
        return options | {"condition": self.condition_of(rows)}

    def condition_of(self, rows: Sequence[int]) -> Any:
        """Return the condition of some rows."""
        return _take(self.condition, rows) if self.has_conditions_of_rows else self.condition

    @property
    def has_conditions_of_rows(self) -> bool:
        """Return whether rows have conditions of their own."""
        one = self.condition
        leaves = one.values() if isinstance(one, Mapping) else [one]
        return all(np.ndim(leaf) > 0 and len(leaf) == self.num for leaf in leaves)

    def score(self, elements: Any, rows: Sequence[int] | None = None, **options: Any) -> Any:
        """Return the log-probabilities of the elements of some rows, by default of all."""
        rows = range(self.num) if rows is None else rows
        if "speaker" in self.options:
            options["speaker"] = self.options["speaker"]
        with _may_refuse():
            return np.asarray(self.model.log_prob(elements, self.condition_of(rows), **options))

    def need(self, option: str) -> None:
        """Raise Inapplicable if the model lacks an option, or all draws have it already."""
        _skip_if(option not in self.model.options, f"The model has no `{option}`.")
        _skip_if(option in self.options, f"All draws have their `{option}`.")

    def need_time(self) -> None:
        """Raise Inapplicable if rows are images."""
        _skip_if(not self.in_time, "The rows are images.")

    def same(self, found: Any, expected: Any) -> None:
        """Raise AssertionError unless elements are equal, up to rounding."""
        found, expected = np.asarray(found), np.asarray(expected)
        _require(found.dtype == expected.dtype, f"{found.dtype} is not {expected.dtype}")
        np.testing.assert_allclose(found, expected, rtol=0, atol=self.atol)

    def same_scores(self, found: Any, expected: Any) -> None:
        """Raise AssertionError unless log-probabilities are equal, up to rounding."""
        np.testing.assert_allclose(found, expected, rtol=self.tolerance, atol=self.tolerance)

    def _of_rows(self, name: str, value: Any, rows: Sequence[int]) -> Any:
        is_listed = isinstance(value, list | np.ndarray) and len(value) == self.num
        return _take(value, rows) if name in _OPTIONS_OF_ROWS and is_listed else value


def _take(value: Any, rows: Sequence[int]) -> Any:
    if isinstance(value, Mapping):
        return {name: _take(each, rows) for name, each in value.items()}
    return [value[row] for row in rows] if isinstance(value, list) else value[list(rows)]


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


Law = Callable[[Subject], None]
# The laws by name; the docstring of each states it.
LAWS: dict[str, Law] = {}


def _law(function: Law) -> Law:
    LAWS[function.__name__] = function
    return function


@_law
def a_seed_decides(subject: Subject) -> None:
    """The same seed draws the same rows, another seed other ones, and no two rows are alike."""
    first, again = subject.draw(), subject.draw()
    np.testing.assert_array_equal(first, again)
    heat = subject.options.get("temperature", 1.0)
    _skip_if(np.any(np.equal(heat, 0.0)), "A temperature of 0 leaves no chance.")
    other = subject.draw(seed=subject.seed + 1)
    _require((first != other).any(), "another seed draws the same rows")
    same = subject.draw([0] * subject.num)
    _require((same[0] != same[-1]).any(), "two rows are alike")


@_law
def methods_agree(subject: Subject) -> None:
    """Every method draws what whole passes draw."""
    _skip_if(len(subject.methods) < 2, "There is one method.")
    for method in subject.methods:
        try:
            found = subject.draw(method=method)
        except (UnsupportedNetworkError, Inapplicable):  # no step; not for images, or not compiled
            continue
        with _named(f"method {method}"):
            subject.same(found, subject.draws)


@_law
def a_draft_changes_nothing(subject: Subject) -> None:
    """Speculative sampling draws the same, here with the model as its own draft."""
    methods = getattr(subject.model, "methods", ())
    _skip_if("speculative" not in methods, "The model takes no draft.")
    subject.same(subject.draw(method="speculative", draft=subject.model), subject.draws)


@_law
def chunks_are_the_whole(subject: Subject) -> None:
    """The parts of a stream, of any length, join to the rows."""
    for chunk in (1, 7, 10_000) if subject.in_time else (None,):
        parts = subject.stream(chunk)
        found = np.concatenate(parts, 1 if subject.in_time else 0)
        ahead = subject.draws.shape[1] - found.shape[1]
        if "stop" in subject.options and ahead:  # a stream ends with its rows
            found = np.concatenate([found, *[found[:, -1:]] * ahead], 1)
        with _named(f"chunk={chunk}"):
            subject.same(found, subject.draws)


@_law
def a_row_depends_on_no_other_row(subject: Subject) -> None:
    """A row is the same alone and in a batch, and reads no condition or option of other rows."""
    subject.same(subject.draw([0]), subject.draws[:1])
    last = subject.num - 1
    mixed = subject.draw([0, *[0] * (last - 1), last])
    subject.same(mixed[[0, last]], subject.draws[[0, last]])


@_law
def a_shorter_draw_is_a_beginning(subject: Subject) -> None:
    """A shorter draw is the beginning of a longer one."""
    subject.need_time()
    has_condition = subject.condition is not None and not subject.is_sound
    _skip_if(has_condition, "The condition may have the length of the rows.")
    _skip_if("prefix" in subject.options, "The prefix may be longer.")
    length = subject.draws.shape[1] * 2 // 3
    subject.same(subject.draw(length=length), subject.draws[:, :length])


@_law
def a_prefix_is_continued(subject: Subject) -> None:
    """After a beginning of themselves, rows go on as if they had been drawn."""
    subject.need("prefix")
    subject.need_time()
    blocks = subject.draws.shape[1] // subject.block
    for count in (subject.block, blocks // 2 * subject.block, (blocks - 1) * subject.block):
        row = subject.draws[0, :count]
        found = subject.draw([0], prefix=row if subject.is_sound else row[np.newaxis])
        with _named(f"a prefix of {count}"):
            subject.same(found, subject.draws[:1])


@_law
def a_stop_ends_rows(subject: Subject) -> None:
    """Rows are the same up to their first `stop`, which then fills them."""
    subject.need("stop")
    subject.need_time()
    _skip_if(subject.draws.ndim != 2, "Elements are vectors.")
    _skip_if("prefix" in subject.options, "The prefix may hold it.")
    stop = subject.draws[0, subject.draws.shape[1] // 2]
    has_ended = np.maximum.accumulate(subject.draws == stop, axis=1)
    subject.same(subject.draw(stop=stop), np.where(has_ended, stop, subject.draws))


@_law
def temperature_zero_leaves_no_chance(subject: Subject) -> None:
    """At temperature 0 every seed draws the same, the most probable token for tokens."""
    subject.need("temperature")
    still = subject.draw(temperature=0.0)
    subject.same(subject.draw(temperature=0.0, seed=subject.seed + 1), still)
    if "top_k" in subject.model.options and "top_k" not in subject.options:
        with contextlib.suppress(Inapplicable):  # a distribution without a table of its levels
            subject.same(subject.draw(top_k=1, temperature=1.0), still)


@_law
def only_allowed_tokens_are_drawn(subject: Subject) -> None:
    """`allowed` tokens are drawn, and no others."""
    subject.need("allowed")
    levels = np.unique(subject.draws)
    _skip_if(len(levels) < 3, "There are too few tokens.")
    _skip_if("prefix" in subject.options, "A prefix may hold others.")
    allowed = levels[[0, -1]]
    drawn = subject.draw(allowed=allowed)
    _require(np.isin(drawn, allowed).all(), f"{np.setdiff1d(drawn, allowed)} are not allowed")


@_law
def scores_are_those_of_draws(subject: Subject) -> None:
    """The log-probabilities that come with draws are those of `log_prob`."""
    subject.need("return_log_prob")
    elements, scores = subject.draw(return_log_prob=True)
    subject.same(elements, subject.draws)
    _skip_if("stop" in subject.options, "After the end of a row they are 0.")
    expected = subject.score(elements)
    _require(scores.shape == expected.shape, f"{scores.shape} is not {expected.shape}")
    subject.same_scores(scores, expected)


@_law
def scores_are_causal(subject: Subject) -> None:
    """The log-probability of an element does not depend on later ones, but on itself."""
    scores = subject.score(subject.draws)
    _skip_if(scores.ndim < 2, "Log-probabilities are those of whole rows.")
    others = subject.draw(seed=subject.seed + 1)
    count = scores[0].size // 2
    mixed = subject.draws.reshape(subject.num, scores[0].size, -1).copy()
    mixed[:, count:] = others.reshape(mixed.shape)[:, count:]
    found = subject.score(mixed.reshape(subject.draws.shape))
    before, after = (x.reshape(subject.num, -1)[:, :count] for x in (scores, found))
    subject.same_scores(after, before)
    changed = (mixed != subject.draws.reshape(mixed.shape)).any()
    depends = not changed or (found != scores).any()
    _require(depends, "log-probabilities do not depend on elements")


@_law
def scores_of_a_row_depend_on_no_other_row(subject: Subject) -> None:
    """A row has the same log-probability alone and in a batch."""
    scores = subject.score(subject.draws)
    _require(bool((scores < np.inf).all()), "a log-probability is NaN or infinite")
    last = subject.num - 1
    subject.same_scores(subject.score(subject.draws[last:], [last]), scores[last:])


@_law
def padding_changes_no_score(subject: Subject) -> None:
    """With `lengths`, rows score as without the elements after their ends, which score 0."""
    subject.need_time()
    has_conditions = subject.condition is not None and subject.has_conditions_of_rows
    _skip_if(has_conditions, "The conditions have the length of the rows.")
    length = subject.draws.shape[1]
    lengths = [length // 3, *[length] * (subject.num - 1)]
    found = subject.score(subject.draws, lengths=lengths)
    subject.same_scores(found[0, lengths[0] :], np.zeros_like(found[0, lengths[0] :]))
    alone = subject.score(subject.draws[:1, : lengths[0]], [0])
    subject.same_scores(found[:1, : lengths[0]], alone)
    subject.same_scores(found[1:], subject.score(subject.draws)[1:])


@_law
def probabilities_sum_to_one(subject: Subject) -> None:
    """The probabilities of all values of an element, given those before it, sum to one."""
    model = subject.model
    levels = getattr(getattr(model, "distribution", None), "levels", None) or _FEW_LEVELS + 1
    _skip_if(levels > _FEW_LEVELS, "The elements are no tokens, or too many.")
    _skip_if(subject.draws.ndim != 2, "Elements are vectors.")
    values = np.asarray(model.codec.decode(np.arange(levels, dtype=np.int32)))
    place = min(3, subject.draws.shape[1] - 1)
    total = 0.0
    for value in values:
        row = subject.draws[:1].copy()
        row[0, place] = value
        total += float(np.exp(subject.score(row, [0])[0, place].astype(np.float64)))
    np.testing.assert_allclose(total, 1.0, rtol=1e-4)


@_law
def what_is_saved_is_the_model(subject: Subject) -> None:
    """The model of a saved folder draws and scores the same."""
    with tempfile.TemporaryDirectory() as root:
        with _may_refuse():
            save(subject.model, Path(root) / "saved")
        _compare(subject, load(Path(root) / "saved"))


@_law
def what_is_exported_is_the_model(subject: Subject) -> None:
    """A bundle draws and scores the same."""
    options: dict[str, Any] = {} if subject.length is None else {"length": subject.length}
    with tempfile.TemporaryDirectory() as root:
        with _may_refuse():
            bundle = export(subject.model, Path(root) / "model" / "1", **options)
        _compare(subject, load(bundle))


def _compare(subject: Subject, other: Any) -> None:
    copy = dataclasses.replace(subject, model=other)
    copy.same(copy.draw(), subject.draws)
    copy.same(copy.draw([0]), subject.draws[:1])
    try:
        expected = subject.score(subject.draws)
    except Inapplicable:  # no log-probability
        return
    copy.same_scores(copy.score(subject.draws), expected)


@_law
def compression_loses_nothing(subject: Subject) -> None:
    """Elements come back from a compressed file bit for bit."""
    _skip_if(subject.condition is not None, "The condition would have to be in the file.")
    with _may_refuse():
        data = compress(subject.model, subject.draws)
    np.testing.assert_array_equal(decompress(subject.model, data), subject.draws)


@contextlib.contextmanager
def _named(words: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{words}: {error}") from error


def check_law(name: str, subject: Subject) -> str:
    """Put a model through one law, and return why it does not apply, or "" if it holds."""
    try:
        LAWS[name](subject)
    except Inapplicable as reason:
        return str(reason)
    except (AssertionError, ValueError) as error:  # such as parts that do not fit together
        statement = (LAWS[name].__doc__ or name).strip()
        raise BrokenLawError(f"{name} does not hold. {statement} {error}") from error
    return ""


@takes(Subject)
def check_laws(model: Any, *, laws: Iterable[str] | None = None, **options: Any) -> dict[str, str]:
    """Put a model through the laws, and return by name of a law why it does not apply, or "".

    Args:
      laws: names of the laws, of `LAWS`; None: all.
      **options: options of `Subject`.

    Raises:
      BrokenLawError: the model breaks a law; the message says which, and by which numbers.
    """
    subject = Subject(model, **options)
    return {name: check_law(name, subject) for name in (LAWS if laws is None else laws)}
