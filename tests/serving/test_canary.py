"""A version that is tried on a share of the requests, beside the one that is served."""

import asyncio

import http_running
import pytest
from fake_bundle import FakeModelStore
from registries import running
from serve_load import INFER

from serving.engine.registry import ModelRegistry
from serving.engine.version_scanner import scan
from serving.errors import NotReady
from serving.observability.logs import begin_request
from serving.settings import Settings

PATH = "/v2/models/voice/infer"


@pytest.fixture
def store(tmp_path):
    """`voice` in the versions 3 and 4."""
    (tmp_path / "models").mkdir()
    made = FakeModelStore(tmp_path / "models")
    for version in (3, 4):
        made.add(version=version)
    return made


def share(store, words):
    (store.root / "voice/canary").write_text(words)


def counts(registry, requests=400):
    """How many of the requests 0, 1, ... each version would answer."""
    found = {3: 0, 4: 0}
    for n in range(requests):
        begin_request(f"request-{n}")
        found[registry.for_request("voice").version] += 1
    return found


@pytest.mark.parametrize(("words", "low", "high"), [("4 25%", 70, 130), ("4 0%", 0, 0)])
def test_a_canary_takes_its_share_of_the_requests(store, words, low, high):
    share(store, words)

    async def run():
        async with running(store) as registry:
            found = counts(registry)
            assert low <= found[4] <= high and found[3] == 400 - found[4]
            assert counts(registry) == found  # the same requests come to the same version
            assert registry.get("voice").version == 3
            assert [registry.for_request("voice", n).version for n in (3, 4)] == [3, 4]
            states = {status.version: status.state for status in registry.versions("voice")}
            assert states == {3: "AVAILABLE", 4: "AVAILABLE"}

    asyncio.run(run())


def test_a_canary_is_widened_promoted_and_rolled_back(store):
    share(store, "4 1%")

    async def run():
        async with running(store) as registry:
            small = counts(registry)[4]
            share(store, "4 50%\n")
            await registry.rescan()
            assert small < 40 < counts(registry)[4] < 360
            (store.root / "voice/canary").unlink()  # promoted: it is the highest
            await registry.rescan()
            await registry.rescan()
            assert counts(registry) == {3: 0, 4: 400} and registry.canary("voice") is None
            share(store, "4 50%")
            await registry.rescan()
            assert registry.get("voice").version == 3 and registry.canary("voice") == (4, 0.5)
            (store.root / "voice/pinned").write_text("3")  # rolled back
            (store.root / "voice/canary").unlink()
            await registry.rescan()
            assert counts(registry) == {3: 400, 4: 0}

    asyncio.run(run())


def test_a_canary_that_is_broken_or_loading_takes_nothing(store):
    share(store, "4 100%")
    store.controls["voice", 4].warm_open.clear()

    async def run():
        registry = ModelRegistry(store.root, Settings(poll_seconds=1000.0), store.load)
        await registry.start()
        try:
            await registry.initial_load_done()  # which does not wait for the canary
            assert registry.ready and counts(registry)[4] == 0
            with pytest.raises(NotReady, match="Version 4 of `voice` is being loaded"):
                registry.get("voice", 4)
            store.controls["voice", 4].warm_fails = True
            store.controls["voice", 4].warm_open.set()
            await registry.rescan()
            assert counts(registry)[4] == 0
            errors = {status.version: status.error for status in registry.versions("voice")}
            assert errors[4] and not errors[3]
        finally:
            await registry.stop(1.0)

    asyncio.run(run())


@pytest.mark.parametrize("words", ["4", "4 half", "4 -1%", "4 1e1%", "x 5%", "4 5% 6", ""])
def test_a_canary_that_cannot_be_changes_nothing_and_is_reported(store, words):
    async def run():
        async with running(store) as registry:
            share(store, words)
            store.add(version=5)
            await registry.rescan()
            assert registry.get("voice").version == 4 and registry.canary("voice") is None
            (error,) = [s.error for s in registry.versions("voice") if s.version == 4]
            assert "`canary` must hold a version and its share" in error

    asyncio.run(run())


def test_a_canary_beside_nothing_is_the_version_that_is_served(store):
    for words, pinned in (("9 50%", None), ("4 50%", "4")):
        share(store, words)
        if pinned:
            (store.root / "voice/pinned").write_text(pinned)
        seen = scan(store.root)
        assert seen.canaries == {} and seen.versions["voice"][0].number == 4


def test_the_listing_and_the_metrics_show_it(store):
    share(store, "4 50%")
    with http_running.Running(store) as running:
        running.do(running.registry.rescan())
        answered = []
        for n in range(20):
            headers = {"x-request-id": f"request-{n}"}
            answer = running.client.post(PATH, content=INFER, headers=headers)
            answered.append(answer.json()["model_version"])
        (entry,) = running.client.get("/v1/models").json()["data"]
        found = running.client.get("/monitoring/prometheus/metrics").text
    assert entry["version"] == 3 and entry["canary"] == {"version": 4, "share": 0.5}
    assert {state["version"] for state in entry["versions"]} == {3, 4}
    assert set(answered) == {"3", "4"}
    for version in ("3", "4"):
        name = f'onepass_version_requests_total{{model="voice",status="ok",version="{version}"}}'
        assert f"{name} {float(answered.count(version))}\n" in found
    assert 'onepass_canary_share{model="voice"} 0.5\n' in found
    assert 'onepass_model_version{model="voice"} 3.0\n' in found
