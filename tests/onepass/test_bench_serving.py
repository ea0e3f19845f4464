"""`onepass bench serving`: that its clients ask what they say, and its rows and verdicts hold."""

import asyncio
import json
import os
import sys
import time
import types
from pathlib import Path

import grpc_running
import http_running
import numpy as np
import pytest
from fake_bundle import CHANNELS, HOP, RATE, FakeImages, FakeModelStore, FakeSound
from http_running import Running
from processes import ROOT

import onepass
import serving as served
from onepass.bench.report import Row
from onepass.bench.serving import client as serving_client
from onepass.bench.serving import command as serving
from onepass.bench.serving import models as serving_models
from onepass.bench.serving import rows as serving_rows
from onepass.bench.serving import server_process as serving_processes
from onepass.bench.serving import targets as serving_targets
from onepass.bench.serving.arguments import BenchArguments
from onepass.bench.serving.client import Client
from onepass.bench.serving.models import Case, Utterance
from onepass.bench.serving.protocols import (
    GRPC,
    GRPC_SPEAK,
    HTTP_SPEAK,
    HTTP_WAV,
    V2,
    WAYS,
    V2Binary,
    spoken,
)
from onepass.bench.serving.rows import Added, Looped, batch_rows
from onepass.bench.serving.server_process import Server
from replicator.runs.errors import UserError
from serving.engine.served_model import ServedModel
from serving.http.audio_formats import wav_header
from serving.settings import Settings

STARTED = ("reaper.py", "bench.serving.client", "bare_fakes")  # in their command lines
TESTS = ROOT / "tests"
CALLED = {"label": np.array([3], np.int32), "seed": np.array([5], np.int64)}
FRAMES = np.linspace(-1, 1, 8 * CHANNELS, dtype=np.float32).reshape(8, CHANNELS)
CASE = Case(Path("models/null/1"), Path("x.npz"))
WAV = wav_header(RATE) + np.arange(8 * HOP, dtype="<i2").tobytes()


def stored(folder, name="called", **inputs):
    path = folder / f"{name}.npz"
    np.savez(path, **(inputs or CALLED))
    return path


# The bundle that computes nothing


def test_the_null_bundle_is_one_and_gives_back_what_it_is_given(tmp_path):
    serving_models.write_null(tmp_path / "null" / "1")
    bundle = served.load(tmp_path / "null", "auto")
    bundle.warm()
    inputs = serving_models.inputs_by_case()
    for name in (serving_models.NULL, serving_models.LARGE):
        outputs = bundle.call("compiled", bundle.check("compiled", inputs[name]))
        np.testing.assert_array_equal(outputs["values"], inputs[name]["values"])
    assert inputs[serving_models.LARGE]["values"].nbytes == 64_000
    given = inputs[serving_models.NULL]  # which has no seed
    answer = ServedModel(bundle, Settings()).predict(given, "compiled")
    np.testing.assert_array_equal(asyncio.run(answer)["values"], given["values"])


# Ways to ask


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Fake bundles over HTTP and the same over gRPC: addresses, and a bundle."""
    folders = [tmp_path_factory.mktemp(name) for name in ("http", "grpc")]
    stores = [http_running.store(folders[0]), grpc_running.store(folders[1])]
    stores[1].add("shapes", kind=FakeImages)
    with Running(stores[0]) as over_http, grpc_running.Running(stores[1]) as over_grpc:
        yield types.SimpleNamespace(
            http=f"127.0.0.1:{over_http.port}",
            grpc=over_grpc.address,
            bundle=FakeImages("shapes", 1),
        )


def connected(way, running, model="shapes"):
    return WAYS[way](running.grpc if way == GRPC else running.http, model)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_what_the_bundle_gives(way, running):
    connection, bundle = connected(way, running), running.bundle
    for _ in range(2):  # on one connection
        found = connection.outputs(connection.ask(connection.request(CALLED)))
    wanted = bundle.call("compiled", bundle.check("compiled", CALLED))
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)
    connection.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_refusal_is_no_answer(way, running):
    connection = connected(way, running)
    with pytest.raises(RuntimeError, match=r"(?s)(400|INVALID_ARGUMENT).*label"):
        connection.ask(connection.request({"label": np.array([10], np.int32)}))
    connection.close()


@pytest.mark.parametrize("way", [HTTP_SPEAK, HTTP_WAV, GRPC_SPEAK])
def test_a_sound_comes_in_parts(way, running):
    parts = list(spoken(way, running.http, running.grpc, "voice", FRAMES, WAV))
    sample_bytes = 4 if way == GRPC_SPEAK else 2
    assert len(parts) > 1
    assert len(b"".join(parts)) == sample_bytes * HOP * len(FRAMES)


def test_a_refused_sound_is_an_error(running):
    parts = spoken(HTTP_SPEAK, running.http, running.grpc, "shapes", FRAMES, WAV)
    with pytest.raises(RuntimeError, match=r"^4"):
        next(parts)


def test_a_token_is_shown():
    request = V2Binary._message(
        types.SimpleNamespace(_host="h:1", _authorization="Authorization: Bearer abc\r\n"), "/", b""
    )
    assert b"\r\nAuthorization: Bearer abc\r\n" in request


# Closed loops


class Slow:
    """A connection whose answers take a while, and that fails after some of them."""

    def __init__(self, seconds, fails_after=None):
        self._seconds, self._fails_after, self.asked = seconds, fails_after, 0

    def request(self, inputs):
        return b""

    def ask(self, request):
        self.asked += 1
        if self._fails_after is not None and self.asked > self._fails_after:
            raise RuntimeError("no more")
        time.sleep(self._seconds)


def test_a_loop_counts_what_all_clients_were_answered():
    connections = [Slow(0.02) for _ in range(4)]
    report = serving_client._looped(connections, {}, 0.3)
    asked = sum(each.asked - 1 for each in connections)
    assert asked >= 4 and asked / report["rate"] >= 0.3
    assert report["cores"] > 0


@pytest.mark.parametrize("fails_after", [0, 3])
def test_a_client_that_is_refused_fails_the_loop(fails_after):
    with pytest.raises(RuntimeError, match="no more"):
        serving_client._looped([Slow(0.01), Slow(0.01, fails_after)], {}, 0.2)


def test_a_call_is_timed_from_arrays_to_arrays(running, tmp_path):
    client = Client(running.http, running.grpc)
    report = client.call(V2, "shapes", str(stored(tmp_path)), 3)
    assert 0 < report["seconds"] < 1


METRICS = """
# TYPE onepass_batch_rows histogram
onepass_batch_rows_bucket{le="1.0",model="a"} 3.0
onepass_batch_rows_bucket{le="2.0",model="a"} 3.0
onepass_batch_rows_bucket{le="4.0",model="a"} 8.0
onepass_batch_rows_bucket{le="+Inf",model="a"} 8.0
onepass_batch_rows_count{model="a"} 8.0
onepass_batch_rows_sum{model="a"} 21.0
onepass_batch_rows_bucket{le="1.0",model="b"} 9.0
onepass_batch_rows_bucket{le="+Inf",model="b"} 9.0
onepass_batch_rows_sum{model="b"} 9.0
"""


def test_calls_are_counted_by_their_rows():
    assert batch_rows(METRICS, "a") == ({"1": 3.0, "2": 0.0, "4": 5.0, "inf": 0.0}, 21.0)
    assert batch_rows(METRICS, "c") == ({}, 0.0)


def test_rows_of_a_call_are_those_of_the_measurement(monkeypatch):
    report = iter([({"1": 3.0}, 3.0), ({"1": 5.0, "4": 2.0}, 13.0)])
    monkeypatch.setattr(Looped, "_batches", lambda looped: next(report))
    client = types.SimpleNamespace(ask=lambda **asked: [{"rate": 7.0, "cores": 0.5}])
    looped = Looped(client, None, V2, CASE, 2, 1.0)
    assert looped.measure() == 7.0
    assert (looped.rows, looped.calls) == (2.5, {"1": 2.0, "4": 2.0})


# What protocols add


def test_what_is_added_is_over_the_bare_call_of_the_same_turn(monkeypatch):
    spells = iter([1.0, 1.0, 10.0, 10.0, 10.0])  # of a machine that is slow from the third turn on
    now, spell = [0.0], [0.0]

    def bare(**asked):
        spell[0], now[0] = next(spells), now[0] + 1
        return [{"seconds": spell[0]}]

    def asked(way, **rest):
        return [{"seconds": spell[0] + (3.0 if way == GRPC else 4.0)}]

    monkeypatch.setattr(serving_rows.time, "perf_counter", lambda: now[0])
    groups = [types.SimpleNamespace(ask=ask) for ask in (bare, asked)]
    added = Added(*groups, CASE, least_seconds=5.0)
    assert added.measure() == 10.0
    assert (added.added[GRPC], added.added[V2], added.seconds[GRPC]) == (3.0, 4.0, 13.0)


# Verdicts


def line_with(words, rows, **given):
    lines = serving_targets.verdicts(BenchArguments(**given), rows)
    (line,) = [line for line in lines if words in line]
    return line


@pytest.mark.parametrize(("value", "word"), [(4.99, "met "), (5.0, "NOT MET ")])
def test_a_protocol_may_add_five_milliseconds(value, word):
    rows = [Row("added, v2 binary", "null", 1, "ms", values=[value])]
    assert line_with("v2 binary adds less than 5 ms to the bare call of null:", rows).startswith(
        word
    )


@pytest.mark.parametrize("values", [[-14.0, -2.0], [0.5, 6.0, 1.0]])
def test_what_is_added_is_not_distinguished_from_noise(values):
    rows = [Row("added, gRPC Predict", "digits", 1, "ms", values=values)]
    line = line_with("gRPC Predict adds less than 5 ms to the bare call of digits", rows)
    assert line.startswith("not measured") and line.endswith("the machine was not quiet")


@pytest.mark.parametrize(("value", "word"), [(409.0, "met "), (408.9, "NOT MET ")])
def test_the_fastest_elsewhere_is_the_least(value, word):
    rows = [Row("requests, TF Serving JSON", "null", 8, "req/s", values=[value])]
    assert line_with("TF Serving JSON: at least 409", rows).startswith(word)


@pytest.mark.parametrize(("value", "word"), [(0.99, "met "), (1.0, "NOT MET ")])
def test_the_first_sound_comes_in_a_quarter_of_the_time(value, word):
    rows = [
        Row("first sound, gRPC Speak", "tf", 1, "s", "whole, gRPC Predict", values=[value]),
        Row("whole, gRPC Predict", "tf", 1, "s", values=[4.0]),
    ]
    assert line_with("gRPC Speak, tensorflow", rows).startswith(word)
    assert line_with("HTTP :speak, tensorflow", rows).startswith("not measured")


def test_what_is_too_much_is_not_met():
    rows = [Row("ready, models", "digits", 1, "cpu s", values=[5.1])]
    rows.append(Row("longest gap", "numba", 8, "s", values=[1.9]))
    assert line_with("processor time of digits", rows).startswith("NOT MET")
    assert line_with("longest gap of 8 streams, numba", rows).startswith("met")
    assert line_with("memory of a server of both", rows).startswith("not measured")


# Servers


def fakes_in(folder, **controls):
    store = FakeModelStore(folder)
    store.add("null", kind=FakeImages, **controls)
    return folder


@pytest.fixture(autouse=True)
def fake_server(monkeypatch):
    monkeypatch.setattr(
        serving_processes, "COMMAND", (sys.executable, str(TESTS / "served_process.py"))
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(TESTS)]))


def test_a_server_that_ends_is_reported_with_its_last_words(tmp_path):
    with pytest.raises(
        UserError, match=r"^The server ended: onepass: There is no folder \S+gone\.$"
    ):
        Server(tmp_path / "gone", 30.0)


def test_a_model_that_the_server_cannot_load_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"^The server could not load null: .*secret detail"):
        Server(fakes_in(tmp_path, warm_fails=True), 30.0)
    assert children() == []


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path):
    with pytest.raises(UserError, match=r"^The server was not ready in time"):
        Server(fakes_in(tmp_path), 0.01)
    assert children() == []


# A run


def children():
    """The command lines of this process's children that a bench has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            mine = f"PPid:\t{os.getpid()}\n" in status.read_text()
            command = status.with_name("cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if mine and any(word in command for word in STARTED):
            found.append(command)
    return found


def fake_bundles(folder, names, given):
    kinds = {name: FakeSound if name == serving_models.STUDENT else FakeImages for name in names}
    for name, kind in kinds.items():
        FakeModelStore(folder / f"models-{name}").add(name, kind=kind)
    return {name: folder / f"models-{name}" / name / "1" for name in names}


def fake_utterance(folder, bundle, seconds):
    (folder / "said.wav").write_bytes(WAV)
    inputs = {"frames": FRAMES[None], "num_frames": np.array([len(FRAMES)], np.int32)}
    return Utterance(Case(bundle, stored(folder, "said", **inputs)), folder / "said.wav")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One run of everything over fakes: its rows, and its plot."""
    folder = tmp_path_factory.mktemp("bench")
    json_, plot = folder / "rows.json", folder / "p.png"
    options = "--least-seconds 0.05 --rounds 1 --picture-clients 2 --backends numba"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            serving_processes, "COMMAND", (sys.executable, str(TESTS / "served_process.py"))
        )
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(TESTS)]))
        patch.setattr(serving, "BARE", "bare_fakes")
        patch.setattr(serving_models, "bundles", fake_bundles)
        patch.setattr(serving_models, "utterance", fake_utterance)
        called = {name: CALLED for name in ("null", "null 64KB", "digits")}
        patch.setattr(serving_models, "inputs_by_case", lambda: called)
        words = [*options.split(), "--json", str(json_), "--plot", str(plot)]
        assert serving.run(onepass.command.parse(BenchArguments, words, "onepass bench")) == 0
    return types.SimpleNamespace(report=json.loads(json_.read_text()), plot=plot)


def test_json_keeps_the_contract(bench):
    assert set(bench.report) == {"machine", "rows"}
    keys = {"what", "size", "batch", "value", "unit", "against", "ratio", "spread"}
    assert all(keys <= set(row) for row in bench.report["rows"])
    assert all(row["ratio"] > 0 for row in bench.report["rows"] if row["against"])


def test_every_target_is_measured(bench):
    report = [
        (row["what"], row["size"], row["batch"], row["value"]) for row in bench.report["rows"]
    ]
    rows = [Row(what, size, batch, "", None, values=[value]) for what, size, batch, value in report]
    for row, said in zip(rows, bench.report["rows"], strict=True):
        row.against = said["against"]
    lines = serving_targets.verdicts(BenchArguments(backends=("numba",)), rows)
    added, others = lines[:6], lines[6:]  # a machine in use may be too noisy for the first
    assert all(" adds less than " in line and " ms (" in line for line in added)
    (left_out,) = [line for line in others if line.startswith("not measured")]
    assert "first sound of a text" in left_out  # which the fake voice cannot speak
    for size in ("digits", "numba", "both"):
        cold = {row.what: row.value for row in rows if row.size == size}
        assert cold["ready"] >= cold["ready, models"] > 0 and 10 < cold["memory"] < 4000


def test_no_batch_has_more_rows_than_there_are_clients(bench):
    rows = {r["what"]: r for r in bench.report["rows"] if r["unit"] == "rows"}
    assert {"rows, 1 client", "rows, 2 clients", "rows, gRPC Predict"} <= set(rows)
    assert all(1 <= row["value"] <= row["batch"] for row in rows.values())


def test_the_plot_is_an_image(bench):
    assert bench.plot.read_bytes().startswith(b"\x89PNG")


def test_no_process_is_left(bench):
    assert children() == []


# Mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parts", "cod"], "there is no part `cod`; there are added, clients, pictures, sound, "),
        (["--parts"], "`--parts` must leave something to measure"),
        (["--backends", "jax"], "there is no backend `jax`; there are numba, tensorflow"),
        (["--rounds", "0"], "`--rounds` must be at least 1, got 0"),
        (["--clients", "0"], "`--clients` must be at least 1, got 0"),
        (["--picture-clients", "4", "0"], "`--image-clients` must be at least 1, got 0"),
        (["--utterance-seconds", "nan"], "`--utterance-seconds` must be above 0, got nan"),
        (["--models", "nowhere"], "there is no folder nowhere/digits"),
        (["--plot", "curve.gif"], "`--plot` must end in .png, .pdf or .svg, got curve.gif"),
        (["--plot", "c.png", "--parts", "cold"], "`--plot` shows added and pictures, which `--par"),
        (["--json", "nowhere/rows.json"], "there is no folder nowhere to write rows.json to"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(options, said, mistake, monkeypatch):
    monkeypatch.setattr(onepass.command, "_import_tensorflow_quietly", lambda: None)
    assert said in mistake("bench", "serving", *options)
