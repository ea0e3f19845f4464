"""A relay of bytes between a client and a server, which can fall silent or stand still."""

import contextlib
import socket
import threading


class Relay:
    """Passes bytes on between the first client and the server at a port.

    address: of the relay, at a port of its own or the one given. silent: once it is set, both sides
    hear nothing more. stands_still: set once `most` bytes of the client were passed on, after which
    no more of them are read.
    """

    def __init__(self, port, at=0, most=float("inf")):
        self._port, self._most, self._ends = port, most, []
        self._listener = socket.create_server(("127.0.0.1", at))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.silent, self.stands_still = threading.Event(), threading.Event()

    def __enter__(self):
        threading.Thread(target=self._begin, daemon=True).start()
        return self

    def _begin(self):
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._port))
        self._ends = [client, server]
        threading.Thread(target=self._pass_on, args=(server, client), daemon=True).start()
        self._pass_on(client, server, self._most)
        self.stands_still.set()

    def _pass_on(self, one, other, left=float("inf")):
        with contextlib.suppress(OSError):
            while left > 0 and (data := one.recv(65536)) and not self.silent.is_set():
                other.sendall(data)
                left -= len(data)

    def cut(self):
        """Ends both connections."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *exception):
        self.cut()
        for end in (*self._ends, self._listener):
            end.close()
