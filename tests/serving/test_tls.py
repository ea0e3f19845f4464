"""HTTP and gRPC over TLS alone, with the certificate that its files hold."""

import contextlib
import http.client
import signal
import socket
import ssl
import subprocess

import grpc
import http_running
import numpy as np
import pytest
from fake_bundle import CHANNELS, FakeModelStore
from serve_command import Command
from serve_load import INFER

import serving
from replicator.runs.errors import UserError
from serving.client.retrying import ClientError
from serving.engine import admission
from serving.engine.certificates import Certificate

INPUTS = {
    "frames": np.ones([1, 5, CHANNELS], np.float32),
    "num_frames": np.array([5], np.int32),
    "seed": np.array([3]),
}


def make_certificate(folder, name="one"):
    """Writes cert.pem and key.pem, signed by nobody but itself."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-keyout", "new-key.pem", "-out", "new-cert.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    for file in ("key.pem", "cert.pem"):
        (folder / f"new-{file}").rename(folder / file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tls")
    make_certificate(made)
    return made


@pytest.fixture(scope="module")
def server(folder):
    store = FakeModelStore(folder / "models")
    store.root.mkdir()
    store.add("voice")
    options = ("--tls-certificate", folder / "cert.pem", "--tls-key", folder / "key.pem")
    with Command(store, *options, "--probe-port", 0) as command:
        yield command


def shown(port, alpn):
    """The name in the certificate that a server shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        assert connection.selected_alpn_protocol() == alpn
        from cryptography import x509

        found = x509.load_der_x509_certificate(connection.getpeercert(True))
        return found.subject.rfc4514_string()


def test_both_protocols_answer_over_tls_alike(server, folder):
    port = server.grpc_address.rpartition(":")[2]
    found = []
    for address in (f"https://localhost:{server.port}", f"grpcs://localhost:{port}"):
        with serving.Client(address, authorities=folder / "cert.pem", retries=0) as client:
            found.append(client.predict("voice", INPUTS)["sound"])
            whole = np.concatenate(list(client.speak("voice", frames=INPUTS["frames"][0], seed=3)))
            np.testing.assert_allclose(whole, found[0][0], atol=1e-3)
    np.testing.assert_array_equal(*found)


def test_a_certificate_that_nobody_vouches_for_is_refused_by_the_client(server):
    for address in (f"https://localhost:{server.port}", f"grpcs://{server.grpc_address}"):
        with serving.Client(address, retries=0) as client, pytest.raises(ClientError):
            client.models()


def test_both_protocols_refuse_plain_words(server):
    with (
        pytest.raises((http.client.HTTPException, OSError)),
        contextlib.closing(server.connection()) as connection,
    ):
        connection.request("GET", "/healthz")
        connection.getresponse()
    with server.channel() as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_probes_stay_without_tls(server):
    connection = http.client.HTTPConnection(server.probe_address, timeout=20)
    connection.request("GET", "/readyz")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_new_certificate_is_shown_without_a_restart(server, folder):
    port = int(server.grpc_address.rpartition(":")[2])
    addresses = ((server.port, "http/1.1"), (port, "h2"))
    before = [shown(*address) for address in addresses]
    make_certificate(folder, "two")
    assert before == ["CN=one"] * 2
    assert [shown(*address) for address in addresses] == ["CN=two"] * 2
    (folder / "key.pem").write_text("no key")
    assert [shown(*address) for address in addresses] == ["CN=two"] * 2
    assert "the certificate stays as it was" in server.process.output()


def test_who_does_not_shake_hands_makes_room(folder, tmp_path, monkeypatch):
    make_certificate(tmp_path)
    monkeypatch.setattr(admission, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(admission, "FIRST_SECONDS", 0.0)  # who is silent makes room at once
    files = {"tls_certificate": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    store = http_running.store(tmp_path / "models")
    with http_running.Running(store, **files) as running, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(running.connection()) for _ in range(4)]
        trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        for path, status in (("/healthz", 200), ("/v1/models", 200)):
            connection = http.client.HTTPSConnection(
                "localhost", running.port, timeout=20, context=trusted
            )
            connection.request("GET", path)
            assert connection.getresponse().status == status
            connection.close()
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""  # the longest silent had to go


def test_what_was_accepted_is_answered_when_the_server_leaves(tmp_path):
    make_certificate(tmp_path)
    (tmp_path / "models").mkdir()
    store = FakeModelStore(tmp_path / "models")
    store.add("voice", seconds=3.0)
    options = ("--tls-certificate", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with Command(store, *options, "--probe-port", 0) as command:
        connection = http.client.HTTPSConnection("localhost", command.port, context=trusted)
        connection.request("POST", "/v2/models/voice/infer", INFER)
        probes = http.client.HTTPConnection(command.probe_address, timeout=20)
        page = b""
        while b'onepass_calls_running{model="voice"} 1.0' not in page:
            probes.request("GET", "/monitoring/prometheus/metrics")
            page = probes.getresponse().read()
        probes.close()
        assert command.ended(signal.SIGTERM, 30) == 0
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("words", ["no certificate", ""])
def test_what_is_no_certificate_is_one_line(mistake, tmp_path, words):
    make_certificate(tmp_path)
    (tmp_path / "cert.pem").write_text(words)
    options = ("--tls-certificate", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    (tmp_path / "models").mkdir()
    assert "Cannot use " in mistake("serve", tmp_path / "models", *options)
    half = mistake("serve", tmp_path / "models", *options[:2])
    assert half == "`--tls-certificate` and `--tls-key` must be given together."


def test_a_certificate_of_another_key_is_refused(tmp_path):
    make_certificate(tmp_path)
    key = (tmp_path / "key.pem").read_bytes()
    make_certificate(tmp_path)
    (tmp_path / "key.pem").write_bytes(key)
    with pytest.raises(UserError, match="for TLS"):
        Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
