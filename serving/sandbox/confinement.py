"""Confinement of a process that runs an untrusted model, its threads included.

It uses mechanisms that a process cannot undo: resource limits, a list of allowed system calls
(seccomp), and a list of paths that it may read (Landlock, if available). RLIMIT_NPROC counts all
processes of a user and does not apply to root, so the kernel asks the parent before the process
starts a thread (seccomp's user notification: Linux 5.5, libseccomp 2.5).
"""

import ctypes
import errno
import fcntl
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onepass.foundation.rules import UserError

LIBRARY = "libseccomp.so.2"
NOTIFY = 0x7FC00000  # SCMP_ACT_NOTIFY
RECEIVE, RESPOND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND
NOTIFICATION_BYTES = 80
CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
SPARE_THREADS, THREADS_PER_PROCESSOR = 512, 16  # in addition to one per connection
HELP = "serve bundles that you trust with `--no-sandbox`"
MOST_OPEN_FILES = 320  # connections, and files read while loading
CALLS = """
    access arch_prctl brk clock_getres clock_gettime clock_nanosleep close dup epoll_create1
    epoll_ctl epoll_pwait epoll_wait eventfd2 exit exit_group faccessat faccessat2 fadvise64
    fstat fstatfs futex get_mempolicy get_robust_list getcpu getcwd getdents getdents64 getegid
    geteuid getgid getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage
    gettid gettimeofday getuid lseek lstat madvise membarrier mincore mprotect mremap munmap
    nanosleep newfstatat pipe2 poll ppoll pread64 preadv pselect6 read readlink readlinkat readv
    recvfrom restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam
    sched_getscheduler sched_yield select sendto set_robust_list
    set_tid_address sigaltstack stat statfs statx sysinfo time times uname write writev
"""
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(number)
EQUAL_UNDER_MASK = 7  # SCMP_CMP_MASKED_EQ
INT = 0xFFFFFFFF
WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000  # last: O_TMPFILE
# Allowed commands of fcntl: not F_SETOWN, F_SETSIG and O_ASYNC, with which the kernel signals
# another process for this one, and no leases and locks of files that others read.
FCNTL = (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL)
CLONE_THREAD, MAP_TYPE, MAP_PRIVATE, PR_SET_NAME = 0x10000, 0xF, 2, 15
# Number of Landlock's file rights, by the first version of its interface that has them.
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
NET_VERSION, SCOPE_VERSION = 4, 6
READ_FILE, READ_FOLDER = 1 << 2, 1 << 3
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH, QUERY_VERSION = 1, 1


def most_threads(connections: int) -> int:
    """Return the most threads of a process; TensorFlow starts several per processor and program."""
    return SPARE_THREADS + connections + THREADS_PER_PROCESSOR * (os.cpu_count() or 1)


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
    """Return a descriptor with questions for new threads; None where the kernel asks none."""
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


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def check_available() -> None:
    """Raise UserError unless this is Linux with libseccomp, which `confine` needs."""
    if sys.platform != "linux":
        raise UserError(f"The sandbox of models needs Linux; {HELP}.")
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UserError(f"The sandbox of models needs {LIBRARY} (libseccomp2); {HELP}.") from error


def confine(
    readable: Iterable[Path], memory_bytes: int, asker: socket.socket | None = None
) -> None:
    """Confine this process, which must have one thread, and all threads that it starts later.

    Afterwards it can start no process, open no file for writing, open no socket and, if the kernel
    has Landlock, read only beneath `readable`. The process at the other end of `asker`, which is
    closed here, decides on every new thread; None: threads are not limited.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("Only a process of one thread can be confined.")
    limits = {"FSIZE": 0, "CORE": 0, "NOFILE": MOST_OPEN_FILES, "DATA": memory_bytes}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    libc = ctypes.CDLL(None, use_errno=True)
    _check_result(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    if asker is not None:
        with asker:
            listener = _listener()
            if listener is not None:  # for `answer`
                socket.send_fds(asker, [b"threads"], [listener])
                os.close(listener)
    _restrict_folders(libc, readable)
    _restrict_calls()


def _restrict_folders(libc: Any, readable: Iterable[Path]) -> None:
    version = libc.syscall(CREATE_RULESET, None, 0, QUERY_VERSION)
    if version < 1:
        return
    # A kernel rejects rights and fields that are newer than its version of Landlock.
    files = (1 << max(bits for first, bits in FILE_RIGHTS.items() if first <= version)) - 1
    has_net, has_scope = version >= NET_VERSION, version >= SCOPE_VERSION
    handled = (ctypes.c_uint64 * 3)(files, 3 * has_net, 3 * has_scope)
    size = 8 * (1 + has_net + has_scope)
    ruleset = _check_result(libc.syscall(CREATE_RULESET, handled, size, 0))
    for path in readable:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = READ_FILE | READ_FOLDER if path.is_dir() else READ_FILE
        rule = _PathRule(rights, opened)
        _check_result(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0))
        os.close(opened)
    _check_result(libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _restrict_calls() -> None:
    seccomp = ctypes.CDLL(LIBRARY)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(REFUSE | errno.EPERM))

    def rule(action: int, name: str, *compared: tuple[int, int, int]) -> None:
        number, count = seccomp.seccomp_syscall_resolve_name(name.encode()), len(compared)
        each = (_Comparison(n, EQUAL_UNDER_MASK, mask, value) for n, mask, value in compared)
        rules = (_Comparison * count)(*each)
        if number >= 0:  # otherwise this architecture has no such call
            kind = ctypes.c_uint32(action)
            error = seccomp.seccomp_rule_add_array(context, kind, number, count, rules)
            if error:
                raise OSError(-error, os.strerror(-error), name)

    for name in CALLS.split():
        rule(ALLOW, name)
    rule(ALLOW, "open", (1, WRITING, os.O_RDONLY))
    rule(ALLOW, "openat", (2, WRITING, os.O_RDONLY))
    rule(ALLOW, "mmap", (3, MAP_TYPE, MAP_PRIVATE))  # the limit on DATA excludes shared memory
    rule(ALLOW, "clone", (0, CLONE_THREAD, CLONE_THREAD))
    rule(REFUSE | errno.ENOSYS, "clone3")  # so that the C library falls back to `clone`
    rule(ALLOW, "prctl", (0, INT, PR_SET_NAME))
    rule(ALLOW, "prlimit64", (0, INT, 0))
    for command in FCNTL:
        rule(ALLOW, "fcntl", (1, INT, command))
    rule(ALLOW, "fcntl", (1, INT, fcntl.F_SETFL), (2, os.O_ASYNC, 0))
    for name in ("tgkill", "kill", "sched_setaffinity"):
        rule(ALLOW, name, (0, INT, os.getpid()))
    rule(ALLOW, "sched_setaffinity", (0, INT, 0))  # the calling thread
    error = seccomp.seccomp_load(context)
    if error:
        raise OSError(-error, os.strerror(-error), "seccomp")
    seccomp.seccomp_release(context)


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "sandbox")
    return result
