"""Whom a call comes from: the peer, or whom a proxy that is trusted names."""

import grpc_running
import pytest
from grpc_running import Running
from serve_load import predict, predict_request, until

from serving.grpc.server import client_address


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        (None, "127.0.0.1", "192.0.2.7", "192.0.2.7"),
        (None, "127.0.0.1", None, "127.0.0.1"),
        (None, "127.0.0.1", b"192.0.2.7", "127.0.0.1"),
        (None, "198.51.100.2", "192.0.2.7", "198.51.100.2"),  # anybody may write that
        (None, "127.0.0.1", "10.9.9.9, 192.0.2.7", "192.0.2.7"),  # nor what is before it
        (None, "127.0.0.1", "192.0.2.7, 127.0.0.1", "192.0.2.7"),
        (None, "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.0/8, 192.0.2.1", "10.1.2.3", "2001:db8::1, 192.0.2.1", "2001:db8::1"),
        ("10.0.0.0/8", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
        ("*", "198.51.100.2", "192.0.2.7, 10.0.0.1", "192.0.2.7"),
        ("", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
        ("proxy.example", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_names_a_client(monkeypatch, trusted, peer, forwarded, client):
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if trusted is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    metadata = {} if forwarded is None else {"x-forwarded-for": forwarded}
    assert client_address(peer, metadata) == client


def test_the_log_of_a_call_names_the_client_behind_the_proxy(tmp_path, caplog):
    caplog.set_level("INFO", "serving")
    with Running(grpc_running.store(tmp_path)) as running, running.channel() as channel:
        predict(channel, predict_request(), metadata=[("x-forwarded-for", "192.0.2.7")])
        until(lambda: [r for r in caplog.records if r.message == "answered"])
    (answered,) = (r for r in caplog.records if r.message == "answered")
    assert answered.fields["client"] == "192.0.2.7"
