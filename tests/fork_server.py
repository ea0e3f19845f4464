"""Runs Python files in forks of a process that has imported TensorFlow: each starts at once.

    python fork_server.py DESCRIPTOR

The descriptor is a socket of packets. A request is JSON, {"words": [FILE, WORD...], "environment":
{NAME: VALUE}}, with two descriptors: a socket for the answers and a file for the output. The
answers are the id of the process, once it leads a session of its own, and its exit status, once it
has ended. Nobody else gets that id before the asker has closed the socket.
"""

import json
import os
import runpy
import signal
import socket
import sys

LARGEST_REQUEST = 2**17  # bytes


def next_request(requests):
    """The next request, in a process of its own; None in the server once nobody can ask."""
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, LARGEST_REQUEST, 2)
        if not message:
            return None
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            return json.loads(message), *descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def become(words, environment, output):
    """Makes this process what a new interpreter would be, and gives the file to run."""
    for number, place in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(place, number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words
    sys.path[0] = os.path.dirname(words[0])
    return words[0]


def watch(pid, answers):
    """Answers how a process ended, and keeps its id until the answer was read."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    killed = ended.si_code != os.CLD_EXITED
    answers.send(str(-ended.si_status if killed else ended.si_status).encode())
    answers.recv(1)


def main(requests):
    """Serves; returns in a new process, with the file that it is to run, or in the end."""
    import tensorflow  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    request = next_request(requests)
    if request is None:
        return None
    asked, answers, output = request
    answers = socket.socket(fileno=answers)
    pid = os.fork()
    if pid:
        os.close(output)
        watch(pid, answers)
        os._exit(0)
    os.setsid()
    answers.send(str(os.getpid()).encode())
    answers.close()
    return become(**asked, output=output)


if __name__ == "__main__":
    script = main(socket.socket(fileno=int(sys.argv[1])))
    if script:
        runpy.run_path(script, run_name="__main__")
