"""A gRPC server of fake bundles on loopback, in a thread of its own."""

import contextlib

import grpc
import http_running
import numpy as np
from fake_bundle import CHANNELS
from loops import InThread
from serve_command import is_discreet

from serving.grpc.server import make_server


class Running(InThread):
    """A gRPC server of loopback; its `address`, `port` and `server`."""

    async def start(self):
        self.server = make_server(self.registry, self.settings, self.metrics)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        await self.server.start()

    def complain(self, context):
        # grpc has one poller a process, which may still know the loop of a server before.
        if "PollerCompletionQueue" not in context or "Event loop is closed" not in context:
            super().complain(context)

    def channel(self, **options):
        return grpc.insecure_channel(self.address, [(f"grpc.{k}", n) for k, n in options.items()])

    def counted(self, status):
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "onepass_requests_total" and sample.labels["status"] == status
        )

    async def stop(self):
        await self.server.stop(0)


class Both(Running, http_running.Running):
    """A server of both protocols: `url`, `client` and `port` of HTTP, `address` of gRPC."""

    async def start(self):
        await Running.start(self)
        grpc_port = self.port
        await http_running.Running.start(self)
        self.port_of = {"http": self.port, "grpc": grpc_port}

    async def stop(self):
        await Running.stop(self)
        await http_running.Running.stop(self)


@contextlib.contextmanager
def refused(status, words=""):
    """Expects a call that ends with this status and these words; yields a list with the error."""
    caught = []
    try:
        yield caught
    except grpc.RpcError as error:
        caught.append(error)
        assert error.code().name == status, f"{error.code()}: {error.details()}"
        assert words in error.details(), error.details()
        assert is_discreet(error.details())
    else:
        raise AssertionError(f"the call was answered instead of ending with {status}")


def frames(rows=1, length=5):
    values = np.arange(rows * length * CHANNELS, dtype=np.float32)
    return values.reshape(rows, length, CHANNELS) / values.size
