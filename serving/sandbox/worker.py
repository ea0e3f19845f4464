"""The process of one model, which confines itself, loads the bundle, and answers on its sockets."""

import contextlib
import ctypes
import importlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.signature import Arrays
from onepass.foundation.errors import UserError
from serving.sandbox.confinement import confine
from serving.sandbox.messages import Head, receive, send

SYSTEM = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system"),
)
MOST_TEXT = 1000  # largest number of characters of an error


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
        send(connections[0], _facts(bundle))
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


def _facts(bundle: Any) -> Head:
    signatures = {name: signature.to_dict() for name, signature in bundle.signatures.items()}
    engine = getattr(bundle, "engine", "tensorflow")
    return {"kind": bundle.kind, "spec": bundle.spec, "signatures": signatures, "engine": engine}


def _serve(bundle: Any, connection: socket.socket) -> None:
    answers = _Answers(bundle)
    try:
        while True:
            head, arrays = receive(connection)
            try:
                answer, outputs = getattr(answers, head.pop("do"))(head, arrays)
            except Exception as error:
                answer, outputs = describe_error(error), {}
            send(connection, answer, outputs)
    except (EOFError, OSError):  # the server has ended
        os._exit(0)


class _Answers:
    def __init__(self, bundle: Any):
        self._bundle = bundle
        self._chunks: Iterator[Any] = iter(())

    def warm(self, head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        self._bundle.warm()
        with contextlib.suppress(AttributeError):  # no glibc
            ctypes.CDLL(None).malloc_trim(0)
        return {}, {}

    def call(self, head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        return {}, self._bundle.call(head["signature"], arrays)

    def frames(self, head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        return {}, {"frames": self._bundle.frames(arrays["waveform"])}

    def stream(self, head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        self._chunks = self._bundle.stream(condition=arrays.get("condition"), **head["options"])
        return {}, {}

    def chunk(self, head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        chunk = next(self._chunks, None)
        return ({"end": True}, {}) if chunk is None else ({}, {"chunk": chunk})

    def close(self, head: Head, arrays: Arrays) -> tuple[Head, Arrays]:
        if (close := getattr(self._chunks, "close", None)) is not None:  # generators have it
            close()
        self._chunks = iter(())
        return {}, {}
