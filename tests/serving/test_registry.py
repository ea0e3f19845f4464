import asyncio
import contextlib
import dataclasses
import gc
import itertools
import os
import shutil
import threading
import weakref

import numpy as np
import pytest
from fake_bundle import HOP, FakeImages, FakeModelStore, FakeSound, info
from loops import running, until

import onepass
import serving
from onepass.bundles.errors import DeadlineExceeded, NotFound, NotReady, TooLarge
from onepass.bundles.manifest import NAME_RULE, VERSION_RULE, check_folder
from onepass.bundles.signature import Signature
from onepass.foundation.rules import UserError
from serving.client.client import server_and_name
from serving.engine.registry import ModelRegistry, scan
from serving.engine.served_model import ServedModel
from serving.observability import Metrics
from serving.settings import Settings

FRAMES = {"frames": np.ones([1, 3, 3], np.float32), "num_frames": np.array([3], np.int32)}


def states(registry, name="voice"):
    return {status.version: status.state for status in registry.versions(name)}


def the_error(registry, version, name="voice"):
    return next(s.error for s in registry.versions(name) if s.version == version)


async def ask(registry, seed=0):
    """The version that answered, having answered rightly."""
    served = registry.get("voice")
    answer = await served.predict({**FRAMES, "seed": np.array([seed])})
    assert answer["sound"].shape == (1, 3 * HOP)
    return served.version


async def test_the_highest_version_of_every_model_is_served_warm(store):
    controls = [store.add(version=n) for n in (1, 9, 10)]
    store.add("digits", 3, FakeImages)
    async with running(store) as registry:
        assert registry.names() == ["digits", "voice"]
        assert [registry.get(name).version for name in registry.names()] == [3, 10]
        assert states(registry) == {1: "END", 9: "END", 10: "AVAILABLE"}
        assert await ask(registry) == 10 and registry.get("voice", 10) is registry.get("voice")
        for words in (("voice", 1), ("voice", 7), ("nobody",), ("../voice",), ("",)):
            with pytest.raises(NotFound):
                registry.get(*words)
    assert [control.warmed for control in controls] == [0, 0, 1]


async def test_a_model_is_not_ready_before_it_is_warm(store):
    control = store.add()
    control.warm_open.clear()
    registry = ModelRegistry(store.root, Settings(poll_seconds=1000.0), store.load)
    assert not registry.ready
    await registry.start()
    assert not registry.ready and states(registry) == {1: "LOADING"}
    with pytest.raises(NotReady, match="is being loaded"):
        registry.get("voice")
    control.warm_open.set()
    await registry.initial_load_done()
    assert registry.ready and states(registry) == {1: "AVAILABLE"}
    await registry.stop(1.0)
    assert not registry.ready


async def test_an_empty_folder_is_ready_and_a_folder_of_broken_models_is_not(store):
    async def is_ready():
        async with running(store) as registry:
            return registry.ready

    assert await is_ready()
    store.add(load_fails=True)
    assert not (await is_ready())
    store.add("other")
    assert await is_ready()


async def test_reloads_under_load_leave_no_gap_and_no_error(store):
    store.add(version=1, seconds=0.002)
    stop, seen = threading.Event(), []

    async def client(registry, number):
        while not stop.is_set():
            seen.append(await ask(registry, number))

    async with running(store) as registry:
        clients = [asyncio.create_task(client(registry, n)) for n in range(8)]
        for version in (2, 3, 4):
            store.add(version=version, seconds=0.002)
            await registry.rescan()
            await until(lambda version=version: seen.count(version) > 16)
            assert states(registry)[version] == "AVAILABLE"
        stop.set()
        await asyncio.gather(*clients)
    assert seen[0] == 1
    assert set(seen) == {1, 2, 3, 4} and len(seen) > 50
    newest = list(itertools.accumulate(seen, max))
    assert all(top - version <= 1 for top, version in zip(newest, seen, strict=True))


async def test_the_old_version_serves_until_the_new_one_is_warm(store):
    store.add(version=1)
    async with running(store) as registry:
        new = store.add(version=2)
        new.warm_open.clear()
        looking = asyncio.create_task(registry.rescan())
        await until(lambda: states(registry).get(2) == "LOADING")
        assert await ask(registry) == 1
        with pytest.raises(NotReady):
            registry.get("voice", 2)
        new.warm_open.set()
        await looking
        assert await ask(registry) == 2


async def test_an_old_version_answers_what_it_began_and_is_let_go_then(store):
    old = store.add(version=1)
    async with running(store) as registry:
        old.open.clear()
        asked = asyncio.create_task(ask(registry))
        await until(old.entered.is_set)
        late = registry.get("voice")  # taken, but not asked yet
        gone = weakref.ref(late.bundle)
        store.add(version=2)
        looking = asyncio.create_task(registry.rescan())
        await until(lambda: registry.get("voice").version == 2)
        assert states(registry)[1] == "UNLOADING"
        assert registry.get("voice", 1) is late
        old.open.set()
        assert await asked == 1
        await looking
        assert states(registry) == {1: "END", 2: "AVAILABLE"}
        assert (await late.predict(FRAMES))["sound"].shape == (1, 3 * HOP)
        del late, asked
        gc.collect()
        await until(lambda: gone() is None)


@pytest.mark.parametrize("fault", ["load_fails", "warm_fails"])
async def test_a_broken_new_version_leaves_the_old_one_serving(store, fault, caplog):
    store.add(version=1)
    async with running(store, Metrics()) as registry:
        store.add(version=2, **{fault: True})
        await registry.rescan()
        assert await ask(registry) == 1
        assert states(registry) == {1: "AVAILABLE", 2: "END"}
        assert the_error(registry, 2) == "The server's log says why."
    assert "secret detail" in caplog.text


async def test_a_broken_version_is_tried_again_ever_less_often_until_it_is_mended(store):
    store.add(version=1)
    broken = store.add(version=2, load_fails=True)
    running_registry, tried = [], []

    def load(path):
        if path.name == "2":
            broken_before = running_registry[0]._version_sets["voice"].broken.get(2)
            tried.append(broken_before and broken_before.delay_seconds)
        return store.load(path)

    registry = ModelRegistry(store.root, Settings(poll_seconds=0.01), load)
    running_registry.append(registry)
    await registry.start()
    await until(lambda: len(tried) == 5)
    assert await ask(registry) == 1
    broken.load_fails = False
    await until(lambda: registry.get("voice").version == 2)
    await registry.stop(1.0)
    assert tried[:5] == [None, 0.01, 0.02, 0.04, 0.08]


async def test_a_failure_is_logged_once_with_its_reason_and_answered_in_one_line(store, caplog):
    broken = store.add(load_fails=True)
    caplog.set_level("INFO")

    async def retry(registry):
        failures = registry._version_sets["voice"].broken
        failures[1] = dataclasses.replace(failures[1], retry_at=0.0)
        await registry.rescan()

    def lines(words):
        return [one for one in caplog.records if one.getMessage().startswith(words)]

    async with running(store) as registry:
        for tries in range(2, 5):  # the first attempt is that of the start
            await retry(registry)
            assert len(store.loads) == tries
        with pytest.raises(NotReady) as refused:
            registry.get("voice")
        assert str(refused.value) == "`voice` cannot be loaded. The server's log says why."
        (line,) = lines("cannot be loaded")
        assert line.getMessage().endswith(": ValueError: voice/1 cannot be read: secret detail")
        assert len(lines("loading")) == 1
        broken.load_fails, broken.warm_fails = False, True  # for another reason
        await retry(registry)
        assert len(lines("cannot be loaded")) == 2


async def test_a_broken_version_that_is_written_anew_is_tried_at_once(store):
    broken = store.add(load_fails=True)
    async with running(store) as registry:
        await registry.rescan()
        assert len(store.loads) == 1
        with pytest.raises(NotReady, match="cannot be loaded"):
            registry.get("voice")
        broken.load_fails = False
        path = store.root / "voice/1/manifest.json"
        os.utime(path, ns=(1, 1))
        await registry.rescan()
        assert await ask(registry) == 1 and the_error(registry, 1) == ""


async def test_a_version_that_is_replaced_in_place_is_noticed_once(store, caplog):
    store.add()
    async with running(store) as registry:
        await registry.rescan()
        assert "its files changed" not in caplog.text
        os.utime(store.root / "voice/1/manifest.json", ns=(1, 1))
        for _ in range(3):
            await registry.rescan()
        assert await ask(registry) == 1 and len(store.loads) == 1
    (line,) = [record for record in caplog.records if "its files changed" in record.message]
    assert line.levelname == "WARNING" and line.fields == {"model": "voice", "version": 1}


@contextlib.asynccontextmanager
async def polling(store, monkeypatch, load=None, **settings):
    """A registry that looks all the time, and a function that waits for so many looks."""
    looks = itertools.count()

    def counted(root):
        polling.looks = next(looks)
        return scan(root)

    async def looked(times):
        goal = polling.looks + times
        await until(lambda: polling.looks >= goal)

    monkeypatch.setattr("serving.engine.registry.scan", counted)
    settings = Settings(poll_seconds=0.01, **settings)
    registry = ModelRegistry(store.root, settings, load or store.load)
    await registry.start()
    try:
        yield registry, looked
    finally:
        for control in store.controls.values():
            control.warm_open.set()
        await registry.stop(1.0)


@pytest.mark.parametrize("is_readable", [True, False])
async def test_only_what_was_refused_for_its_content_is_not_tried_again_until_that_changes(
    store, monkeypatch, is_readable
):
    store.add()
    tried = []

    def load(path):
        tried.append(path)
        cause = None if is_readable else OSError("the disk broke")
        raise UserError(f"{path} was changed:\n{store.root}/voice/1/x differs.") from cause

    async with polling(store, monkeypatch, load) as (registry, looked):
        await until(lambda: tried)
        if not is_readable:
            return await until(lambda: len(tried) == 3)
        await looked(20)
        assert len(tried) == 1
        assert the_error(registry, 1) == "voice/1 was changed: voice/1/x differs."  # no folder
        (store.root / "voice/1/model.json").write_text("{}")  # any file, not the manifest alone
        await until(lambda: len(tried) == 2)


@pytest.mark.parametrize("count", [1, 5])
async def test_models_that_never_get_warm_keep_no_other_from_being_loaded(
    store, monkeypatch, count
):
    monkeypatch.setattr("serving.engine.registry.REPORT_SECONDS", 0.01)
    for number in range(count):
        store.add(f"stuck{number}").warm_open.clear()
    store.add()
    async with polling(store, monkeypatch) as (registry, _):
        await until(lambda: states(registry) == {1: "AVAILABLE"})
        assert await ask(registry) == 1
        assert states(registry, "stuck0") == {1: "LOADING"}


async def test_loading_ends_after_its_time_and_is_not_begun_twice(store, monkeypatch):
    stuck = store.add("stuck")
    stuck.warm_open.clear()
    store.add()
    async with polling(store, monkeypatch, load_seconds=0.05) as (registry, looked):
        await registry.initial_load_done()
        assert registry.ready and registry.is_busy
        words = "It was not loaded and warmed within 0.05 seconds."
        assert the_error(registry, 1, "stuck") == words
        await looked(20)
        assert store.loads.count(("stuck", 1)) == 1
        stuck.warm_open.set()
        await until(lambda: states(registry, "stuck") == {1: "AVAILABLE"})
        assert store.loads.count(("stuck", 1)) == 2 and not registry.is_busy


def found(root):
    """The versions of each model that are seen in a folder."""
    versions = {name: [f.number for f in each] for name, each in scan(root).versions.items()}
    return {name: numbers for name, numbers in versions.items() if numbers}


def test_neither_a_folder_without_a_manifest_nor_one_with_a_pipe_is_a_version(store):
    store.add()
    (store.root / "voice/2").mkdir()
    (store.root / "file").write_text("")
    (store.root / "pipe/1").mkdir(parents=True)
    os.mkfifo(store.root / "pipe/1/manifest.json")
    assert found(store.root) == {"voice": [1]}


def vanish(root):
    root.rename(root.with_name("elsewhere"))


def unmount(root):
    vanish(root)
    root.mkdir()


def empty_the_model(root):
    shutil.rmtree(root / "voice")
    (root / "voice").mkdir()


def turn_into_a_file(root):
    vanish(root)
    root.write_text("no folder")


@pytest.mark.parametrize("fault", [vanish, unmount, empty_the_model, turn_into_a_file])
async def test_a_disk_that_vanishes_keeps_what_is_loaded_and_says_so(store, fault):
    store.add()
    async with running(store) as registry:
        fault(store.root)
        for _ in range(5):
            await registry.rescan()
        assert await ask(registry) == 1 and registry.ready
        assert states(registry) == {1: "AVAILABLE"}
        error = the_error(registry, 1)
        assert error.endswith("loaded models are still served")
        assert str(store.root) not in error
        if fault is vanish:  # and comes back
            store.root.with_name("elsewhere").rename(store.root)
            store.add(version=2)
            await registry.rescan()
            assert await ask(registry) == 2 and the_error(registry, 2) == ""


async def test_a_model_that_is_taken_away_alone_ends_after_a_while(store):
    store.add()
    store.add("digits", 1, FakeImages)
    async with running(store) as registry:
        shutil.rmtree(store.root / "voice")
        await registry.rescan()
        assert await ask(registry) == 1  # it may be being replaced
        for _ in range(4):
            await registry.rescan()
        assert registry.names() == ["digits"]
        with pytest.raises(NotFound):
            registry.get("voice")


@pytest.mark.parametrize("is_one_broken", [True, False])
async def test_without_its_highest_version_a_model_goes_back_but_not_past_a_broken_one(
    store, is_one_broken
):
    for version in (1, 2):
        store.add(version=version)
    async with running(store) as registry:
        assert await ask(registry) == 2
        if is_one_broken:
            store.add(version=3, load_fails=True)
            await registry.rescan()
        shutil.rmtree(store.root / "voice/2")
        await registry.rescan()
        assert await ask(registry) == (2 if is_one_broken else 1)


async def test_links_are_followed_inside_the_folder_and_not_out_of_it(store, tmp_path):
    store.add(version=1)
    outside = FakeModelStore(tmp_path / "outside")
    outside.add("secret", 1)
    (store.root / "alias").symlink_to("voice")
    (store.root / "secret").symlink_to(outside.root / "secret")
    (store.root / "voice/7").symlink_to(outside.root / "secret/1")
    (store.root / "broken").symlink_to("nowhere")
    (store.root / "round").symlink_to("round")
    (store.root / "voice/8").symlink_to("1")
    (store.root / "other").mkdir()
    (store.root / "other/1").symlink_to("../voice/1")
    store.kinds["other"] = FakeSound
    assert found(store.root) == {"alias": [1], "other": [1], "voice": [1]}
    assert scan(store.root).ignored["voice/8"] == "it is a link to `voice/1`, not NAME/8"
    async with running(store) as registry:
        assert registry.names() == ["alias", "other", "voice"]
        assert [registry.get(name).version for name in registry.names()] == [1, 1, 1]


async def test_stopping_waits_for_every_accepted_request(store):
    control = store.add()
    async with running(store) as registry:
        control.open.clear()
        tasks = [asyncio.create_task(ask(registry, seed)) for seed in range(20)]
        stream = registry.get("voice").stream(FRAMES["frames"][0])
        await until(control.entered.is_set)
        reading = asyncio.create_task(anext(stream))
        stopping = asyncio.create_task(registry.stop(5.0))
        await asyncio.sleep(0.02)
        assert not stopping.done() and not registry.ready
        control.open.set()
        assert await asyncio.gather(*tasks) == [1] * 20
        await reading
        assert not stopping.done()  # the stream is still open
        await stream.aclose()
        assert await stopping is True
        with pytest.raises(NotReady):
            await ask(registry)


async def test_stopping_gives_up_after_its_time_and_says_so(store):
    control = store.add()
    async with running(store) as registry:
        control.open.clear()
        first, waiting = (asyncio.create_task(ask(registry, seed)) for seed in range(2))
        await until(control.entered.is_set)
        assert await registry.stop(0.03) is False
        with pytest.raises(NotReady):
            await waiting
        assert registry.is_busy
        control.open.set()
        assert await first == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
async def test_a_request_whose_time_is_over_never_waits(store, seconds):
    control = store.add()
    async with running(store) as registry:
        with pytest.raises(DeadlineExceeded):
            await registry.get("voice").predict(FRAMES, timeout_seconds=seconds)
    assert control.calls == []


async def test_lengths_that_ask_for_too_much_sound_are_refused_before_they_wait():
    bundle = FakeSound()
    infos = {"num_samples": info(np.int32, low=1, high=10**6), "seed": info(np.int64)}
    outputs = bundle.signatures["serving_default"].outputs
    bundle.signatures = {"serving_default": Signature(infos, outputs)}

    asked = {"num_samples": np.full([4], 250_000, np.int32), "seed": np.arange(4)}
    with pytest.raises(TooLarge, match=r"at most 1 MiB of audio .* got 3"):
        await ServedModel(bundle, Settings(max_body_mib=1)).predict(asked)
    assert bundle.control.calls == []


# One rule for the names of models and versions: what is served is what is loaded and exported

NAMES = ("voice", "A", "7", "a.b_c-d", "v" * 128)
NO_NAMES = ("na me", "n\u00e9", "-dash", ".hid", "_x", "a+b", "a%20b", "v" * 129, "\uff41")
VERSIONS = ("0", "1", "10", "9" * 18)
NO_VERSIONS = (
    *("01", "00", "\u0663", "9" * 19, "1" * 23, "-1", "+1", "1.0", "1_0", "one", " 1", "\u00b2"),
)


def written(root, name, version):
    """A folder NAME/VERSION that looks like a bundle to everyone who looks for one."""
    folder = root / name / version
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "model.json").write_text("{}")
    (folder / "saved_model.pb").write_bytes(b"")
    return folder


def refusal(function, *given):
    with pytest.raises(UserError) as refused:
        function(*given)
    assert "\n" not in str(refused.value)
    return str(refused.value)


CASES = [*itertools.product(NAMES + NO_NAMES, ("1",)), *(("voice", v) for v in VERSIONS)]
CASES += [("voice", version) for version in NO_VERSIONS]


@pytest.mark.parametrize(("name", "version"), CASES)
def test_what_is_served_is_what_can_be_loaded_exported_and_asked_for(tmp_path, name, version):
    folder = written(tmp_path, name, version)
    seen = scan(tmp_path)
    is_served = [str(number) for number in found(tmp_path).get(name, ())] == [version]
    assert is_served == (name in NAMES and version in VERSIONS)
    loads = [refusal(load, folder) for load in (onepass.load, serving.load)]
    if is_served:
        assert seen.ignored == {}
        check_folder(folder, "`--out`")
        assert server_and_name(f"http://localhost:8501/{name}")[1] == name
        assert all("manifest.json" in line for line in loads)  # which is empty: not for its name
        return
    rule = VERSION_RULE if version in NO_VERSIONS else NAME_RULE
    place = f"{name}/{version}" if version in NO_VERSIONS else name
    assert list(seen.ignored) == [place] and rule in seen.ignored[place]
    for line in (*loads, refusal(check_folder, folder, "`--out`")):
        assert f"must end in NAME/VERSION, such as voice/1, got {folder}: " in line
        assert rule in line
    if name in NO_NAMES:
        assert NAME_RULE in refusal(server_and_name, f"http://localhost:8501/{name}")
        with serving.Client("http://127.0.0.1:1") as client:
            assert refusal(client.spec, name).startswith(f"`name` {NAME_RULE}, got ")


async def test_ignored_folders_are_named_once_with_the_reason(store, caplog):
    store.add()
    for name, version in (("na me", "1"), (".hid", "1"), ("voice", "\u0663")):
        written(store.root, name, version)
    (store.root / ".git" / "objects").mkdir(parents=True)  # no model of anyone
    (store.root / "lost+found").mkdir()
    async with running(store) as registry:
        for _ in range(3):
            await registry.rescan()
        assert registry.names() == ["voice"]
    lines = [one for one in caplog.records if one.getMessage().startswith("ignored: ")]
    assert sorted((one.fields["folder"], one.getMessage()) for one in lines) == [
        (".hid", f"ignored: the name of a model {NAME_RULE}, got `.hid`"),
        ("na me", f"ignored: the name of a model {NAME_RULE}, got `na me`"),
        ("voice/\u0663", f"ignored: a version {VERSION_RULE}, got `\u0663`"),
    ]
