"""The rules for model.json in a bundle of a user's model, which is checked before it is used.

An error names the field that breaks its rule. Fields without a rule are not used.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onepass.bundles.condition_inputs import (
    CONDITIONS,
    FRAMES,
    is_condition,
    is_timed,
    names_of,
)
from onepass.bundles.errors import shorten_text
from onepass.bundles.signature import (
    ARRAY,
    CHUNK,
    COMPILED,
    ENDED,
    IMAGE,
    LOG_PROB,
    NUM_PREFIX,
    PLAIN,
    PREFIX,
    PROMPTED,
    PROMPTED_CHUNK,
    SOUND,
    STATE,
    WITH_LOG_PROB,
    Signature,
)
from onepass.draw import LISTS
from onepass.foundation.errors import UserError

MOST_ROWS = 2**12  # rows of one call
MOST_SAMPLES = 2**31 - 1  # longest sequence, as lengths are int32
MOST_PIECE = 2**20  # elements that are compiled as one piece
MOST_CALL_BYTES = 2**30  # size of an input in a warm-up call
MOST_LIST = 2**10  # entries of a list of numbers or names
TEXT_CHARACTERS = 10_000


class Rule(NamedTuple):
    """A rule for a JSON value."""

    holds: Callable[[Any], bool]
    words: str
    needed: bool = True


def whole(low: int, high: int) -> Rule:
    """Return the rule that a value is an integer from `low` to `high`."""
    return Rule(lambda x: type(x) is int and low <= x <= high, f"a whole number in [{low}, {high}]")


def one_of(*values: Any) -> Rule:
    """Return the rule that a value is one of the given values."""
    known = " or ".join(map(repr, values))
    return Rule(lambda x: any(x is v or (type(x) is type(v) and x == v) for v in values), known)


def list_rule(rule: Rule, least: int = 0) -> Rule:
    """Return the rule that a value is a list of at least `least` items that obey `rule`."""
    return Rule(
        lambda x: isinstance(x, list) and least <= len(x) <= MOST_LIST and all(map(rule.holds, x)),
        f"a list of at least {least}, each {rule.words}",
    )


def optional(rule: Rule) -> Rule:
    """Return the rule for a field that may also be missing or null."""
    return Rule(lambda x: x is None or rule.holds(x), f"{rule.words}, or null", needed=False)


TEXT = Rule(lambda x: isinstance(x, str) and len(x) <= TEXT_CHARACTERS, "a text")
FINITE = Rule(
    lambda x: type(x) in (int, float) and abs(x) < 1e300 and math.isfinite(x), "a finite number"
)
FLAG = Rule(lambda x: type(x) is bool, "true or false")
NAMES = Rule(
    lambda x: (
        isinstance(x, dict)
        and len(x) <= MOST_LIST
        and all(TEXT.holds(name) and TEXT.holds(each) for name, each in x.items())
    ),
    "an object of texts",
)
OBJECT = Rule(lambda x: isinstance(x, dict) and len(x) <= MOST_LIST, "an object")
RATE = whole(1, 10**7)
ROWS = list_rule(whole(1, MOST_ROWS), least=1)  # the sizes of a batch
LENGTH = whole(1, MOST_SAMPLES)
# The rules, by the path of the field.
FIELDS: dict[str, Rule] = {
    "makes": one_of(ARRAY, SOUND, IMAGE),
    "order": optional(one_of("time", "raster")),
    "condition": optional(one_of("none", "frames")),
    "condition_channels": optional(whole(0, 2**16)),
    CONDITIONS: optional(NAMES),
    "codec": optional(TEXT),
    "distribution": optional(TEXT),
    "temperature": optional(FINITE),
    "elements": OBJECT,
    "elements.dtype": one_of("int32", "float32"),
    "elements.levels": optional(whole(1, 2**31)),
    "serving.allowed_batches": ROWS,
    "serving.limits": OBJECT,
    "serving.limits.max_batch": whole(1, MOST_ROWS),
}
OF_SOUND = {"sample_rate_hz": RATE}
OF_IMAGES = {
    "size": whole(1, 2**16),
    "channels": one_of(1, 3),
    "classes": list_rule(TEXT),
    "captions": optional(list_rule(TEXT)),
}
OF_SEQUENCES = {
    "hop_samples": one_of(1),
    "speakers": Rule(lambda x: x == [], "an empty list"),
    "max_length": LENGTH,
    "unit_samples": LENGTH,
    "serving.limits.max_frames": LENGTH,
    "serving.streaming": OBJECT,
    "serving.streaming.signature": one_of(CHUNK),
    "serving.streaming.side_frames": one_of(0),
    "serving.streaming.hop_samples": one_of(1),
    "serving.streaming.unit_samples": LENGTH,
    "serving.streaming.pieces": list_rule(whole(1, MOST_PIECE), least=1),
    "serving.streaming.rows_alone": FLAG,
    "serving.streaming.state": OBJECT,
    "serving.cropped": OBJECT,
}
ROW = ("seed", "row", "temperature")
CROPPING = {"axis": one_of(1), "length": one_of("num_samples")}
PADDING = {"axis": one_of(1), "length": one_of("num_frames"), "buckets": list_rule(LENGTH, least=1)}
TIMED = PADDING | {"length": one_of("num_samples")}
LISTED = {name: PADDING | {"length": one_of(count)} for name, count in LISTS.items()}
STATES = {"dtype": TEXT, "fill": FINITE}


def check_own_spec(
    path: Path, spec: Mapping[str, Any], signatures: Mapping[str, Signature]
) -> None:
    """Raise UserError, naming the field, if the model in a model.json could not be served."""
    try:
        _check_fields(spec, FIELDS)
        makes, streams = spec["makes"], CHUNK in signatures
        if streams and makes == IMAGE:
            raise _Broken("makes", one_of(ARRAY, SOUND).words, makes)
        if not streams and makes == SOUND:
            raise _Broken("makes", one_of(ARRAY, IMAGE).words, makes)
        nothing = {"sample_rate_hz": optional(one_of(None))}
        _check_fields(spec, OF_SOUND if makes == SOUND else nothing)
        _check_fields(spec, OF_IMAGES if makes == IMAGE else {})
        _check_signatures(signatures, streams)
        _check_conditions(spec, signatures)
        if streams:
            _check_sequences(spec, signatures)
        elif PROMPTED in signatures:
            _check_rules("padded", spec["serving"].get("padded"), _lists(signatures[PROMPTED]))
        _check_sizes(spec, signatures)
    except _Broken as error:
        raise UserError(
            f"{path}/model.json does not describe a model that can be served: {error}."
        ) from None


class _Broken(Exception):  # noqa: N818 - always caught here
    def __init__(self, field: str, words: str, value: Any):
        super().__init__(f"`{field}` must be {words}, got {shorten_text(repr(value))}")


def _check_fields(values: Mapping[str, Any], rules: Mapping[str, Rule], above: str = "") -> None:
    for field, rule in rules.items():
        *parents, name = field.split(".")
        holder: Any = values
        for parent in parents:
            holder = holder[parent]
        if name not in holder and not rule.needed:
            continue
        if name not in holder or not rule.holds(holder[name]):
            raise _Broken(f"{above}{field}", rule.words, holder.get(name))


def _check_signatures(signatures: Mapping[str, Signature], streams: bool) -> None:
    needed: dict[str, tuple[str, ...]] = {COMPILED: ROW, PLAIN: ROW}
    outputs: dict[str, str] = {}
    if streams:
        counted = "num_frames" if "frames" in signatures[COMPILED].inputs else "num_samples"
        needed |= {name: (*ROW, counted) for name in (COMPILED, PLAIN)}
        needed[CHUNK] = (*ROW, counted, "start")
    if LOG_PROB in signatures:
        needed[LOG_PROB], outputs[LOG_PROB] = ("elements",), LOG_PROB
    if PROMPTED in signatures:
        needed[PROMPTED], outputs[PROMPTED] = (*needed[COMPILED], WITH_LOG_PROB), LOG_PROB
        if streams:
            needed[PROMPTED] += (PREFIX, NUM_PREFIX)
            needed[PROMPTED_CHUNK] = (*needed[CHUNK], PREFIX, NUM_PREFIX)
            outputs[PROMPTED_CHUNK] = ENDED
    for name, inputs in needed.items():
        known = signatures[name].inputs if name in signatures else {}
        for each in inputs:
            if each not in known:
                raise _Broken(f"serving.signatures.{name}.inputs.{each}", "there", None)
        if not [output for output in signatures[name].outputs if output != "num_samples"]:
            raise _Broken(f"serving.signatures.{name}.outputs", "there", None)
    for name, output in outputs.items():
        if output not in signatures[name].outputs:
            raise _Broken(f"serving.signatures.{name}.outputs.{output}", "there", None)


def _check_conditions(spec: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    for name in (COMPILED, PLAIN, CHUNK, LOG_PROB, PROMPTED, PROMPTED_CHUNK):
        known = signatures[name].inputs if name in signatures else {}
        named = set(names_of(spec, known).values()) if known else set()
        for each in sorted(named - known.keys()):
            raise _Broken(f"serving.signatures.{name}.inputs.{each}", "there", None)
        for each in known:
            if each not in named and (is_condition(each) or each == FRAMES):
                raise _Broken(f"{CONDITIONS}", f"with the input `{each}`", spec.get(CONDITIONS))


def _check_sequences(spec: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    _check_fields(spec, OF_SEQUENCES)
    serving, has_prompts = spec["serving"], PROMPTED in signatures
    cropped = set(signatures[COMPILED].outputs) - {"num_samples"}
    cropped |= {LOG_PROB} if has_prompts else set()
    _check_rules("cropped", serving.get("cropped"), dict.fromkeys(cropped, CROPPING))
    known = signatures[COMPILED].inputs
    padded = {"frames": PADDING} if "frames" in known else {}
    padded |= {n: TIMED for n, info in known.items() if is_condition(n) and is_timed(info)}
    padded |= _lists(signatures[PROMPTED]) if has_prompts else {}
    _check_rules("padded", serving.get("padded"), padded)
    states = {name for name in signatures[CHUNK].inputs if name.startswith(STATE)}
    stored = serving["streaming"]["state"]
    _check_rules("streaming.state", stored, dict.fromkeys(states, STATES))
    for signature in (CHUNK, PROMPTED_CHUNK) if has_prompts else (CHUNK,):
        for name, rule in (stored or {}).items():
            _check_state(rule, signature, signatures[signature], name)


def _lists(signature: Signature) -> dict[str, dict[str, Rule]]:
    return {name: rule for name, rule in LISTED.items() if name in signature.inputs}


def _check_rules(field: str, found: Any, wanted: Mapping[str, Mapping[str, Rule]]) -> None:
    found = found or {}
    if not isinstance(found, dict) or set(found) != set(wanted):
        raise _Broken(f"serving.{field}", f"of {', '.join(sorted(wanted)) or 'nothing'}", found)
    for name, rules in wanted.items():
        above = f"serving.{field}.{name}"
        if not isinstance(found[name], dict):
            raise _Broken(above, OBJECT.words, found[name])
        _check_fields(found[name], rules, f"{above}.")


def _check_state(stored: Mapping[str, Any], signature: str, chunk: Signature, name: str) -> None:
    info, out = chunk.inputs.get(name), chunk.outputs.get(name)
    if info is None:
        raise _Broken(f"serving.signatures.{signature}.inputs.{name}", "there", None)
    if stored.get("shape") != info.sizes or stored["dtype"] != info.dtype.name:
        wanted = f"{info.dtype.name} {info.sizes}, as the input"
        raise _Broken(f"serving.streaming.state.{name}", wanted, stored)
    if out is None or (out.dtype, out.shape) != (info.dtype, info.shape):
        raise _Broken(f"serving.signatures.{signature}.outputs.{name}", "as the input", None)


def _check_sizes(spec: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    serving = spec["serving"]
    streaming = serving.get("streaming") or {}
    rows = max(serving["allowed_batches"])
    if streaming.get("rows_alone"):
        rows = min(serving["allowed_batches"])
    length = sum(set(streaming.get("pieces", [1])))
    for name in (COMPILED, CHUNK, PROMPTED):
        for key, info in (signatures[name].inputs if name in signatures else {}).items():
            sizes = [length if size is None else size for size in info.shape[1:]]
            bytes_ = rows * info.dtype.itemsize * math.prod(sizes)
            if bytes_ > MOST_CALL_BYTES:
                rule = f"smaller: {rows:,} rows of it take {bytes_:,} bytes"
                raise _Broken(f"serving.signatures.{name}.inputs.{key}", rule, info.sizes)
