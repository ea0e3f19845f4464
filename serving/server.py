"""The server, `onepass serve MODELS`: HTTP and gRPC in one process and one event loop."""

import asyncio
import collections
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

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from onepass.foundation.model_folders import TOKEN_VARIABLE
from onepass.foundation.rules import UserError
from serving import observability
from serving.engine.clients import ClientSlots, client_of_address, read_tokens
from serving.engine.registry import ModelRegistry, scan
from serving.grpc.server import make_server
from serving.http.app import make_app, make_probes
from serving.observability import Metrics
from serving.sandbox.confinement import check_available
from serving.settings import Settings

HEAD_BYTES = 64 * 1024
MAX_REQUESTS = 1024  # requests in progress; further ones get status 503
MAX_IDLE = 1024  # idle connections
IDLE_SECONDS = 30.0  # time until a connection's first request, and between two requests
LOG = logging.getLogger(__name__)
ACCELERATOR = Path("/dev/nvidiactl")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StrictConnection(h11.Connection):
    """An h11 connection that also rejects large heads that arrive at once, and ambiguous lengths.

    A proxy in front of the server may interpret a request with both Content-Length and
    Transfer-Encoding differently, so its body may smuggle in a second request: RFC 9112 (6.1)
    requires closing the connection.
    """

    def next_event(self) -> Any:
        """Return the next event; raise RemoteProtocolError if the request's head is rejected."""
        before = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if isinstance(event, h11.Request):
            if before - len(self.trailing_data[0]) > HEAD_BYTES:
                raise h11.RemoteProtocolError("The head is too large.", error_status_hint=431)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("The body has two lengths.")
        return event


class IdleConnections(dict["Connection", str]):
    """The clients of connections without a request, `most` at most, each idle for `seconds`.

    If there are more, the client with the most idle connections loses the one idle for longest.
    """

    def __init__(self, most: int, seconds: float):
        super().__init__()
        self.most, self.seconds = most, seconds

    def add(self, connection: "Connection", client: str) -> None:
        """Add an idle connection; if there are now too many, close one."""
        self[connection] = client
        if len(self) > self.most:
            ((crowd, _),) = collections.Counter(self.values()).most_common(1)
            longest = next(each for each, of in self.items() if of == crowd)
            del self[longest]
            longest.transport.abort()


class Connection(H11Protocol):
    """A connection that is closed unless a request's whole head arrives within the idle time.

    The time starts when the connection is made, and again at the end of each response; only the
    last byte of a head stops it. A client that closes its side before the end of a body gets an
    error response.
    """

    def __init__(self, *arguments: Any, idle: IdleConnections, **more: Any):
        super().__init__(*arguments, **more)
        self.conn = StrictConnection(h11.SERVER, HEAD_BYTES)
        self._idle, self._unsent = idle, 0
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._note_state(is_idle=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the idle ones."""
        super().connection_lost(exc)
        self._note_state(is_idle=False)

    def data_received(self, data: bytes) -> None:
        """Process received data; if they complete a head, the connection is no longer idle."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._note_state(is_idle=False)

    def on_response_complete(self) -> None:
        """Start waiting for the next request, unless it has already arrived."""
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._note_state(is_idle=True)

    def eof_received(self) -> None:
        """Answer 400 if the client closed its side before the end of a body."""
        if (self.conn.their_state, self.conn.our_state) == (h11.SEND_BODY, h11.SEND_RESPONSE):
            self.send_400_response("The connection ended before the body of the request did.")

    def _note_state(self, is_idle: bool) -> None:
        self._idle.pop(self, None)
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if is_idle:
            self._unsent = self.transport.get_write_buffer_size()
            self._end = self.loop.call_later(self._idle.seconds, self._time_is_over)
            self._idle.add(self, client_of_address(self.client[0] if self.client else ""))

    def _time_is_over(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._note_state(is_idle=True)
        else:
            self.transport.abort()


class HttpServer(uvicorn.Server):
    """Uvicorn in the caller's event loop; the caller handles signals.

    Connections without a request are limited separately, so they cannot keep requests from being
    answered. The application or the reverse proxy must handle clients that do not read responses.
    """

    def __init__(self, app: ASGIApp, drain_seconds: float = 1.0):
        self._app, self._in_progress, self._cut_off = app, ClientSlots(MAX_REQUESTS), 0
        self.idle = IdleConnections(MAX_IDLE, IDLE_SECONDS)
        self._serving: asyncio.Task | None = None
        super().__init__(
            uvicorn.Config(
                self._count_request,
                interface="asgi3",
                http=functools.partial(Connection, idle=self.idle),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_keep_alive=IDLE_SECONDS,  # type: ignore[arg-type] # also a float
                timeout_graceful_shutdown=drain_seconds,  # type: ignore[arg-type] # also a float
            )
        )

    async def start(self, listener: socket.socket) -> None:
        """Start serving; return once the server accepts requests."""
        self._serving = asyncio.create_task(self.serve([listener]))
        while not self.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)

    async def drain(self) -> bool:
        """Stop accepting connections; return whether all requests were answered in time."""
        self.should_exit = True
        if self._serving is not None:
            await self._serving
        return not (self._in_progress.taken or self._cut_off or self.server_state.connections)

    def capture_signals(self) -> Any:
        """Capture none, so the caller's signal handlers remain."""
        return contextlib.nullcontext()

    async def _count_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of_address((scope.get("client") or ("",))[0])
        if not self._in_progress.has_one_for(client):
            return await service_unavailable(scope, receive, send)  # type: ignore[arg-type]
        self._in_progress.take(client)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            self._cut_off += 1
            raise
        finally:
            self._in_progress.leave(client)


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
        self.registry.draining = True
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
    loop = asyncio.get_running_loop()
    shutdown: asyncio.Future[int] = loop.create_future()

    def take(number: int) -> None:
        if shutdown.done():
            os._exit(128 + number)
        shutdown.set_result(number)

    for each in SIGNALS:
        loop.add_signal_handler(each, take, each)
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
    versions = {name: server.registry.versions(name) for name in server.registry.names()}
    known = [name for name, each in versions.items() if any(v.state == "AVAILABLE" for v in each)]
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
