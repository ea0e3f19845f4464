"""Rules that values must keep, and the error that says in one line which one is broken.

Values are the arguments of a call, the fields of a dataclass of settings, and such settings as
JSON, keyword options and flags. NumPy is imported when a rule needs it, TensorFlow never.
"""

import contextlib
import dataclasses
import difflib
import errno
import functools
import inspect
import json
import math
import operator
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import DataclassInstance

USAGE, FAILURE = 2, 1  # exit statuses: a user's mistake, and every other error
# Operating system errors that the user cannot avoid with a different path or option.
_FAILURES = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM),
    *(errno.EMFILE, errno.ENFILE, errno.EPIPE),
}


class UserError(ValueError):
    """A user's mistake, with a one-line message."""

    exit_status = USAGE


def must_be(name: str, rule: str, value: object) -> str:
    """Return the message for what breaks a rule: "`width` must be at least 2, got 1."."""
    return f"`{name}` must be {rule}, got {value}."


def require(holds: object, name: str, rule: str, value: object) -> None:
    """Raise UserError with the message of `must_be` unless the rule holds."""
    if not holds:
        raise UserError(must_be(name, rule, value))


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field may hold: at least `low` and below `high`; or above it, finite."""

    low: float
    high: float = math.inf
    is_above: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a number is in the range; NaN is in none."""
        if self.is_above:
            return self.low < value < math.inf
        return value >= self.low and (value < self.high or self.high == math.inf)

    def __str__(self) -> str:
        if self.is_above:
            return f"above {self.low} and finite"
        return f"at least {self.low}" if self.high == math.inf else f"in [{self.low}, {self.high})"


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, is_above=True)]
Share = Annotated[float, Range(0, 1)]


class Checked:
    """The base of dataclasses of settings whose annotations are rules: a `Range` or a Literal.

    A class with rules of its own besides begins `__post_init__` with that of this class.
    """

    def __post_init__(self) -> None:
        """Raise a UserError that names the field if a value breaks its rule."""
        settings: Any = type(self)
        for name, choices, rule in _rules_of(settings):
            value = getattr(self, name)
            if not (value in choices if choices else rule.holds(value)):
                raise UserError(must_be(name, str(rule), value))


@functools.cache
def _rules_of(settings: type) -> list[tuple[str, tuple[Any, ...], Any]]:
    """Return the name, choices and rule of each field that has a rule."""
    found: list[tuple[str, tuple[Any, ...], Any]] = []
    for field in dataclasses.fields(settings):
        if get_origin(field.type) is Literal:
            choices = get_args(field.type)
            words = ", ".join(map(str, choices))
            rule = " or ".join(map(str, choices)) if len(choices) < 3 else f"one of {words}"
            found.append((field.name, choices, rule))
        ranges = [x for x in getattr(field.type, "__metadata__", ()) if isinstance(x, Range)]
        found += [(field.name, (), each) for each in ranges]
    return found


def exit_status(error: BaseException) -> int:
    """Return 2 for a user's mistake, 1 for a failure, such as a UserError from a full disk."""
    if not isinstance(error, UserError):
        return FAILURE
    cause: BaseException | None = error
    while cause is not None:
        failed = isinstance(cause, OSError) and cause.errno in _FAILURES
        if failed or getattr(cause, "exit_status", USAGE) == FAILURE:
            return FAILURE
        cause = cause.__cause__
    return USAGE


@contextlib.contextmanager
def in_one_line(program: str) -> Iterator[None]:
    """Print a UserError raised inside the block in one line on stderr and exit with its status."""
    try:
        yield
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(exit_status(error))


def first_line(text: str) -> str:
    """Return the first line of a TensorFlow error message, at most 200 characters."""
    return " ".join(text.split(".\n")[0].split("\n")[0].split())[:200]


MOST = 2**31 - 1  # the largest size of a tensor's axis, and the largest step


def integer(value: Any) -> int | None:
    """Return an integer of any library as a Python integer; None for anything else.

    An integer is what Python uses as an index (`operator.index`), such as an array of integers
    without axes, but no boolean.
    """
    import numpy as np

    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_number(value: Any, name: str, least: int = 1, most: int | None = MOST) -> int:
    """Check an argument by the rule of `integer`, and return it as a Python integer."""
    number = integer(value)
    if number is None or number < least:
        raise UserError(must_be(name, f"an integer of at least {least}", repr(value)))
    if most is not None and number > most:
        raise UserError(must_be(name, f"an integer from {least} to {most}", repr(value)))
    return number


def check_seed(seed: Any) -> int:
    """Check a seed, an integer in [0, 2^64), and return it as a Python integer."""
    number = integer(seed)
    if number is None or not 0 <= number < 2**64:
        raise UserError(must_be("seed", "an integer in [0, 2^64)", repr(seed)))
    return number


def real_number(
    value: Any, name: str, low: float = -math.inf, high: float = math.inf, is_above: bool = False
) -> float:
    """Return a finite number in [low, high], or above `low` if `is_above`, as a Python float."""
    import numpy as np

    try:
        is_other = isinstance(value, str | bool) or np.ndim(value) > 0
        number = math.nan if is_other else float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_low = number <= low if is_above else number < low
    if is_low or number > high or not math.isfinite(number):
        raise UserError(must_be(name, _range(low, high, is_above), repr(value)))
    return number


def _range(low: float, high: float, is_above: bool) -> str:
    if math.isfinite(high):
        return f"a number in {'(' if is_above else '['}{low:g}, {high:g}]"
    if math.isinf(low):
        return "a finite number"
    return f"a finite number{f' above {low:g}' if is_above else f' of at least {low:g}'}"


def check_temperature(temperature: Any, tempers: bool = True) -> float:
    """Return a temperature, at least 0, or 1 unless the distribution `tempers`, as a float."""
    number = real_number(temperature, "temperature", 0.0)
    require(number == 1.0 or tempers, "temperature", "1 without a quantile", temperature)
    return number


MAX_LEVELS = 2**22  # above this, the values of some adjacent levels are equal in float32
MAX_COMPANDED_LEVELS = 2**16  # above this, the values of some companded levels are equal in float32
# With more tokens of equal probability, a uniform float32 number cannot choose every one.
MAX_TOKENS = 2**20


def check_levels(num_levels: int, most: int = MAX_LEVELS) -> None:
    """Raise ValueError unless there are between 2 and `most` levels."""
    if not 2 <= num_levels <= most:
        raise ValueError(must_be("levels", f"between 2 and {most}", num_levels))


def check_components(components: int) -> None:
    """Raise ValueError unless a mixture has at least one component."""
    if components < 1:
        raise ValueError(must_be("components", "at least 1", components))


def number_of(word: str) -> int | float | None:
    """Convert a word to an integer or, if that is not possible, to a float; None: it is neither."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return None


def number_in(word: str, option: str, others: str = "") -> int | float:
    """Convert a word of a command's option to a number; the error says `others` as well."""
    number = number_of(word)
    if number is None:
        raise UserError(f"{option} must be numbers{others}, got {word}.")
    return number


def check_flag(value: Any, name: str) -> bool:
    """Check a switch, True or False, and return it as a Python boolean."""
    import numpy as np

    require(isinstance(value, bool | np.bool_), name, "True or False", repr(value))
    return bool(value)


def check_unmasked(values: Any, name: str) -> None:
    """Raise UserError for a masked array with a mask, or a list of them: no mask is read."""
    import numpy as np

    parts = values if isinstance(values, list | tuple) else (values,)
    if any(np.ma.is_masked(part) for part in parts):
        raise UserError(
            f"`{name}` must have no masked values, which would be read as if they were data; pass"
            " rows of different lengths as a list, or `lengths`, or fill the values."
        )


def check_draw_length(length: Any, order: str) -> tuple[int, ...]:
    """Check a length, an integer in time, three in raster order, and return it as a tuple."""
    import numpy as np

    axes = 1 if order == "time" else 3
    given = [length]
    is_shape = isinstance(length, Sequence | np.ndarray) and not isinstance(length, str | bytes)
    if is_shape and axes > 1:
        given = list(length) if np.ndim(length) == 1 else []
    sizes = [integer(size) for size in given]
    found = tuple(size for size in sizes if size is not None and 1 <= size <= MOST)
    if len(sizes) != axes or len(found) != axes:
        meaning = "a number of elements, an integer" if axes == 1 else "(height, width, channels)"
        is_large = any(size is not None and size > MOST for size in sizes)
        rule = f"from 1 to {MOST}" if is_large else "of at least 1"
        raise UserError(must_be("length", f"{meaning} {rule}", repr(length)))
    return found


def check_prefix(
    prefix: Any, num: int, length: int, event: Sequence[int] = ()
) -> "list[np.ndarray]":
    """Check a prefix and return it as a list with an array [n, *event], n <= length, for each row.

    It is [num, n, *event], [n, *event] for all rows, or `num` arrays [n, *event].
    """
    rows = _prefix_rows(prefix, num, event)
    if len(rows) != num:
        raise UserError(f"`prefix` must have {num} rows, one per sequence, got {len(rows)}.")
    longest = max(map(len, rows))
    if longest > length:
        raise UserError(
            f"`prefix` must be at most as long as `length`, {length}, which counts the whole, got"
            f" {longest}."
        )
    return rows


def _prefix_rows(prefix: Any, num: int, event: Sequence[int]) -> "list[np.ndarray]":
    import numpy as np

    check_unmasked(prefix, "prefix")
    given, axes = prefix.to_list() if hasattr(prefix, "to_list") else prefix, 1 + len(event)
    try:
        is_list = isinstance(given, Sequence) and len(given) > 0 and np.ndim(given[0]) == axes
        rows = [np.asarray(row) for row in (given if is_list else [given])]
    except ValueError:  # ragged within a row
        is_list, rows = False, [np.asarray(None)]
    if any(row.dtype == object for row in rows):
        raise UserError("`prefix` must be an array of numbers, or a list of rows of numbers.")
    shapes = [list(row.shape) for row in rows]
    wrong = [x for x in shapes if len(x) not in ((axes,) if is_list else (axes, axes + 1))]
    if wrong:
        more = "".join(f", {size}" for size in event)
        raise UserError(f"`prefix` must be [num, n{more}] or [n{more}], got {wrong[0]}.")
    if is_list:
        return rows
    return rows * num if rows[0].ndim == axes else list(rows[0])


def check_element_values(value: Any, name: str, most: int | None = None) -> "np.ndarray":
    """Check one number, or up to `most`; return the different ones as an array [n], in order."""
    import numpy as np

    check_unmasked(value, name)
    try:
        elements = np.asarray(list(value) if isinstance(value, set | frozenset) else value)
    except ValueError:  # ragged
        elements = np.asarray(None)
    rule = "one element, a number" if most == 1 else "a number or a list of numbers"
    if elements.dtype.kind not in "iuf" and elements.size:
        raise UserError(must_be(name, rule, repr(value)))
    if elements.ndim > (0 if most == 1 else 1) or not elements.size:
        got = f"shape {list(elements.shape)}"
        raise UserError(must_be(name, rule.partition(",")[0], got))
    return np.unique(elements)


def choices(names: Callable[[], Iterable[str]]) -> Any:
    """Return what `Annotated[str, ...]` needs for one of `names()`, read at every command line."""
    import tyro  # not for every command

    def kind() -> Any:
        return Literal[tuple(names())]

    return tyro.conf.arg(
        constructor_factory=kind,
        help_behavior_hint=lambda default: "(default: " + default.strip("[']") + ")",
    )


Config = TypeVar("Config")
Section = TypeVar("Section", bound="DataclassInstance")


def differences(stored: Any, given: Any, path: str) -> list[str]:
    """Return a phrase for each leaf at which two nested JSON values differ."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return [
            phrase
            for key in sorted(stored.keys() | given.keys())
            for phrase in differences(stored.get(key), given.get(key), f"{path}.{key}")
        ]
    return [] if stored == given else [f"{path} is {stored} there, {given} here"]


def to_json(config: Any) -> dict[str, Any]:
    """Return a dataclass as nested JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def defaults(config: Any) -> dict[str, Any]:
    """Return the default of every setting that has one, nested like the result of `to_json`."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = defaults(value)
        elif field.default is not dataclasses.MISSING:
            found[field.name] = json.loads(json.dumps(field.default, default=str))
    return found


def complete_settings(stored: Any, defaults: Any) -> Any:
    """Return stored settings, with defaults for those that are missing."""
    if not (isinstance(stored, dict) and isinstance(defaults, dict)):
        return stored
    return defaults | {
        key: complete_settings(value, defaults.get(key)) for key, value in stored.items()
    }


def stored_config(kind: type[Section], stored: dict[str, Any]) -> Section:
    """Create a dataclass `kind`, with nested dataclasses, from the contents of a config.json.

    Missing top-level settings get their defaults, unless a factory makes those.
    """
    fields = dataclasses.fields(kind)
    try:
        known = [f.name for f in fields if f.name in stored or f.default is dataclasses.MISSING]
        return dataclass_from(kind, {name: stored[name] for name in known})
    except KeyError as error:
        raise UserError(f"The stored configuration has no {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The stored configuration does not fit this version: {error}") from error


def check_config(
    stored: Any, path: Path, kinds: Sequence[str], needed: set[str], read: Callable[[dict], Config]
) -> Config:
    """Check the config.json of a run or model, and return the result of `read` for it."""
    if not isinstance(stored, dict):
        raise UserError(f"The configuration in {path} must be a JSON object.")
    if stored.get("kind") not in kinds:
        raise UserError(f"{path} holds a {stored.get('kind')}, expected a {' or a '.join(kinds)}.")
    missing = needed - stored.keys()
    if missing:
        raise UserError(f"The configuration in {path} has no '{min(missing)}'.")
    try:
        return read(stored)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def dataclass_from(kind: type[Section], values: dict[str, Any]) -> Section:
    """Create a dataclass from JSON values; TypeError for a wrong name, ValueError for a value."""
    kinds = {field.name: field.type for field in dataclasses.fields(kind)}
    return kind(**{name: _from_json(kinds.get(name), value) for name, value in values.items()})


def _from_json(kind: Any, value: Any) -> Any:
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        return dataclass_from(cast("type[DataclassInstance]", kind), value)
    return tuple(value) if isinstance(value, list) else value


def changed_flags(preset: Any, given: Any, prefix: str = " --") -> str:
    """Return ` --section.field value` for every setting of `given` that differs from the preset."""
    flags = ""
    for field in dataclasses.fields(preset):
        before, after = getattr(preset, field.name), getattr(given, field.name)
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(before):
            flags += changed_flags(before, after, f"{name}.")
        elif before != after:
            values = after if isinstance(after, tuple) else (after,)
            flags += f"{name} {shlex.join(map(str, values))}"
    return flags


P = ParamSpec("P")
R = TypeVar("R")


def takes(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function whose `**options` are the fields of a dataclass.

    The signature and docstring list the fields, except those that the function names itself.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = {each.name for each in own}
        fields = [field for field in dataclasses.fields(options) if field.name not in named]
        known = [*named, *(field.name for field in fields)]

        @functools.wraps(function)
        def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() - set(known):
                close = difflib.get_close_matches(name, known, 1)
                meant = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"{function.__name__}() has no argument {name!r}.{meant}")
            return function(*args, **kwargs)

        known_fields, kind = inspect.signature(options).parameters, inspect.Parameter.KEYWORD_ONLY
        more = [known_fields[field.name].replace(kind=kind) for field in fields]
        check_and_call.__doc__ = _merge_docstrings(function, options)
        check_and_call.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return check_and_call

    return decorate


def entries_of(options: type) -> dict[str, str]:
    """Return the text of each field in the docstring of a dataclass, on one line, by name."""
    entries, found = _entries(options), {}
    for entry in re.findall(r"^  (\w.*(?:\n    .*)*)", entries, re.M):
        name, _, text = entry.partition(": ")
        found[name] = " ".join(text.split())
    return found


def _entries(options: type) -> str:
    entries = re.search(r"^Args:\n((?:  .*\n?)*)", inspect.getdoc(options) or "", re.M)
    return "" if entries is None else entries[1].rstrip()


def _merge_docstrings(function: Callable, options: type) -> str:
    entries, own = _entries(options), inspect.getdoc(function) or ""
    if not entries:
        return own
    return re.sub(r"^  \*\*options:.*(?:\n    .*)*", lambda _: entries, own, flags=re.M)
