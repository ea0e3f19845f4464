"""The requests of a server share the states after prefixes, within a bound of memory."""

import asyncio

import numpy as np
import pytest
from fake_bundle import Fake
from loops import running, until

from onepass.bundles.signature import Signature, TensorInfo
from onepass.prefix_state import Kept
from serving.engine import prefix_states
from serving.engine.prefix_states import SHORTEST, StateCache
from serving.engine.served_model import ServedModel
from serving.observability import Metrics
from serving.settings import MIB, Settings

LEVELS, LONGEST, WIDE = 97, 400, 250  # a state of 1,000 bytes and its elements
INT32, FLOAT32, INT64 = map(np.dtype, (np.int32, np.float32, np.int64))


def signatures():
    rows = TensorInfo(INT32, (None,), 0, LONGEST, 0)
    asked = {
        "num_samples": TensorInfo(INT32, (None,), 1, LONGEST),
        "seed": TensorInfo(INT64, (None,), default=0),
        "voice": TensorInfo(INT32, (None,), 0, 3, 0),
        "condition_voice": TensorInfo(INT32, (None,), 0, 3, 0),
        "condition_mel": TensorInfo(INT32, (None, None), 0, 9),
        "prefix": TensorInfo(INT32, (None, None), 0, LEVELS),
        "num_prefix": rows,
        "top_k": TensorInfo(INT32, (None,), 0, default=0),
    }
    made = {"elements": TensorInfo(FLOAT32, (None, None)), "num_samples": rows}
    wide = TensorInfo(FLOAT32, (None, WIDE), default=0)
    start = {"start": rows, "state_sum": wide}
    flag = {"return_log_prob": TensorInfo(INT32, (None,), 0, 1, 0)}
    nats = {"log_prob": TensorInfo(FLOAT32, (None, None))}
    return {
        "compiled": Signature(asked, made),
        "serving_default": Signature(asked, made),
        "prompted": Signature({**asked, **flag}, {**made, **nats}),
        "prompted_chunk": Signature({**asked, **start}, {**made, "ended": rows, "state_sum": wide}),
    }


class Writer(Fake):
    """A bundle whose elements depend on all before them, on the seed and on the conditions."""

    kind, engine = "array", "tensorflow"

    def __init__(self, *given, **more):
        sizes = {"allowed_batches": list(range(1, 9)), "buckets": [LONGEST]}
        super().__init__(*given, **more, **sizes, signatures=signatures())
        self.weight, self.reads, self.calls = 30 + self.version, [], []

    def call(self, signature, inputs):
        assert self.control.open.wait(30)
        self.calls.append(signature)
        given = [
            {name: array[row] for name, array in inputs.items()}
            for row in range(len(inputs["seed"]))
        ]
        rows = [self._row(one) for one in given]
        longest = max(len(row) for row, _ in rows)
        elements = np.stack([np.pad(row, [0, longest - len(row)]) for row, _ in rows])
        found = {"elements": elements.astype(np.float32), "num_samples": inputs["num_samples"]}
        if signature == "prompted":
            asked = inputs["return_log_prob"][:, None]
            return {**found, "log_prob": elements.astype(np.float32) * asked}
        state = np.stack([np.full([WIDE], total, np.float32) for _, total in rows])
        return {**found, "ended": np.zeros(len(rows), np.int32), "state_sum": state}

    def _row(self, one):
        start, count = int(one.get("start", 0)), int(one["num_samples"])
        total = int(one["state_sum"][0]) if start else int(one["condition_voice"])
        made, known = [], int(one["num_prefix"])
        self.reads.append(known)
        for place in range(count):
            new = (total + int(one["seed"]) + start + place) % LEVELS
            new = int(one["prefix"][place]) if place < known else new
            total = (self.weight * total + new + int(one["condition_mel"][place])) % LEVELS
            made.append(new)
        return np.array(made), total


def prompt(count, seed=1):
    return np.random.default_rng(seed).integers(0, LEVELS, count)


def asked(prefixes, seeds=None, length=60, voice=0, mel=0, **options):
    rows = len(prefixes)
    widest = max(map(len, prefixes))
    return {
        "prefix": np.stack([np.pad(each, [0, widest - len(each)]) for each in prefixes]),
        "num_prefix": [len(each) for each in prefixes],
        "num_samples": np.broadcast_to(length, [rows]),
        "seed": np.arange(rows) if seeds is None else seeds,
        "condition_voice": np.full([rows], voice),
        "condition_mel": np.full([rows, 60], mel),
        **options,
    }


def served_by(writer, metrics=None, **settings):
    return ServedModel(writer, Settings(**settings), metrics, "writer")


def counted(metrics):
    """The prefixes that were known and those that were read, and the bytes of all states."""
    hits, misses = (
        metrics.registry.get_sample_value(
            "onepass_prefixes_total", {"model": "writer", "outcome": outcome}
        )
        for outcome in ("hit", "miss")
    )
    return hits, misses, metrics.registry.get_sample_value("onepass_prefix_bytes")


def assert_equal(answer, inputs, writer=None):
    """The answer is that of the signature `prompted` itself."""
    writer = writer or Writer()
    expected = writer.call("prompted", writer.check("prompted", inputs))
    longest = int(np.max(inputs["num_samples"]))
    np.testing.assert_array_equal(answer["elements"][:, :longest], expected["elements"])
    np.testing.assert_array_equal(answer["num_samples"], expected["num_samples"])


async def test_rows_of_any_prefixes_in_one_request_are_those_of_the_program():
    writer = Writer()
    served = served_by(writer)
    prefixes = [prompt(n, seed=n) for n in (SHORTEST, 3, 60, 40, 0, 40, SHORTEST - 1)]
    inputs = asked(prefixes, length=[60, 5, 60, 41, 7, 60, 20])
    for _ in range(2):
        assert_equal(await served.predict(inputs, "prompted"), inputs)
    assert sorted(writer.reads).count(40) == 1
    inputs["return_log_prob"] = np.ones(7, np.int32)
    answer = await served.predict(inputs, "prompted")
    assert_equal(answer, inputs)
    np.testing.assert_array_equal(answer["log_prob"], answer["elements"])


async def test_a_state_belongs_to_the_conditions_of_its_prefix_and_to_no_option():
    metrics, prefix = Metrics(), prompt(40)
    served = served_by(Writer(), metrics)
    later = asked([prefix])
    later["condition_mel"][:, 40:] = 5
    for inputs in (
        *(asked([prefix]), asked([prefix], top_k=[3], length=50), later),
        *(asked([prefix], voice=1), asked([prefix], mel=1), asked([prompt(40, seed=2)])),
        asked([prefix[:39]]),
    ):
        assert_equal(await served.predict(inputs, "prompted"), inputs)
    assert counted(metrics)[:2] == (2, 5)


async def test_many_prompts_and_large_ones_never_take_more_than_the_bound():
    metrics, writer = Metrics(), Writer()
    served = served_by(writer, metrics, prefix_mib=5_000 / MIB)
    first = prompt(40, seed=1000)
    await served.predict(asked([first]), "prompted")
    for seed in range(30):
        inputs = asked([prompt(20 + seed, seed)])
        assert_equal(await served.predict(inputs, "prompted"), inputs)
        await served.predict(asked([first]), "prompted")  # used latest, it stays
        assert 0 < counted(metrics)[2] <= 5_000
    assert counted(metrics)[0] == 30


@pytest.mark.parametrize("size", [0, 900])
async def test_a_bound_of_nothing_or_below_one_state_keeps_none(size):
    metrics, writer = Metrics(), Writer()
    served = served_by(writer, metrics, prefix_mib=size / MIB)
    for _ in range(2):
        inputs = asked([prompt(40)])
        assert_equal(await served.predict(inputs, "prompted"), inputs)
    assert writer.calls == ["prompted"] * 2
    assert counted(metrics) == (0, 0, 0)


@pytest.mark.parametrize(("states", "most"), [(2.5, 2), (1, 1)])
async def test_a_call_holds_no_more_states_than_a_message_may(states, most, monkeypatch):
    monkeypatch.setattr(prefix_states, "CALL_BYTES", int(states * 4 * WIDE))
    writer, rows = Writer(), []
    served, call = served_by(writer), writer.call

    def noted(signature, inputs):
        rows.append((signature, len(inputs["seed"])))
        return call(signature, inputs)

    monkeypatch.setattr(served._call._prompts, "_call", noted)
    inputs = asked([prompt(20 + n, n) for n in range(5)])
    assert_equal(await served.predict(inputs, "prompted"), inputs)
    assert max(count for _, count in rows) == most
    monkeypatch.setattr(prefix_states, "CALL_BYTES", 4 * WIDE - 1)
    large = Writer()
    assert_equal(await served_by(large).predict(inputs, "prompted"), inputs)
    assert set(large.calls) == {"prompted"}


def test_a_state_larger_than_the_bound_is_not_kept_and_drops_none():
    cache, model = StateCache(2_000, Metrics()), object()
    cache.admit(model)
    small, large = (Kept(n, [np.zeros(n, np.float32)]) for n in (400, 501))
    cache.keep(model, "small", small)
    cache.keep(model, "large", large)
    assert cache.find(model, "small") is small
    assert cache.find(model, "large") is None
    cache.keep(model, "small", small)  # by two calls at once
    cache.keep(model, "other", small)
    assert cache.find(model, "small") is None
    assert cache.find(model, "other") is small
    cache.drop(model)
    cache.keep(model, "late", small)  # by a call that ends after its model
    assert cache.find(model, "late") is cache.find(model, "other") is None


async def test_requests_at_once_read_a_prompt_rightly_and_share_it_later():
    metrics, writer, prefix = Metrics(), Writer(), prompt(40)
    served = served_by(writer, metrics, threads=3)
    given = [asked([prefix, prompt(30, seed)], [seed, seed + 1]) for seed in range(12)]
    answers = await asyncio.gather(*(served.predict(each, "prompted") for each in given))
    for answer, inputs in zip(answers, given, strict=True):
        assert_equal(answer, inputs)
    before = writer.reads.count(40)
    await served.predict(asked([prefix], [99]), "prompted")
    assert writer.reads.count(40) == before


async def test_a_new_version_never_continues_from_a_state_of_the_old_one(store):
    metrics, inputs = Metrics(), asked([prompt(40)])
    control = store.add("writer", 1, Writer)
    async with running(store, metrics) as registry:
        old = registry.get("writer")
        assert_equal(await old.predict(inputs, "prompted"), inputs)
        assert counted(metrics)[2] > 0
        control.open.clear()
        late = asyncio.create_task(old.predict(asked([prompt(50)]), "prompted"))
        await until(lambda: old.is_busy)
        store.add("writer", 2, Writer)
        await registry._scan_folder()
        await until(lambda: registry.get("writer").version == 2)
        new = registry.get("writer")
        assert_equal(await new.predict(inputs, "prompted"), inputs, Writer(version=2))
        control.open.set()
        assert_equal(await late, asked([prompt(50)]))
        await registry.rescan()
        assert counted(metrics) == (0, 3, 4 * WIDE + 4 * 40)  # that of the new version
        assert_equal(await new.predict(inputs, "prompted"), inputs, Writer(version=2))
        assert counted(metrics)[0] == 1
