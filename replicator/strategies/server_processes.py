"""Processes that serve an asynchronous run: who is there, and when to end."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

import tensorflow as tf

from replicator.launch.tf_config import Cluster
from replicator.runs.errors import UserError

START_SECONDS = 60.0  # that the chief waits for the others
CHIEF_SECONDS = 600.0  # that a server waits for a chief to start
GONE_SECONDS = 10.0  # without an answer, after which a chief is taken to have ended
_CONNECT_SECONDS, _LOOK_SECONDS = 2.0, 0.5
# How a client of HTTP/2 begins, with empty settings; a server that lives sends its own.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def answers(address: str) -> bool:
    """Whether a process listens at HOST:PORT; it may be stopped."""
    try:
        _connected(address).close()
    except OSError:
        return False
    return True


def speaks(address: str) -> bool:
    """Whether a server that runs is at HOST:PORT."""
    try:
        with _connected(address) as connection:
            connection.sendall(_GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)


def serve(cluster: Cluster) -> NoReturn:
    """Serves as the task of TF_CONFIG that this process is, and ends the process.

    It ends with status 0 some GONE_SECONDS after the chief, or with 1 where no chief has started
    for CHIEF_SECONDS.
    """
    spec = tf.train.ClusterSpec(cluster.addresses)
    server = tf.distribute.Server(spec, cluster.task, cluster.index, protocol="grpc", start=True)
    name = f"{cluster.task} {cluster.index}"
    chief = cluster.addresses["chief"][0]
    begun = watch(lambda: answers(chief), CHIEF_SECONDS)
    if begun:
        watch(lambda: not answers(chief), float("inf"), lasting=GONE_SECONDS)
    said = "has ended" if begun else f"has not started for {CHIEF_SECONDS:.0f} seconds"
    print(f"The chief ({chief}) {said}; {name} ends.", file=sys.stderr, flush=True)
    # A server of TensorFlow cannot be stopped; at an ordinary exit it would be waited for.
    del server
    os._exit(0 if begun else 1)


def watch(holds: Callable[[], bool], seconds: float, lasting: float = 0.0) -> bool:
    """Whether a condition came to hold within a time, and held for as long as `lasting`."""
    start, since = time.monotonic(), None
    while time.monotonic() - start < seconds:
        now = time.monotonic()
        since = (since or now) if holds() else None
        if since is not None and now - since >= lasting:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def present(cluster: Cluster) -> list[int]:
    """The workers that are there, once all servers are; all workers, or, after a time, some.

    Raises:
      UserError: a parameter server, or every worker, is missing for START_SECONDS.
    """
    servers, workers = cluster.addresses["ps"], cluster.addresses["worker"]
    watch(lambda: not _silent(servers) and not _silent(workers), START_SECONDS)
    if _silent(servers):
        raise UserError(_missing("parameter server", servers, _silent(servers)))
    absent = _silent(workers)
    if len(absent) == len(workers):
        raise UserError(_missing("worker", workers, absent))
    return [index for index in range(len(workers)) if index not in absent]


def _silent(addresses: Iterable[str]) -> list[int]:
    return [index for index, address in enumerate(addresses) if not answers(address)]


def _missing(what: str, addresses: list[str], absent: list[int]) -> str:
    listed = ", ".join(f"{index} ({addresses[index]})" for index in absent)
    return f"Not there after {START_SECONDS:.0f} seconds: {what} {listed}."
