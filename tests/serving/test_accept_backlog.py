"""A listener that lets nobody in any more loses nobody who is in."""

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.http.accept_backlog import reject_new_connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="filters of sockets are Linux's")


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def listener(request):
    family, host = request.param
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listener.listen(8)
        listener.settimeout(10)
        yield listener


def client_of(listener, seconds=10):
    return socket.create_connection(listener.getsockname()[:2], seconds)


def test_who_is_in_is_heard_and_who_comes_later_waits(listener):
    with client_of(listener) as early:
        reject_new_connections(listener)
        with pytest.raises(TimeoutError):
            client_of(listener, 0.2)
        early.sendall(b"question")
        with listener.accept()[0] as taken:
            assert taken.recv(8) == b"question"
            taken.sendall(b"answer")
            assert early.recv(6) == b"answer"


def test_who_waited_finds_it_closed(listener):
    reject_new_connections(listener)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(client_of, listener)
        time.sleep(0.2)
        assert not late.done()
        listener.close()
        with pytest.raises(OSError, match="refused"):
            late.result(10)
