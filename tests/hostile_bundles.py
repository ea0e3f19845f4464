"""Bundles that do what none may, loaded in a process of their own without the scan of programs."""

import ctypes
import fcntl
import functools
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from fake_bundle import FakeSound

# What a line says, each for the place that it is given.
ATTACKS = {
    "write": lambda place: Path(place).write_text("written"),
    "write_over": lambda place: os.truncate(place, 0),
    "remove": os.remove,
    "read": lambda place: Path(place).read_text(),
    "make_folder": os.mkdir,
    "rename": lambda place: os.rename(place, f"{place}.new"),
    "link": lambda place: os.link(place, f"{place}.new"),
    "link_softly": lambda place: os.symlink(place, f"{place}.new"),
    "change_mode": lambda place: os.chmod(place, 0o777),
    "list_folder": lambda place: os.listdir(os.path.dirname(place)),
    "read_environment_of_another": lambda place: Path(f"/proc/{place}/environ").read_bytes(),
    "connect": lambda place: socket.create_connection(("127.0.0.1", int(place))).close(),
    "send_datagram": lambda place: UDP().sendto(b"x", ("127.0.0.1", int(place))),
    "start": lambda place: subprocess.run([sys.executable, "-c", ""], check=True),
    "fork": lambda place: os.fork() or os._exit(0),
    "kill": lambda place: os.kill(int(place), 9),
    "set_owner": lambda place: fcntl.fcntl(0, fcntl.F_SETOWN, int(place)),
    "set_owner_struct": lambda place: fcntl.fcntl(0, F_SETOWN_EX, struct.pack("ii", 1, int(place))),
    "set_signal": lambda place: fcntl.fcntl(0, fcntl.F_SETSIG, 9),
    "set_asynchronous": lambda place: fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK),
    "notify": lambda place: fcntl.fcntl(0, fcntl.F_NOTIFY, 1),
    "lease": lambda place: fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "set_affinity": lambda place: os.sched_setaffinity(int(place), {0}),
    "share_memory": lambda place: mmap.mmap(-1, 2**20),
    "allocate": lambda place: [np.ones(2**20) for _ in iter(int, 1)],
    "hang": lambda place: threading.Event().wait(),
    "crash": lambda place: ctypes.string_at(0),
    "tell_environment": lambda place: tell(" ".join(sorted(os.environ))),
}
F_SETOWN_EX = 15
UDP = functools.partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)


def tell(words):
    raise RuntimeError(words)


def read_memory_of_another(place):
    """Read the memory of another process by the call that needs no file."""
    process_vm_readv = 310
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(process_vm_readv, int(place), None, 0, None, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def start_threads(place):
    """Starts threads until the system refuses; raises what it says, and the number of threads."""
    threading.stack_size(2**15)
    end = threading.Event()
    try:
        while True:
            threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError as error:
        raise RuntimeError(f"{error} after {len(os.listdir('/proc/self/task'))}") from error
    finally:
        end.set()


def start_threads_that_start_threads(place):
    """Threads that all start threads until none can; raises the most that there were."""
    threading.stack_size(2**15)
    end, most = threading.Event(), [0]

    def more():
        try:
            while not end.is_set():
                threading.Thread(target=more, daemon=True).start()
        except RuntimeError:
            most.append(len(os.listdir("/proc/self/task")))
            end.wait()

    threading.Thread(target=more, daemon=True).start()
    while len(most) < 100:
        time.sleep(0.01)
    end.set()
    raise RuntimeError(f"after {max(most)}")


def use_own_descriptors(place):
    """Do what a process may do with descriptors and processors of its own; raises if it may not."""
    copy = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    fcntl.fcntl(copy, fcntl.F_SETFD, fcntl.fcntl(copy, fcntl.F_GETFD))
    fcntl.fcntl(copy, fcntl.F_SETFL, fcntl.fcntl(copy, fcntl.F_GETFL) | os.O_NONBLOCK)
    os.close(copy)
    for process in (0, os.getpid()):
        os.sched_setaffinity(process, os.sched_getaffinity(0))


def say_nothing_true(place):
    """Sends bytes that are no message to whoever asked."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(60)


class Hostile(FakeSound):
    """A bundle whose model.json names its attack at each of `load`, `warm` and `call`."""

    def __init__(self, path, does):
        super().__init__(path.parent.name, int(path.name), path=path)
        self.does = does

    def _do(self, when):
        if when in self.does:
            name, place = self.does[when]
            (ATTACKS.get(name) or globals()[name])(place)

    def warm(self):
        self._do("warm")

    def call(self, signature, inputs):
        """Does it for the seed 13; other seeds are answered as by FakeSound."""
        if 13 in inputs["seed"]:
            self._do("call")
        return super().call(signature, inputs)

    def _sound(self, frames, seed, row, temperature):
        if seed == 14:
            self._do("stream")
        return super()._sound(frames, seed, row, temperature)


def load(path, backend="auto"):
    does = json.loads((Path(path) / "model.json").read_text())["does"]
    bundle = Hostile(Path(path), does)
    bundle._do("load")
    return bundle


class Program(FakeSound):
    """Runs the program of a folder for the seed 13."""

    def __init__(self, path):
        import tensorflow as tf

        super().__init__(path.parent.name, int(path.name), path=path)
        self._loaded = tf.saved_model.load(str(path))

    def call(self, signature, inputs):
        """Run the program if the seed says so, then FakeSound's."""
        if 13 in inputs["seed"]:
            self._loaded.signatures["serving_default"]()
        return super().call(signature, inputs)


def load_program(path, backend="auto"):
    return Program(Path(path))
