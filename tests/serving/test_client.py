"""The client: what it gets is what the bundle gives, and what goes wrong it says in one line."""

import base64
import contextlib
import http.server
import io
import json
import socket
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
from fake_bundle import FakeDrawings, FakeModelStore, FakeSound
from grpc_running import Both
from http_running import store
from PIL import Image
from processes import ROOT
from relay import Relay
from serve_load import until

import onepass
from onepass import remote_model
from onepass.foundation.rules import UserError
from onepass.remote_model import RemoteModel
from pixelcnn.data.captions import encode_caption
from serving import Client
from serving.client.calls import ClientError, Deadline, RetryableError, Retrying, Stream

TOKEN = "a token of sixteen characters"
NOWHERE = "http://127.0.0.1:1"
HALF_STEP = 0.5 / 32767.5
FRAMES = np.linspace(-1, 1, 120, dtype=np.float32).reshape(40, 3)


@contextlib.contextmanager
def served(kind, root, endless=False):
    """A server of `voice` and `shapes`; yields its address of a protocol and itself."""
    models = store(root)
    models.controls["voice", 1].endless = endless
    with Both(models) as running:
        yield f"{kind}://127.0.0.1:{running.port_of[kind]}", running


@pytest.fixture(scope="module", params=["http", "grpc"])
def address(request, tmp_path_factory):
    with served(request.param, tmp_path_factory.mktemp("models")) as (address, _):
        yield address


@pytest.fixture
def client(address):
    with Client(address, retries=0, timeout_seconds=10) as client:
        yield client


@contextlib.contextmanager
def scripted(*answers):
    """An HTTP server that answers with one (status, headers, body) after the other, the last again
    and again; a body may be an iterator of parts. `asked` holds the paths."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, body = answers[min(len(asked), len(answers)) - 1]
            parts, length = ([body], len(body)) if isinstance(body, bytes) else (body, 1_000_000)
            self.send_response(status)
            for name, value in {**headers, "content-length": length}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for part in parts:
                    self.wfile.write(part)
            self.close_connection = True

        do_POST = do_GET  # noqa: N815 - as http.server calls it

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            yield types.SimpleNamespace(address=address, asked=asked)
        finally:
            server.shutdown()


BUSY = (503, {"retry-after": "0"}, b'{"error": "The queue is full."}')
LIMITED = (429, {"retry-after": "0"}, b'{"error": {"message": "Too often."}}')
LISTED = (200, {}, b'{"data": [{"id": "voice"}]}')


def refusal(*answers, call=lambda client: client.models(), **options):
    """The error of a client that gets these answers, and how often it asked."""
    with scripted(*answers) as server, Client(server.address, **options) as client:
        with pytest.raises(ClientError) as raised:
            call(client)
        return raised.value, len(server.asked)


def speak(client):
    return client.speak("voice", frames=FRAMES)


def draw(client):
    return list(client.draw("shapes", num=3))


def drawn(side, declared_side):
    """The line of an image that says that it has that side."""
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    png = base64.b64encode(file.getvalue()).decode()
    line = {"picture": 0, "side": declared_side, "last": True, "png": png}
    return 200, {}, json.dumps(line).encode() + b"\n"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# What it gets


def test_lists_become_what_the_signature_asks_for(client):
    got = client.predict("shapes", {"label": [3], "seed": [1]})
    assert (got["picture"] == 61).all() and got["picture"].shape == (1, 16, 16, 3)


def test_models_are_listed_and_described(client):
    assert [(m["id"], m["kind"]) for m in client.models()] == [
        ("shapes", "picture"),
        ("voice", "sound"),
    ]
    assert client.spec("voice")["sample_rate_hz"] == FakeSound.sample_rate_hz
    shape = client.signatures("voice")["serving_default"]["frames"].shape
    assert shape == (None, None, 3)


def test_sound_comes_in_chunks_and_is_the_bundles(client):
    with client.speak("voice", frames=FRAMES, seed=4, row=2, speaker="ben") as speech:
        chunks = list(speech)
    expected = FakeSound().sample(condition=FRAMES, seed=4, row=2)[0]
    assert speech.sample_rate_hz == FakeSound.sample_rate_hz
    assert {chunk.dtype for chunk in chunks} == {np.dtype(np.float32)}
    assert np.abs(np.concatenate(chunks) - expected).max() <= HALF_STEP + 1e-7


def test_a_sound_may_be_shorter_than_its_frames(client):
    seconds = 50 / FakeSound.sample_rate_hz
    assert sum(map(len, client.speak("voice", frames=FRAMES, seconds=seconds))) == 50


def test_a_recording_is_spoken_again(tmp_path):
    waveform = np.sin(np.arange(200) / 5).astype(np.float32)
    soundfile.write(tmp_path / "a.flac", waveform, FakeSound.sample_rate_hz, subtype="PCM_16")
    with served("http", tmp_path / "models") as (address, _), Client(address) as client:
        assert "text" in client.examples("voice")[0]
        spoken = np.concatenate(list(client.speak("voice", recording=tmp_path / "a.flac")))
        with pytest.raises(UserError, match=r"Cannot read .*b\.flac"):
            client.speak("voice", recording=tmp_path / "b.flac")
    frames = FakeSound().frames(waveform)
    assert np.abs(spoken - FakeSound().sample(condition=frames)[0]).max() < 1e-3


def test_images_come_scale_by_scale(client):
    drawn = list(client.draw("shapes", label="class 2", num=2, seed=3))
    assert [(d.image, d.side, d.last) for d in drawn] == [
        *((0, 8, False), (0, 16, True), (1, 8, False), (1, 16, True))
    ]
    assert [int(d.pixels.max()) for d in drawn] == [43, 43, 44, 44]
    assert drawn[1].pixels.shape == (16, 16, 3) and drawn[1].pixels.dtype == np.uint8


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("taken", [0, 1])
def test_the_first_chunk_is_here_before_the_last_is_made_and_leaving_stops_the_server(
    kind, taken, tmp_path
):
    with served(kind, tmp_path, endless=True) as (address, running), Client(address) as client:
        with client.speak("voice", frames=FRAMES) as speech:
            for _ in range(taken):
                next(speech)  # of a sound without end
        until(lambda: not running.registry.is_busy)


# What goes wrong


NEAR = "no model `voise`; did you mean `voice`"
COUNT = np.array([40], np.int32)
NO_NUMBERS = {"frames": FRAMES[None] * np.nan, "num_frames": COUNT}


@pytest.mark.parametrize(
    ("method", "words", "given", "line", "code"),
    [
        ("spec", ["voise"], {}, NEAR, "not_found"),
        ("predict", ["voise", {}], {}, NEAR, "not_found"),
        ("speak", ["voise"], {}, NEAR, "not_found"),
        ("draw", ["voise"], {}, NEAR, "not_found"),
        ("predict", ["voice", {"seed": COUNT}], {"version": 7}, "version 7", ""),
        ("predict", ["voice", NO_NUMBERS], {}, "`frames` must be finite", "invalid_input"),
        ("predict", ["voice", {"num_frames": [[1], [2, 3]]}], {}, "`num_frames` must be rect", ""),
        ("speak", ["voice"], {"frames": FRAMES * np.nan}, "`frames` must be fini", ""),
        ("speak", ["voice"], {"seconds": np.inf}, "`seconds` must be finite, got", ""),
        ("speak", ["voice"], {"temperature": np.nan}, "`temperature` must be finite, got", ""),
        ("speak", ["voice"], {"frames": [[1.0, 2.0], [1.0]]}, "be rectangular", ""),
        ("speak", ["voice"], {"frames": [["x", "y", "z"]]}, "be rectangular", ""),
        ("draw", ["shapes"], {"map": [[1, 2], [1]]}, "`map` must be rectangular", ""),
        ("speak", ["shapes"], {"frames": FRAMES}, "image", ""),
        ("draw", ["voice"], {}, "sound|images", ""),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(client, method, words, given, line, code):
    with pytest.raises(UserError, match=line) as refused:
        list(getattr(client, method)(*words, **given))
    assert "\n" not in str(refused.value)
    assert not code or refused.value.code == code


ODD = [(200, {"content-type": "text/html"}, b"<html>"), (404, {}, b"<html>"), (302, {}, b"")]


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        *((answer, call) for answer in ODD for call in (Client.models, speak, draw)),
        ((200, {}, b'{"data": [NaN]}'), Client.models),
        ((200, {}, b'{"sample_rate_hz": Infinity}'), lambda client: client.spec("voice")),
        ((200, {}, b'{"picture": 0, "side": NaN, "png": ""}'), draw),
        (drawn(10_000, 10_000), draw),  # measured before it is decoded
        *((drawn(10_000, 8), draw), (drawn(8, 16), draw)),
    ],
)
def test_what_is_no_server_of_models_is_refused(answer, call):
    assert "is not a server of these models" in str(refusal(answer, call=call)[0])


def test_a_model_json_that_is_none_is_an_error_of_the_protocol_over_grpc(tmp_path, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda *spec, **more: '{"sample_rate_hz": NaN}')
    with (
        served("grpc", tmp_path) as (address, _),
        Client(address) as client,
        pytest.raises(ClientError, match="The response cannot be read: NaN is not JSON"),
    ):
        client.speak("voice", frames=FRAMES, seconds=1.0)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_token_is_needed_and_must_be_right(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)
    with served(kind, tmp_path) as (address, _):
        for token, words in ((None, "requires a token"), ("wrong", "rejects the token")):
            with (
                Client(address, token=token) as client,
                pytest.raises(ClientError, match=words) as raised,
            ):
                client.models()
            assert raised.value.code == "unauthorized"
        with Client(address, token=TOKEN) as client:
            assert len(client.models()) == 2


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_where_there_is_no_server_the_line_says_so(scheme):
    address = f"{scheme}://127.0.0.1:{free_port()}"
    with (
        Client(address, retries=1) as client,
        pytest.raises(ClientError, match=f"There is no server at {address}") as raised,
    ):
        client.models()
    assert raised.value.code == "unreachable" and isinstance(raised.value, UserError)


ADDRESS = r"The address must be http://HOST:PORT\[/PATH\]"


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        *((each, {}, ADDRESS) for each in ("127.0.0.1:8500", "ftp://127.0.0.1", "http://")),
        *(
            (each, {}, ADDRESS)
            for each in ("http://host:port", "grpc://host", "http://u:word@host")
        ),
        *((each, {}, ADDRESS) for each in ("grpc://host:8500/voice", "http://host/voice?a=b")),
        (NOWHERE, {"retries": -1}, "`retries` must be at least 0, got -1"),
        (NOWHERE, {"timeout_seconds": 0}, "`timeout_seconds` must be above 0, got 0"),
        (NOWHERE, {"token": "a\nb"}, "`token` must be printable"),
    ],
)
def test_an_address_or_an_option_that_cannot_be_is_refused(address, options, words):
    with pytest.raises(UserError, match=words):
        Client(address, **options)


# Trying again


@pytest.mark.parametrize("refusal", [BUSY, LIMITED])
def test_a_busy_server_is_asked_again(refusal):
    with scripted(refusal, refusal, LISTED) as server, Client(server.address) as client:
        assert client.models() == [{"id": "voice"}]
        assert len(server.asked) == 3


def test_after_the_last_retry_the_servers_words_are_raised():
    error, asked = refusal(BUSY, retries=2)
    assert (str(error), error.code, asked) == ("The queue is full.", "overloaded", 3)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 504])
def test_what_will_not_change_is_not_asked_again(status):
    assert refusal((status, {}, b'{"error": "No."}'))[1] == 1


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_server_that_comes_late_is_waited_for(kind, tmp_path, monkeypatch):
    port, sleep, is_refused = free_port(), time.sleep, threading.Event()

    def ask():
        with Client(f"{kind}://127.0.0.1:{port}", retries=50) as client:
            return client.models()

    def pause(seconds):
        is_refused.set()
        sleep(min(seconds, 0.2))

    monkeypatch.setattr("time.sleep", pause)
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(ask)
        assert is_refused.wait(10)
        with served(kind, tmp_path) as (_, running), Relay(running.port_of[kind], at=port):
            assert len(came.result(20)) == 2


@pytest.mark.parametrize(
    ("seconds", "asked_for", "pauses"),
    [(60, [0.0, 3.0, 0.0], [pytest.approx(0.25, abs=0.25), 3.0]), (6.0, [6.5], [])],
)
def test_a_pause_is_no_shorter_than_the_server_asked_for_and_none_goes_beyond_the_deadline(
    monkeypatch, seconds, asked_for, pauses
):
    made, left = [], iter(asked_for)
    monkeypatch.setattr("time.sleep", made.append)

    def attempt():
        raise RetryableError(ClientError("busy", "overloaded"), next(left))

    with pytest.raises(ClientError, match="busy"):
        Retrying(len(asked_for) - 1 or 100).do(attempt, Deadline(seconds))
    assert made == pauses and all(made)


@pytest.mark.parametrize("address", ["http://models.example:8501", "http://127.0.0.1:{port}"])
def test_a_remote_server_is_asked_by_the_proxy_of_the_environment_and_the_own_never(
    address, monkeypatch
):
    with scripted(LISTED) as proxy, scripted(LISTED) as own:
        port = own.address.rpartition(":")[2]
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("http_proxy", proxy.address)
        with Client(address.format(port=port)) as client:
            assert client.models() == [{"id": "voice"}]
        assert (len(proxy.asked), len(own.asked)) == ((1, 0) if "example" in address else (0, 1))


# Deadlines and streams


def test_an_answer_that_never_comes_ends_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(address, timeout_seconds=0.3) as client,
            pytest.raises(ClientError, match=r"No response within 0\.3 s") as raised,
        ):
            client.models()
    assert raised.value.code == "deadline_exceeded"


def slowly(part, seconds=0.05):
    for _ in range(200):
        yield part
        time.sleep(seconds)


@pytest.mark.parametrize("call", [Client.models, lambda client: list(client.speak("voice"))])
def test_an_answer_that_drips_ends_at_the_deadline(call):
    answer = (200, {"content-type": "audio/L16;rate=16000"}, slowly(b"  "))
    assert "within 0.4 s" in str(refusal(answer, call=call, timeout_seconds=0.4)[0])


def test_a_stream_that_breaks_off_is_not_begun_again():
    answer = (200, {"content-type": "audio/L16;rate=16000"}, iter([b"\0\0\0"]))
    with scripted(answer, LISTED) as server, Client(server.address) as client:
        speech = client.speak("voice")
        assert np.allclose(next(speech), 1 / 65535)
        with pytest.raises(ClientError, match="broke off") as raised:
            list(speech)
        assert raised.value.code == "broken_off" and len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"error": "The model failed."}\n', "The model failed."), (b"", "0 of 3 images")],
)
def test_images_that_stop_coming_are_missed(body, words):
    assert words in str(refusal((200, {}, body), call=draw)[0])


@pytest.mark.integration
def test_the_client_needs_no_tensorflow_and_nothing_of_the_server():
    code = (
        "import sys, serving\n"
        "for scheme in ('http', 'grpc'): serving.Client(f'{scheme}://127.0.0.1:1').close()\n"
        "print([m for m in ('tensorflow', 'starlette', 'uvicorn', 'orjson', 'wavenet')"
        " if m in sys.modules])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# The command


def test_the_command_writes_sounds_and_their_images(address, tmp_path, capsys):
    np.save(tmp_path / "mel.npy", FRAMES)
    words = ["--mel", tmp_path / "mel.npy", "--num", "2", "--seed", "3", "--speaker", "anna"]
    status = onepass.main(
        ["sample", f"{address}/voice", "--out", str(tmp_path / "out"), *map(str, words)]
    )
    assert status == 0
    for row in range(2):
        sound, rate_hz = soundfile.read(tmp_path / f"out/mel_3_{row}.wav", dtype="int16")
        expected = FakeSound().sample(condition=FRAMES, seed=3, row=row)[0]
        levels = np.rint(expected * 32767.5 - 0.5)
        assert np.abs(sound - levels).max() <= 1 and rate_hz == FakeSound.sample_rate_hz
        assert (tmp_path / f"out/mel_3_{row}.png").read_bytes()[1:4] == b"PNG"
    said = capsys.readouterr().out
    assert "mel_3_1.wav: " in said and "of sound in" in said


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_an_interrupted_command_keeps_what_has_come(kind, tmp_path, monkeypatch):
    np.save(tmp_path / "mel.npy", FRAMES)
    with served(kind, tmp_path / "models") as (address, _):
        words = ["--mel", str(tmp_path / "mel.npy"), "--out", str(tmp_path / "out")]
        begun = Stream.__next__
        taken = []

        def interrupted(stream):
            if taken:
                raise KeyboardInterrupt
            taken.append(begun(stream))
            return taken[0]

        monkeypatch.setattr(Stream, "__next__", interrupted)
        assert onepass.main(["sample", f"{address}/voice", *words]) == 130
    sound, _ = soundfile.read(tmp_path / "out/mel_0_0.wav")
    assert len(sound) == len(taken[0]) > 0


def test_the_command_draws_all_classes_in_turn_or_one(address, tmp_path):
    out = tmp_path / "out"
    common = ["sample", f"{address}/shapes", "--out", str(out)]
    assert onepass.main([*common, "--num", "9"]) == 0
    values = [
        np.asarray(Image.open(out / f"sample_0_{row}_class-{row}.png")).max() for row in range(9)
    ]
    assert values == [row * 20 + row for row in range(9)]
    again = [*common, "--num", "2", "--label", "3", "--seed", "1"]
    assert onepass.main([*again, "--overwrite"]) == 0
    values = [np.asarray(Image.open(out / f"sample_1_{row}_class-3.png")).max() for row in range(2)]
    assert values == [61, 62]
    for name in ("grid.png", "progression.png", "progression.gif"):
        assert (out / name).stat().st_size > 100
    for words, (number, value) in {"--label 3": (3, 65), "": (0, 5)}.items():
        more = ["--num", "1", "--guidance", "5", "--overwrite", *words.split()]
        assert onepass.main([*common, *more]) == 0
        assert np.asarray(Image.open(out / f"sample_0_0_class-{number}.png")).max() == value


def test_captions_are_asked_for_in_turn(tmp_path):
    models, captions = FakeModelStore(tmp_path), 5 * ["a", "b c"]
    models.add("drawings", kind=FakeDrawings)
    with (
        Both(models) as running,
        contextlib.closing(RemoteModel(f"{running.url}/drawings")) as remote,
    ):
        drawn = list(remote.stream(10, condition=captions, scales=True))
    labels = [encode_caption(caption).sum() % 10 for caption in captions]
    expected = [20 * label + row for row, label in enumerate(labels)]
    assert [int(scales[-1].max()) for scales in drawn] == expected


@pytest.mark.parametrize(
    ("kind", "condition", "named"),
    [
        *(("caption", "a dog", ["caption"]), ("class", "dog", ["label"])),
        *(("map", np.zeros([4, 4]), ["map"]), (None, None, [])),
    ],
)
def test_a_condition_goes_by_the_name_that_the_model_has_for_it(
    monkeypatch, kind, condition, named
):
    asked = {}

    class Known(Client):
        def spec(self, name):
            return {"kind": "picture", "condition": kind}

        def draw(self, name, **given):
            asked.update(given)
            return contextlib.nullcontext([])

    monkeypatch.setattr(remote_model, "Client", Known)
    model = RemoteModel("http://localhost:1/words")
    assert list(model.stream(condition=condition)) == []
    always = ("num", "seed", "temperature", "guidance")
    assert [name for name in asked if name not in always] == named
    assert all(np.array_equal(asked[name], condition) for name in named)
    with pytest.raises(UserError, match="`condition` must be one or 1, got 2"):
        list(model.stream(condition=[condition, condition]))


def test_the_command_says_in_one_line_what_is_wrong(address, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the retries
    out, nobody = ["--out", str(tmp_path / "out")], f"127.0.0.1:{free_port()}"
    for words, expected in (
        ([f"HTTP://{nobody}/voice", *out], f"There is no server at http://{nobody}."),
        ([f"{address.replace('://', 's://')}/voice", *out], "does not use TLS; its address begins"),
        ([f"{address}/voise", *out], "did you mean `voice`?"),
        ([address, *out], "The model must be"),
        ([f"{address}/voice", *out, "--label", "3"], "--label"),
        ([f"{address}/voice", *out, "--text", "a", "--example", "b"], "Give one of"),
        ([f"{address}/voice"], "--out"),
    ):
        assert onepass.main(["sample", *words]) == 2
        assert expected in capsys.readouterr().err.splitlines()[-1]
