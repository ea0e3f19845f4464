"""The server, `onepass serve MODELS`: HTTP and gRPC in one process and one event loop."""

import asyncio
import contextlib
import functools
import logging
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from onepass.foundation.errors import UserError
from onepass.foundation.server_address import TOKEN_VARIABLE
from serving import observability
from serving.engine.clients import read_tokens
from serving.engine.registry import ModelRegistry, scan
from serving.grpc.server import make_server
from serving.http.app import make_app, make_probes
from serving.http.server import HttpServer
from serving.observability import Metrics
from serving.sandbox.confinement import check_available
from serving.settings import Settings

LOG = logging.getLogger(__name__)
ACCELERATOR = Path("/dev/nvidiactl")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(settings: Settings, models: Path) -> int:
    """Serve until a signal arrives; return the exit status of `onepass serve`."""
    check(settings, models)
    metrics = Metrics()
    log = observability.configure_logging(
        settings.log_format, settings.log_level, on_lost=metrics.log_lines_lost.inc
    )
    observability.configure_tracing()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if settings.sandbox and ACCELERATOR.exists():
        LOG.warning("models in the sandbox run on the processor; --no-sandbox gives them the GPU")
    status, is_busy = asyncio.run(_serve_until_signal(settings, models, metrics))
    observability.close()
    if is_busy or not log.write_all():  # a hanging thread must not keep the process alive
        os._exit(status)
    return status


def check(settings: Settings, models: Path) -> None:
    """Raise UserError if the server cannot start with these settings and models."""
    if not read_tokens(settings) and not settings.is_loopback:
        raise UserError(
            f"Listening on {settings.host}, which other machines can reach, requires a token: "
            f"--token-file FILE or {TOKEN_VARIABLE}."
        )
    if settings.sandbox:
        check_available()
    if not models.is_dir():
        raise UserError(f"There is no folder {models}.")
    if error := scan(models).error:
        raise UserError(f"{models}: {error}.")


class Server:
    """The model registry with its HTTP and gRPC servers, which are started together."""

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics):
        self.registry, self.settings = registry, settings
        self._metrics = metrics
        self._http = HttpServer(make_app(registry, settings, metrics), settings.drain_seconds)
        # A full main port must not lock out probes, so they have separate limits.
        self._probes = HttpServer(make_probes(registry, metrics))
        self._grpc: Any = None
        self.http_address = self.grpc_address = self.probe_address = ""

    async def start(self) -> None:
        """Listen, and start to load models; raise UserError if an address cannot be used."""
        host = self.settings.host
        listener = bind_socket(host, self.settings.port)
        try:
            await self._start_grpc()
        except BaseException:
            listener.close()
            await self._stop_grpc(0.0)
            raise
        self.http_address = address(host, listener.getsockname()[1])
        await self._http.start(listener)
        if self.settings.probe_port >= 0:
            listener = bind_socket(host, self.settings.probe_port)
            self.probe_address = address(host, listener.getsockname()[1])
            await self._probes.start(listener)
        await self.registry.start()

    async def stop(self) -> bool:
        """Stop accepting requests; return whether all accepted ones were answered in time."""
        loop, seconds = asyncio.get_running_loop(), self.settings.drain_seconds
        end = loop.time() + seconds
        self.registry.drain()
        answered = await asyncio.gather(self._http.drain(), self._stop_grpc(seconds))
        is_idle = await self.registry.stop(max(0.0, end - loop.time()))
        await self._probes.drain()
        return is_idle and all(answered)

    async def _stop_grpc(self, seconds: float) -> bool:
        if self._grpc is None:
            return True
        start = time.monotonic()
        await self._grpc.stop(seconds)  # cancels the remaining calls
        return time.monotonic() - start < seconds

    async def _start_grpc(self) -> None:
        if self.settings.grpc_port < 0:
            return
        host, port = self.settings.host, self.settings.grpc_port
        bind_socket(host, port).close()  # gRPC's own error has several lines
        self._grpc = make_server(self.registry, self.settings, self._metrics)
        try:
            port = self._grpc.add_insecure_port(address(host, port))
        except RuntimeError as error:
            raise UserError(f"Cannot listen on {address(host, port)} for gRPC.") from error
        self.grpc_address = address(host, port)
        await self._grpc.start()


async def _serve_until_signal(
    settings: Settings, models: Path, metrics: Metrics
) -> tuple[int, bool]:
    registry = ModelRegistry(models, settings, metrics=metrics)
    server = Server(registry, settings, metrics)
    shutdown: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _install_signal_handlers(shutdown)
    await server.start()
    initial_load_done = asyncio.ensure_future(registry.initial_load_done())
    first: set[asyncio.Future[Any]] = {shutdown, initial_load_done}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if not shutdown.done():
        line = f"{ready_line(server)}\n"  # a single write, so that no log line splits it
        announce = functools.partial(print, line, end="", flush=True)
        threading.Thread(target=announce, daemon=True).start()  # stdout may not be read
    initial_load_done.cancel()
    number = await shutdown
    observability.event(
        LOG, f"{signal.Signals(number).name}: answering accepted requests, then stopping"
    )
    is_drained = await server.stop()
    return 0 if is_drained else 128 + number, registry.is_busy


def ready_line(server: Server) -> str:
    """Return the line that the command prints when it is ready: loaded models and addresses."""
    registry = server.registry
    known = [
        name
        for name in registry.names()
        if any(v.state == "AVAILABLE" for v in registry.versions(name))
    ]
    text = f"serving {', '.join(known) or 'no model yet'} at http://{server.http_address}"
    if server.grpc_address:
        text += f" and, for gRPC, {server.grpc_address}"
    if server.probe_address:
        text += f" and, for probes, {server.probe_address}"
    return text


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and listens; raise UserError if that fails."""
    listener = None
    try:
        family, kind, protocol, _, cluster = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(cluster)
        listener.listen(0)  # for a port in use, this may be the first call to fail
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UserError(f"Cannot listen on {address(host, port)}: {error.strerror}.") from error
    return listener


def address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets if the host needs them."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _install_signal_handlers(shutdown: "asyncio.Future[int]") -> None:
    def take(number: int) -> None:
        if shutdown.done():
            os._exit(128 + number)
        shutdown.set_result(number)

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, take, number)
