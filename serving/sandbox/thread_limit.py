"""A limit on the threads of a single confined process, which resource limits cannot impose.

RLIMIT_NPROC counts all processes of a user, and does not apply to root. Instead, the kernel asks
the parent process before it starts a thread (seccomp's user notification, which needs Linux 5.5 and
libseccomp 2.5 or newer).
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct

LIBRARY = "libseccomp.so.2"
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000  # SCMP_ACT_ALLOW, SCMP_ACT_NOTIFY
RECEIVE, RESPOND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND
NOTIFICATION_BYTES = 80
CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
SPARE_THREADS, THREADS_PER_PROCESSOR = 512, 16  # in addition to one per connection


def most_threads(connections: int) -> int:
    """Return the largest number of threads allowed in a process with this number of connections.

    TensorFlow starts several threads per processor, and a few more for each compiled program.
    """
    return SPARE_THREADS + connections + THREADS_PER_PROCESSOR * (os.cpu_count() or 1)


def ask_for_threads(asker: socket.socket) -> None:
    """Make the kernel ask the process at the socket's other end before it starts a thread here.

    That process receives a descriptor, the listener, for `answer`. Threads remain unlimited if the
    kernel or the library does not support this. The socket is closed.
    """
    with asker:
        listener = _listener()
        if listener is not None:
            socket.send_fds(asker, [b"threads"], [listener])
            os.close(listener)


def answer(listener: int, pid: int, most: int) -> None:
    """Answer the kernel: the process `pid` may start a thread if it has fewer than `most`.

    Threads that are requested at the same time are counted only once they have started.
    """
    question = bytearray(NOTIFICATION_BYTES)
    try:
        fcntl.ioctl(listener, RECEIVE, question)
        (identity,) = struct.unpack_from("Q", question)
        is_allowed = len(os.listdir(f"/proc/{pid}/task")) < most
        number, flags = (0, CONTINUE) if is_allowed else (-errno.EAGAIN, 0)
        fcntl.ioctl(listener, RESPOND, bytearray(struct.pack("QqiI", identity, 0, number, flags)))
    except OSError:  # the process has ended
        pass


def _listener() -> int | None:
    """Return a descriptor that is readable when this process wants to start a thread, or None."""
    try:
        seccomp = ctypes.CDLL(LIBRARY)
        notify_fd = seccomp.seccomp_notify_fd
    except (OSError, AttributeError):
        return None
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ALLOW))
    number = seccomp.seccomp_syscall_resolve_name(b"clone")
    failed = seccomp.seccomp_rule_add_array(context, ctypes.c_uint32(NOTIFY), number, 0, None)
    failed = failed or seccomp.seccomp_load(context)
    listener = -1 if failed else notify_fd(context)
    if listener >= 0:
        listener = os.dup(listener)  # the library closes its own descriptor
    seccomp.seccomp_release(context)
    return listener if listener >= 0 else None
