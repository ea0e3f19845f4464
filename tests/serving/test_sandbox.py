"""A model in a process of its own computes as ever, and can do nothing else."""

import asyncio
import dataclasses
import gc
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from fake_bundle import HOP, FakeSound
from serve_load import until

from onepass.bundles.errors import InvalidInput, NotReady
from onepass.foundation.rules import UserError
from serving.engine.registry import ModelRegistry, bundle_loader
from serving.sandbox.confinement import SPARE_THREADS, most_threads
from serving.sandbox.fork_server import DTYPES, LENGTH, BadMessage, receive, send
from serving.sandbox.sandboxed_bundle import (
    KEPT_VARIABLES,
    SPARE_CONNECTIONS,
    ForkServer,
    ModelEnded,
    ModelFailed,
    SandboxedBundle,
)
from serving.settings import Settings

pytestmark = pytest.mark.integration

FRAMES = np.ones([1, 3, 3], np.float32)
LIMITS = Settings(sandbox_memory_gib=1.0, load_seconds=120.0, call_seconds=120.0, max_streams=1)
CONNECTIONS = 4
SECRETS = ("TF_VAR_password", "XLA_KEY", "OMP_TOKEN", "LANGUAGE_KEY", "MALLOC_SECRET", "AWS_KEY")


def threads_are_limited():
    """Return whether the kernel asks before a thread; a process of its own makes a listener."""
    code = "from serving.sandbox.confinement import _listener; print(_listener() is not None)"
    code = f"import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


@pytest.fixture(scope="module")
def fork_server():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEPASS_TOKEN", "secret-of-the-server")
        for name in SECRETS:
            patch.setenv(name, "secret-of-the-server")
        patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        made = ForkServer()
        made._launch()
    yield made
    made.close()


@pytest.fixture
def load(fork_server, tmp_path):
    """A function that loads a bundle that does something hostile when it is asked to."""

    def load(limits=LIMITS, name="voice", **does):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text(json.dumps({"does": does}))
        return SandboxedBundle(folder, fork_server, limits, {}, "hostile_bundles:load")

    return load


def inputs(bundle, seed=0):
    return bundle.check(
        "serving_default", {"frames": FRAMES, "num_frames": np.array([3]), "seed": np.array([seed])}
    )


def call(bundle, seed=0):
    return bundle.call("serving_default", inputs(bundle, seed))


def test_what_comes_out_is_what_comes_out_without(load):
    bundle, alone = load(), FakeSound()
    bundle.warm()
    assert (bundle.kind, bundle.name, bundle.version) == ("sound", "voice", 1)
    assert bundle.signatures == alone.signatures
    assert bundle.spec == json.loads(json.dumps(alone.spec))
    for seed in range(3):
        expected = alone.call("serving_default", inputs(bundle, seed))
        found = call(bundle, seed)
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    for condition, options in ((FRAMES[0], {"seed": 5}), (None, {"length": 40})):
        chunks = list(bundle.stream(condition=condition, **options))
        assert len(chunks) == len(list(alone.stream(condition=condition, **options)))
        expected = alone.sample(condition=condition, **options)
        np.testing.assert_array_equal(np.concatenate(chunks, 1), expected)
    waveform = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(bundle.frames(waveform), alone.frames(waveform))


def test_streams_that_are_left_give_their_connection_back(load):
    bundle = load()
    for _ in range(3 * CONNECTIONS):
        chunks = bundle.stream(condition=np.ones([100, 3], np.float32))
        next(chunks)
        chunks.close()
        bundle.stream(condition=FRAMES[0])  # one that nothing is asked of
    side_by_side = [bundle.stream(condition=FRAMES[0], seed=n) for n in range(CONNECTIONS)]
    assert all(next(chunks).shape[0] == 1 for chunks in side_by_side)


@pytest.mark.parametrize(
    ("does", "error"), [("write", "^PermissionError: "), ("allocate", "MemoryError")]
)
def test_errors_of_requests_come_back_as_what_they_are(load, does, error):
    bundle = load(call=(does, "/nowhere"))
    with pytest.raises(InvalidInput, match="`frames` must be given"):
        bundle.check("serving_default", {})
    with pytest.raises(ModelFailed, match=error):
        call(bundle, 13)
    assert call(bundle)["sound"].shape == (1, 3 * HOP)


@pytest.fixture
def places(tmp_path):
    """Return one of each thing that could be reached: a file, another process, a port."""
    (tmp_path / "secret").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {
            "file": str(tmp_path / "secret"),
            "new": str(tmp_path / "new"),
            "port": str(listener.getsockname()[1]),
            "process": str(os.getpid()),
        }


@pytest.mark.parametrize(
    ("what", "place"),
    [
        *((what, "new") for what in ("write", "make_folder")),
        *((what, "file") for what in ("write", "write_over", "remove", "rename", "link", "read")),
        *((what, "file") for what in ("link_softly", "change_mode", "list_folder", "start")),
        *((what, "file") for what in ("fork", "share_memory", "notify", "lease")),
        *((f"read_{what}_of_another", "process") for what in ("environment", "memory")),
        *((f"set_{what}", "process") for what in ("owner", "owner_struct", "signal", "affinity")),
        *((what, "process") for what in ("kill", "set_asynchronous")),
        *((what, "port") for what in ("connect", "send_datagram")),
    ],
)
def test_what_reaches_out_is_one_error_and_the_process_goes_on(load, places, what, place):
    bundle = load(call=(what, places[place]))
    with pytest.raises(ModelFailed, match=r"PermissionError: .*(denied|permitted)"):
        call(bundle, 13)
    assert call(bundle)["sound"].shape == (1, 3 * HOP) and bundle.is_alive
    assert sorted(os.listdir(os.path.dirname(places["new"]))) == ["secret", "voice"]
    with open(places["file"], encoding="ascii") as file:
        assert file.read() == "secret"


def test_descriptors_and_processors_of_its_own_are_its_own_to_set(load):
    bundle = load(call=("use_own_descriptors", ""))
    assert call(bundle, 13)["sound"].shape == (1, 3 * HOP)


def test_it_cannot_read_the_folder_of_another_model(load):
    load(name="other")
    other = load(name="other2").path.parent.parent / "other/1/model.json"
    with pytest.raises(ModelFailed, match="PermissionError"):
        load(load=("read", str(other)))


class Programs:
    """Programs that do what is asked for an input, as TensorFlow saves them."""

    @staticmethod
    def write(tf, place):
        tf.io.write_file(place, "written")
        return tf.constant(0)

    @staticmethod
    def allocate(tf, place):
        size, kept = tf.constant(2**10), tf.zeros([2**10])
        return tf.while_loop(
            lambda size, kept: tf.less(size, 2**30),
            lambda size, kept: (2 * size, tf.concat([kept, kept + 1.0], 0)),
            [size, kept],
            shape_invariants=[size.shape, tf.TensorShape([None])],
        )[1]

    @staticmethod
    def hang(tf, place):
        return tf.while_loop(lambda n: n >= 0, lambda n: (n + 1) % 7, [tf.constant(0)])[0]


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("write", ModelFailed, "PermissionDeniedError: "),
        # Which of the two depends on which thread asks for memory when there is none.
        ("allocate", (ModelFailed, ModelEnded), "ResourceExhaustedError: |ended"),
        ("hang", ModelEnded, "ended"),
    ],
)
def test_real_programs_that_do_what_none_may(fork_server, tmp_path, what, error, says):
    import tensorflow as tf

    path, place = tmp_path / "voice/1", tmp_path / "written"

    class Module(tf.Module):
        @tf.function(input_signature=[])
        def __call__(self):
            return getattr(Programs, what)(tf, str(place))

    tf.saved_model.save(Module(), str(path), signatures=Module().__call__)
    limits = dataclasses.replace(LIMITS, call_seconds=2.0 if what == "hang" else 120.0)
    bundle = SandboxedBundle(path, fork_server, limits, {}, "hostile_bundles:load_program")
    with pytest.raises(error, match=says) as raised:
        call(bundle, 13)
    assert not place.exists()
    if raised.type is ModelFailed:
        assert call(bundle)["sound"].shape == (1, 3 * HOP)


def test_a_real_bundle_draws_in_a_sandbox_what_its_model_draws(fork_server):
    from image_bundles import bundle_folder, model

    limits = Settings(load_seconds=250.0, call_seconds=250.0, max_streams=1)
    bundle = SandboxedBundle(bundle_folder("pixelcnn"), fork_server, limits, {"backend": "auto"})
    bundle.warm()
    (info,) = [i for n, i in bundle.signatures["compiled"].inputs.items() if n == "label"]
    labels = np.array([int(info.high), 0], np.int32)
    given = {"seed": np.array([5, 5]), "row": np.array([0, 1]), "label": labels}
    drawn = bundle.call("compiled", bundle.check("compiled", given))["picture"]
    expected = model("pixelcnn").sample(condition=[int(label) for label in labels], seed=5, num=2)
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("what", ["hang", "crash", "say_nothing_true"])
@pytest.mark.parametrize("when", ["call", "stream"])
def test_a_process_that_hangs_or_dies_or_lies_is_ended_once_and_reported(load, what, when, caplog):
    limits = dataclasses.replace(LIMITS, call_seconds=0.5 if what == "hang" else 120.0)
    bundle = load(limits, **{when: (what, "")})
    with pytest.raises(ModelEnded):
        call(bundle, 13) if when == "call" else list(bundle.stream(condition=FRAMES[0], seed=14))
    assert not bundle.is_alive
    with pytest.raises(NotReady, match="`voice` is being restarted"):
        call(bundle)
    reason = {"hang": "did not answer within 0.5 seconds", "crash": "ended"}
    lines = [r.getMessage() for r in caplog.records if "process of a model" in r.getMessage()]
    assert len(lines) == 1 and reason.get(what, "sent a head") in lines[0]
    ended = next(r.fields["ended"] for r in caplog.records if hasattr(r, "fields"))
    assert ended == ("by SIGSEGV" if what == "crash" else "by SIGKILL")


@pytest.mark.parametrize(
    ("when", "what", "seconds"), [("load", "hang", 1.0), ("warm", "crash", 120.0)]
)
def test_loading_without_end_is_ended(load, when, what, seconds):
    with pytest.raises(ModelEnded):
        load(dataclasses.replace(LIMITS, load_seconds=seconds), **{when: (what, "")}).warm()


def test_a_refusal_is_a_refusal_and_says_whether_the_disk_is_at_fault(fork_server, tmp_path):
    folder = tmp_path / "voice/1"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"is not a bundle, and holds no version of one\."):
        SandboxedBundle(folder, fork_server, LIMITS, {})
    (folder / "model.json").write_text("{}")
    with pytest.raises(UserError, match=r"is not a bundle: it has no manifest\.json\.") as refused:
        SandboxedBundle(folder, fork_server, LIMITS, {})
    assert isinstance(refused.value.__cause__, OSError)


def is_running(pid):
    return os.path.exists(f"/proc/{pid}")


def test_a_process_ends_with_the_last_reference_and_all_end_with_the_server_of_forks(load):
    bundle = load()
    pid = bundle.pid
    del bundle
    gc.collect()
    until(lambda: not is_running(pid))
    own = ForkServer()
    kept = SandboxedBundle(load(name="b").path, own, LIMITS, {}, "hostile_bundles:load")
    own.close()
    until(lambda: not is_running(kept.pid))
    assert not kept.is_alive


def test_a_finalizer_that_runs_while_the_lock_is_held_neither_waits_nor_is_lost(load, fork_server):
    bundle = load()
    pid = bundle.pid
    with fork_server._lock:  # as where the garbage collector runs in the midst of `start`
        bundle._stop()
    until(lambda: not is_running(pid))


@pytest.mark.slow
def test_a_fork_server_that_does_not_answer_is_ended_and_another_one_begins(load):
    path, own = load().path, ForkServer()
    with pytest.raises(ConnectionError, match=r"did not answer within 0\.01 seconds"):
        own.start({}, 1, 0.01)  # its imports alone take longer
    made = SandboxedBundle(path, own, LIMITS, {}, "hostile_bundles:load")
    assert call(made)["sound"].shape == (1, 3 * HOP)
    own.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_as_many_streams_as_a_sandbox_can_have_and_no_more(load, threads):
    most = 247 - threads
    with pytest.raises(
        UserError, match=rf"`--max-streams` must be at most {most} .*got {most + 1}"
    ):
        bundle_loader(Settings(threads=threads, max_streams=most + 1))
    bundle_loader(Settings(threads=threads, max_streams=1000, sandbox=False))
    bundle_loader(Settings(threads=threads, max_streams=most))


def test_a_process_takes_as_many_connections_as_may_be_asked_for(load):
    bundle = load(dataclasses.replace(LIMITS, sandbox_memory_gib=4.0, max_streams=246))
    streams = [bundle.stream(condition=FRAMES[0], seed=n) for n in range(249)]
    assert all(next(chunks).shape[0] == 1 for chunks in streams)


def test_an_answer_that_comes_byte_by_byte_ends_with_its_time(monkeypatch):
    data, clock = framed(b'{"arrays": []}'), [0.0]

    class Slow:
        """A connection that gives a byte a second."""

        def settimeout(self, seconds):
            assert 0.0 < seconds <= 5.0

        def recv_into(self, rest):
            rest[:1] = data[len(clock) - 1 : len(clock)]
            clock.append(clock[-1] + 1.0)
            return 1

    monkeypatch.setattr("serving.sandbox.fork_server.time.monotonic", lambda: clock[-1])
    with pytest.raises(TimeoutError):
        receive(Slow(), seconds=5.0)
    assert clock[-1] == 5.0


def test_only_known_variables_are_in_its_environment(load):
    bundle = load(call=("tell_environment", ""))
    with pytest.raises(ModelFailed) as raised:
        call(bundle, 13)
    assert not set(SECRETS) & set(str(raised.value).removeprefix("RuntimeError: ").split())
    with open(f"/proc/{bundle.pid}/environ", "rb") as file:  # as it was started
        started = file.read()
    names = {line.partition(b"=")[0].decode() for line in started.split(b"\0") if line}
    assert names <= KEPT_VARIABLES | {"PYTHONPATH"} and b"secret-of-the-server" not in started
    assert b"PYTHONPATH" in started and b"TF_ENABLE_ONEDNN_OPTS=0" in started


@pytest.mark.skipif(not threads_are_limited(), reason="needs Linux 5.5 and libseccomp 2.5")
@pytest.mark.parametrize(
    ("what", "times"), [("start_threads", 1), ("start_threads_that_start_threads", 2)]
)
def test_threads_without_end_end_in_an_error_and_the_process_goes_on(load, what, times):
    bundle = load(dataclasses.replace(LIMITS, sandbox_memory_gib=4.0), call=(what, ""))
    with pytest.raises(ModelFailed, match=r"after \d+$") as refused:
        call(bundle, 13)
    most = most_threads(1 + LIMITS.threads + LIMITS.max_streams + SPARE_CONNECTIONS)
    started = int(str(refused.value).split()[-1])
    assert SPARE_THREADS < started <= times * most
    assert call(bundle)["sound"].shape == (1, 3 * HOP) and bundle.is_alive


def test_packages_that_no_bundle_needs_are_not_there(load):
    """TensorFlow imports what it finds of them: tens of megabytes in every process."""
    bundle = load()
    with open(f"/proc/{bundle.pid}/maps") as file:
        mapped = file.read()
    assert "tensorflow" in mapped and "jaxlib" not in mapped


async def test_the_registry_starts_a_model_again_and_others_go_on(fork_server, load, tmp_path):
    load(name="bad", call=("crash", ""))
    load(name="good")
    for name in ("bad", "good"):
        (tmp_path / name / "1/manifest.json").write_text("{}")

    def loaded(path):
        return SandboxedBundle(path, fork_server, LIMITS, {}, "hostile_bundles:load")

    async def ask(registry, name, seed=0):
        asked = {"frames": FRAMES, "num_frames": np.array([3]), "seed": np.array([seed])}
        return (await registry.get(name).predict(asked))["sound"].shape

    registry = ModelRegistry(tmp_path, Settings(poll_seconds=0.05), loaded)
    await registry.start()
    await registry.initial_load_done()
    pids = set()
    for _ in range(2):
        bad = registry.get("bad")
        pids.add(bad.bundle.pid)
        with pytest.raises(ModelEnded):
            await ask(registry, "bad", 13)
        assert await ask(registry, "good") == (1, 3 * HOP)
        async with asyncio.timeout(60):
            while registry.versions("bad")[0].state != "AVAILABLE" or (registry.get("bad") is bad):
                await asyncio.sleep(0.01)
        assert await ask(registry, "bad") == (1, 3 * HOP)
    assert len(pids) == 2
    version_set = registry._version_sets["bad"]
    assert version_set.mended[1][1].delay_seconds == 0.1  # twice that of the first time
    await registry.stop(1.0)


# What goes between the two


def answered(data, **limits):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return receive(ours, **limits)


def framed(text):
    return LENGTH.pack(len(text)) + text


@pytest.mark.parametrize(
    ("data", "error"),
    [
        *((framed(text), BadMessage) for text in (b"{", b"[]", b"{}", b"[" * 5000)),
        *(
            (framed(b'{"arrays": [["x", %s]]}' % array), BadMessage)
            for array in (
                *(b'"|O", [1]', b'["<f4"], [1]', b'"<f4", [-1]', b'"<f4", [1e999]'),
                b'"<f4", [1000000, 1000000]',
            )
        ),
        *((data, (EOFError, BadMessage)) for data in (b"", b"\0", framed(b"{")[:-1])),
        (framed(b'{"arrays": [["x", "<f4", [2]]]}') + b"1234", (EOFError, BadMessage)),
    ],
)
def test_what_is_no_whole_message_is_refused_before_an_array_is_made(data, error):
    with pytest.raises(error):
        answered(data)


def test_arrays_of_every_dtype_and_shape_arrive_as_they_were():
    ours, theirs = socket.socketpair()
    for dtype in DTYPES.values():
        for shape in ((), (0,), (3,), (2, 0, 4), (2, 3, 4)):
            array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
            send(ours, {"a": 1}, {"x": array.T, "y": array})
            head, arrays = receive(theirs)
            assert head["a"] == 1 and arrays["x"].dtype == dtype
            np.testing.assert_array_equal(arrays["x"], array.T)
            np.testing.assert_array_equal(arrays["y"], array)
    ours.close()
    theirs.close()
