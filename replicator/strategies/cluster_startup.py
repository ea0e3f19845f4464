"""Waiting until every task of a cluster has started, before TensorFlow does.

TensorFlow's own wait for a missing task has no usable limit and lets no signal through.
"""

import contextlib
import socket
import time

from replicator.launch.tf_config import Cluster
from replicator.runs.errors import UserError

_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 0.2


def wait_for_all(cluster: Cluster, join_seconds: float) -> None:
    """Returns once each other task has answered at its address.

    Until then this process answers at its own, in place of the server that TensorFlow starts next.

    Raises:
      UserError: this one's port is taken, or after `join_seconds` a task has not answered.
    """
    own = cluster.addresses[cluster.task][cluster.index]
    missing = {
        f"{kind} {index} ({address})": address
        for kind, addresses in cluster.addresses.items()
        for index, address in enumerate(addresses)
        if (kind, index) != (cluster.task, cluster.index)
    }
    deadline = time.monotonic() + join_seconds
    with contextlib.closing(_listener(own)):
        while missing := {n: a for n, a in missing.items() if refusal(a)}:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{cluster.task} {cluster.index} waited {join_seconds:g} s for the other tasks "
                    f"of TF_CONFIG; not there: {', '.join(missing)}."
                )
            time.sleep(_PAUSE_SECONDS)


def _listener(address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    port = int(address.rpartition(":")[2])
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UserError(f"Cannot listen at {address}, this task's own: {error}.") from None


def refusal(address: str) -> Exception | None:
    """Why nobody answers at HOST:PORT, None where somebody does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        return error
    return None
