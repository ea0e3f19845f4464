"""A model.json of a user's bundle that is damaged in any field is refused once, in one line."""

import asyncio
import copy
import functools
import json

import own_models
import pytest

import serving
from onepass.bundles.bundle import FIELDS, OF_IMAGES, OF_SEQUENCES, OF_SOUND, check_own_spec
from onepass.bundles.signature import Signature
from onepass.foundation.rules import UserError
from serving.engine.registry import ModelRegistry
from serving.settings import Settings

NOTHING_ELSE = "does not describe a model that can be served: "
WRONG = ("x", -1, 1e9, 0.5, True, float("nan"), [], [[]], ["x"], [10**9], {}, {"x": 1})


@functools.cache
def spec_of(name):
    return json.loads((own_models.bundle_folder(name) / "model.json").read_text())


def holder_of(spec, field):
    *parents, name = field.split(".")
    for parent in parents:
        spec = spec[parent]
    return spec, name


def checked(spec):
    stored = spec["serving"]["signatures"].items()
    signatures = {name: Signature.from_dict(signature) for name, signature in stored}
    check_own_spec("mine/1", spec, signatures)


@pytest.mark.parametrize(
    ("name", "field"),
    [("pairs", field) for field in (*FIELDS, *OF_SEQUENCES)]
    + [("sound", field) for field in OF_SOUND]
    + [("classes", field) for field in OF_IMAGES],
)
def test_every_field_that_is_wrong_is_named(name, field):
    rule = {**FIELDS, **OF_SEQUENCES, **OF_SOUND, **OF_IMAGES}[field]
    wrong = [value for value in WRONG if not rule.holds(value)]
    assert len(wrong) >= 8
    for value in wrong:
        spec = copy.deepcopy(spec_of(name))
        holder, key = holder_of(spec, field)
        holder[key] = value
        with pytest.raises(UserError) as refused:
            checked(spec)
        line = str(refused.value)
        assert "\n" not in line and line.startswith(f"mine/1/model.json {NOTHING_ELSE}`{field}")
    if rule.needed:
        del holder[key]
        with pytest.raises(UserError, match=f"`{field}` must be .*, got None"):
            checked(spec)


def paths(value, above=()):
    """Return all paths of a tree of JSON."""
    yield above
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(each, (*above, key))


@pytest.mark.parametrize("name", ["framed", "classes"])
def test_no_value_anywhere_ends_in_anything_but_a_refusal(name):
    """A file with any value at any path is refused, or accepted and can then be warmed."""
    places = [path for path in paths(spec_of(name)) if path]
    for number, path in enumerate(places):
        for value in (WRONG[number % len(WRONG)], None, WRONG[(number * 7 + 3) % len(WRONG)]):
            spec = copy.deepcopy(spec_of(name))
            holder = functools.reduce(lambda tree, key: tree[key], path[:-1], spec)
            holder[path[-1]] = value
            try:
                checked(spec)
            except UserError as error:
                assert NOTHING_ELSE in str(error)
            except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
                # What `read_spec` refuses before: the signatures themselves.
                assert path[0] == "serving" and path[1:2] in ((), ("signatures",))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("serving.allowed_batches", [1e9], "`allowed_batches` must be a list of at least 1"),
        ("serving.allowed_batches", [10**9], "`allowed_batches` must be a list of at least 1"),
        ("serving.allowed_batches", "x", "`allowed_batches` must be a list of at least 1"),
        ("serving.streaming", "x", "`serving.streaming` must be an object, got 'x'."),
        ("serving.streaming.pieces", [10**9], "`serving.streaming.pieces` must be a list"),
        ("serving.signatures.compiled.inputs.seed.low", "x", "`low` must be a number, got 'x'"),
        ("serving.signatures.compiled.inputs.row.optional_default", 1e99, "must be a number"),
        ("serving.signatures.compiled.inputs.row.shape", [-1, float("inf")], "lacks what is"),
    ],
)
def test_a_damaged_bundle_is_refused_and_not_tried_again(field, value, says, tmp_path):
    def change(spec):
        holder, key = holder_of(spec, field)
        holder[key] = value

    folder = own_models.changed_bundle(tmp_path, "pairs", change)
    with pytest.raises(UserError, match=says):
        serving.load(folder)
    tries = []

    def load(path):
        tries.append(path)
        return serving.load(path)

    async def serve():
        registry = ModelRegistry(tmp_path / "changed", Settings(poll_seconds=0.01), load)
        await registry.start()
        await registry.initial_load_done()
        broken = registry._version_sets["pairs"].broken[1]
        await registry.stop(1.0)
        return broken

    assert asyncio.run(serve()).retry_at == float("inf") and len(tries) == 1


@pytest.mark.parametrize("damaged", ["x", {"pieces": 3, "rows_alone": True}, {}, None])
def test_a_bundle_of_another_kind_that_is_damaged_is_refused_as_well(damaged, tmp_path):
    from onepass.bundles import bundle

    serving = {**spec_of("pairs")["serving"], "streaming": damaged}
    spec = {"kind": "wavenet", "serving": serving}
    with pytest.raises(UserError, match=r"model\.json does not describe its model: "):
        bundle.make_bundle(tmp_path / "mine" / "1", spec, None, "auto")
