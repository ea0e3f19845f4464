"""A listening socket that takes no new client, and loses none that it has taken."""

import contextlib
import ctypes
import socket
import struct
import sys

SETTLE_SECONDS = 0.1  # in which handshakes end that had begun
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux, which Python does not name
# A program for the kernel's filter (linux/filter.h): the flags of a TCP segment are its byte 13,
# SYN is bit 1; a segment that has it is dropped, every other one is let through.
_LOAD_BYTE, _HAS_BITS, _RETURN = 0x30, 0x45, 0x06
_DROP_SYN = (
    (_LOAD_BYTE, 0, 0, 13),
    (_HAS_BITS, 0, 1, 2),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, 2**31),
)


def reject_new_connections(listener: socket.socket) -> None:
    """Ends handshakes before they begin, on Linux; those that have begun go on to their end.

    A client that comes later is not reset: it asks again, after a second, and finds the listener
    closed. Elsewhere nothing is done, and a client that connects in the instant before the
    listener is closed is reset.
    """
    if sys.platform != "linux":
        return
    lines = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _DROP_SYN))
    program = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(lines))
    with contextlib.suppress(OSError):  # a kernel that has no filters
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
