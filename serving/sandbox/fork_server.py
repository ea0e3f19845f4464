"""The fork server: a process that imports TensorFlow, and then forks a process for each model.

The processes share memory that none of them has written to since the fork: libraries, and the
compiled engine for CPUs. The fork server does not run models. It cannot read the server's memory,
and has only some of its environment variables. A process confines itself, loads its bundle, and
answers messages: a head in JSON, followed by raw arrays. Nothing is unpickled, and all sizes in a
message are checked before its arrays are allocated.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from onepass.bundles import bundle
from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.signature import V2_DTYPES, Arrays
from onepass.foundation.rules import UserError
from serving.sandbox import confinement
from serving.sandbox.confinement import confine

Head = dict[str, Any]
MOST_BYTES = 2**30  # total size of the arrays in a message
MOST_HEAD_BYTES = 2**16
LENGTH = struct.Struct("<I")
DTYPES = {dtype.str: dtype for dtype in V2_DTYPES.values()}
SYSTEM = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system"),
)
MOST_TEXT = 1000  # largest number of characters of an error
MOST_REQUEST_BYTES = 2**16
MOST_CONNECTIONS = 250  # sockets per process; the kernel passes at most 253 descriptors at once
IMPORTS = ("tensorflow", "onepass.bundles.bundle")  # all that bundles need
UNUSED = ("jax", "keras")  # imported by TensorFlow if installed; no bundle needs them
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class BadMessage(ValueError):  # noqa: N818 - named as the errors of requests
    """Error for bytes that are not a message, or for a message that is too long."""


def send(connection: socket.socket, head: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Send a message; raise OSError if the connection fails or the socket's timeout is over."""
    given = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    described = [(name, array.dtype.str, array.shape) for name, array in given.items()]
    text = json.dumps({**head, "arrays": described}).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)
    for array in given.values():
        connection.sendall(_bytes_of(array))


def receive(
    connection: socket.socket, most_head_bytes: int = MOST_HEAD_BYTES, seconds: float | None = None
) -> tuple[Head, Arrays]:
    """Return the head and the arrays of the next message.

    Raises:
      BadMessage: the bytes are not a message, or the message is too long.
      EOFError, OSError: the connection has ended, or failed.
      TimeoutError: the whole message takes longer than `seconds`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, end))
    if length > most_head_bytes:
        raise BadMessage(f"a head of {length:,} bytes")
    try:
        head = json.loads(_exactly(connection, length, end))
        described = [(str(n), DTYPES[d], tuple(map(int, shape))) for n, d, shape in head["arrays"]]
        sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in described]
        if any(side < 0 for _, _, shape in described for side in shape):
            raise ValueError("a negative length")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadMessage("an invalid head") from error
    # Checked before memory is allocated, as a short head can ask for any number of bytes.
    if sum(sizes) > MOST_BYTES:
        raise BadMessage(f"arrays of {sum(sizes):,} bytes")
    arrays = {name: np.empty(shape, dtype) for name, dtype, shape in described}
    for array in arrays.values():
        _fill(connection, _bytes_of(array), end)
    return head, arrays


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _exactly(connection: socket.socket, length: int, end: float | None) -> bytes:
    data = bytearray(length)
    _fill(connection, memoryview(data), end)
    return bytes(data)


def _fill(connection: socket.socket, rest: memoryview, end: float | None) -> None:
    while len(rest):
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        count = connection.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]


def run(
    request: dict[str, Any], connections: list[socket.socket], asker: socket.socket | None = None
) -> NoReturn:
    """Confine the process, load a bundle, describe it on the first connection, and answer on all.

    This never returns; the process ends when a connection is closed, or if loading fails. `request`
    has the bundle's `path`, `memory_bytes`, `loader` as MODULE:FUNCTION, and its `arguments` by
    name.
    """
    try:
        module, _, function = request["loader"].partition(":")
        load = getattr(importlib.import_module(module), function)
        confine([*readable(), Path(request["path"])], request["memory_bytes"], asker)
        bundle = load(Path(request["path"]), **request["arguments"])
        signatures = {name: signature.to_dict() for name, signature in bundle.signatures.items()}
        facts = {"kind": bundle.kind, "spec": bundle.spec, "signatures": signatures}
        send(connections[0], facts | {"engine": getattr(bundle, "engine", "tensorflow")})
    except Exception as error:
        send(connections[0], describe_error(error))
        os._exit(1)
    for connection in connections[1:]:
        threading.Thread(target=_serve, args=(bundle, connection), daemon=True).start()
    _serve(bundle, connections[0])
    os._exit(0)


def readable() -> list[Path]:
    """Return the paths that the process may read: Python, its packages, and parts of the system.

    Packages are folders of `sys.path` that something was installed into, the packages imported so
    far, wherever they lie, and those that lie next to this one, as in a checkout.
    """
    installed = [path for path in map(Path, sys.path) if any(path.glob("*.dist-info"))]
    modules = [module for name, module in sys.modules.items() if "." not in name]
    # TensorFlow's path has None in it.
    imported = [path for each in modules for path in getattr(each, "__path__", ()) if path]
    own = [found.parent for found in Path(__file__).resolve().parents[2].glob("*/__init__.py")]
    return [*map(Path, (*SYSTEM, sys.prefix, sys.base_prefix, *imported)), *installed, *own]


def describe_error(error: Exception) -> Head:
    """Return the message that reports an error: its kind, and one line of text."""
    text = str(error).strip()
    if isinstance(error, InvalidInput | NotFound):
        kind = error.code
    elif isinstance(error, UserError):
        kind = "unreadable" if isinstance(error.__cause__, OSError) else "refused"
    else:
        kind, text = "failed", f"{type(error).__name__}: {(text or '?').splitlines()[0]}"
    return {"error": kind, "message": "".join(filter(str.isprintable, text))[:MOST_TEXT]}


def _serve(bundle: Any, connection: socket.socket) -> None:
    chunks: Iterator[Any] = iter(())

    def answer(head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        nonlocal chunks
        match head["do"]:
            case "warm":
                bundle.warm()
                with contextlib.suppress(AttributeError):  # no glibc
                    ctypes.CDLL(None).malloc_trim(0)
            case "call":
                return {}, bundle.call(head["signature"], arrays)
            case "frames":
                return {}, {"frames": bundle.frames(arrays["waveform"])}
            case "stream":
                chunks = bundle.stream(condition=arrays.get("condition"), **head["options"])
            case "chunk":
                chunk = next(chunks, None)
                return ({"end": True}, {}) if chunk is None else ({}, {"chunk": chunk})
            case "close":
                if (close := getattr(chunks, "close", None)) is not None:  # generators have it
                    close()
                chunks = iter(())
        return {}, {}

    try:
        while True:
            head, arrays = receive(connection)
            try:
                made, outputs = answer(head, arrays)
            except Exception as error:
                made, outputs = describe_error(error), {}
            send(connection, made, outputs)
    except (EOFError, OSError):  # the server has ended
        os._exit(0)


def main(descriptor: int, weights: str = "float32", backend: str = "auto") -> None:
    """Start and end processes as requested over a socket, until the server closes it."""
    control = socket.socket(fileno=descriptor)
    children = _Children()
    try:
        # No module: an import of it fails.
        sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]
        for name in IMPORTS:
            importlib.import_module(name)
        bundle.prepare(weights, backend)
    except Exception as error:
        control.recv(MOST_REQUEST_BYTES)
        control.send(json.dumps({"failed": describe_error(error)["message"]}).encode())
        os._exit(1)
    gc.collect()
    gc.freeze()  # otherwise, garbage collection in the forks would write to shared memory
    while children.watch(control):
        data, descriptors, _, _ = socket.recv_fds(control, MOST_REQUEST_BYTES, MOST_CONNECTIONS)
        if not data:
            break
        request = json.loads(data)
        if "end" in request:
            answer = {"status": children.end(request["end"])}
        else:
            answer = {"pid": children.start(request, control, descriptors)}
        control.send(json.dumps(answer).encode())
    for pid in children.most:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


class _Children:
    """The processes of models, and the descriptors by which they request threads.

    A process first sends its listener over a socket; the kernel then uses that for its requests.
    Sockets and listeners are stored by descriptor number.
    """

    def __init__(self) -> None:
        self.most: dict[int, int] = {}  # largest number of threads, by process
        self._askers: dict[int, tuple[socket.socket, int]] = {}
        self._listeners: dict[int, int] = {}

    def watch(self, control: socket.socket) -> bool:
        while True:
            poll = select.poll()
            for descriptor in (control.fileno(), *self._askers, *self._listeners):
                poll.register(descriptor, select.POLLIN)
            for descriptor, events in poll.poll():
                if descriptor == control.fileno():
                    return True
                if descriptor in self._askers:
                    asker, pid = self._askers.pop(descriptor)
                    with asker, contextlib.suppress(OSError):
                        _, found, _, _ = socket.recv_fds(asker, MOST_REQUEST_BYTES, 1)
                        self._listeners.update(dict.fromkeys(found, pid))
                elif events & select.POLLIN:
                    pid = self._listeners[descriptor]
                    confinement.answer(descriptor, pid, self.most.get(pid, 0))
                else:  # the process has ended
                    os.close(descriptor)
                    del self._listeners[descriptor]

    def start(self, request: dict[str, Any], control: socket.socket, descriptors: list[int]) -> int:
        own, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            for descriptor in descriptors:
                os.close(descriptor)
            theirs.close()
            self._askers[own.fileno()] = own, pid
            self.most[pid] = confinement.most_threads(len(descriptors))
            return pid
        try:
            control.close()
            own.close()
            for descriptor in (*self._askers, *self._listeners):  # descriptors of other processes
                os.close(descriptor)
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            run(request, sockets, theirs)
        finally:
            os._exit(1)

    def end(self, pid: int) -> int:
        """Kill a child and return its exit status, negative for a signal; 0 for any other id.

        The operating system does not reuse the id before this call.
        """
        if self.most.pop(pid, None) is None:
            return 0
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
