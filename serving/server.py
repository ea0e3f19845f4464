"""`onepass serve MODELS`: HTTP and gRPC on one machine, in one event loop."""

import asyncio
import importlib
import importlib.util
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicator.runs.errors import UserError
from serving.command import NEEDED
from serving.deploy.ray_settings import RaySettings
from serving.engine.registry import Table
from serving.engine.version_scanner import MANIFEST, VERSION, scan
from serving.observability import logs, traces
from serving.settings import TOKEN_VARIABLE, Settings

if TYPE_CHECKING:
    from serving.observability.metrics import Metrics

LOG = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Maker = Callable[[Table, Settings, "Metrics"], Any]


def serve(settings: RaySettings, models: Path) -> int:
    """Serves until a signal comes; the exit status of `onepass serve`."""
    check(settings, models)
    if settings.ray:
        return importlib.import_module("serving.deploy.ray_command").run_ray(settings, models)
    logs.configure(settings.log_format, settings.log_level)
    traces.configure()
    status, is_busy = asyncio.run(_until_told(settings, models))
    traces.close()
    if is_busy:  # a thread that nobody waits for must not keep the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def check(settings: Settings, models: Path) -> None:
    """Raises UserError, in one line, where the server should not begin at all."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Serving needs more packages ({', '.join(missing)}): pip install 'onepass[serve]'"
        )
    if settings.token() is None and not settings.is_loopback:
        raise UserError(
            f"Listening on {settings.host}, which others can reach, needs a token: --token-file "
            f"FILE or {TOKEN_VARIABLE}."
        )
    if not models.is_dir():
        raise UserError(f"There is no folder {models}.")
    seen = scan(models)
    if seen.error:
        raise UserError(f"{models}: {seen.error}.")
    for name in seen.versions:
        if VERSION.fullmatch(name) and (models / name / MANIFEST).exists():
            above = models.resolve().parent
            raise UserError(f"{models} is a single model; name the folder above it, {above}.")


class Serving:
    """Models, HTTP and gRPC together.

    Args:
      table: neither started nor loaded.
      settings: where to listen.
      make_app: of an ASGI application; by default `serving.http.app.make_app`.
      make_grpc: of a grpc.aio.Server; by default `serving.grpc.server.make_server`.
      metrics: handed to all.
    """

    def __init__(
        self,
        table: Table,
        settings: Settings,
        metrics: "Metrics",
        make_app: Maker | None = None,
        make_grpc: Maker | None = None,
    ):
        self.table, self.settings, self._metrics = table, settings, metrics
        self._make_app, self._make_grpc = make_app or _app, make_grpc or _grpc
        self._http: Any = None
        self._grpc: Any = None
        self._serving: asyncio.Task | None = None
        self.http_address = self.grpc_address = ""

    async def start(self) -> None:
        """Listens, answering that nothing is ready, and begins to load; UserError if it cannot."""
        from serving.http.server import HttpServer

        host = self.settings.host
        listener = bound(host, self.settings.port)
        try:
            self._http = HttpServer(self._make_app(self.table, self.settings, self._metrics))
            await self._start_grpc()
        except BaseException:
            listener.close()
            await self._stop_grpc(0.0)
            raise
        self.http_address = address(host, listener.getsockname()[1])
        self._serving = asyncio.create_task(self._http.serve([listener]))
        while not self._http.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)
        await self.table.start()

    async def stop(self) -> bool:
        """Accepts nothing more; whether everything accepted was answered in `drain_seconds`."""
        loop, seconds = asyncio.get_running_loop(), self.settings.drain_seconds
        end = loop.time() + seconds
        self.table.drain()
        answered = await asyncio.gather(self._stop_http(seconds), self._stop_grpc(seconds))
        return await self.table.stop(max(0.0, end - loop.time())) and all(answered)

    async def _stop_http(self, seconds: float) -> bool:
        if self._serving is None:
            return True
        is_answered = await self._http.leave(seconds)
        await self._serving
        return is_answered

    async def _stop_grpc(self, seconds: float) -> bool:
        if self._grpc is None:
            return True
        start = time.monotonic()
        await self._grpc.stop(seconds)  # which cuts off what is left after so many seconds
        return time.monotonic() - start < seconds

    async def _start_grpc(self) -> None:
        if self.settings.grpc_port < 0:
            return
        host, port = self.settings.host, self.settings.grpc_port
        bound(host, port).close()  # gRPC would say more than one line
        self._grpc = self._make_grpc(self.table, self.settings, self._metrics)
        try:
            port = self._grpc.add_insecure_port(address(host, port))
        except RuntimeError as error:
            raise UserError(f"Cannot listen on {address(host, port)} for gRPC.") from error
        self.grpc_address = address(host, port)
        await self._grpc.start()


async def _until_told(settings: Settings, models: Path) -> tuple[int, bool]:
    """Serves until a signal comes; the exit status, and whether a thread is still busy."""
    from serving.observability.metrics import Metrics

    metrics = Metrics()
    table = Table(models, settings, metrics=metrics)
    serving = Serving(table, settings, metrics)
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _take_signals(told)
    await serving.start()
    settled = asyncio.ensure_future(table.settled())
    first: set[asyncio.Future[Any]] = {told, settled}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        print(ready_line(serving), flush=True)
    settled.cancel()
    number = await told
    logs.event(LOG, f"{signal.Signals(number).name}: answering what was accepted, then leaving")
    is_drained = await serving.stop()
    return 0 if is_drained else 128 + number, table.is_busy


def ready_line(serving: Serving) -> str:
    """What the command says when it is ready: the models and the addresses."""
    table = serving.table
    known = [
        name for name in table.names() if any(v.state == "AVAILABLE" for v in table.versions(name))
    ]
    text = f"serving {', '.join(known) or 'no model yet'} at http://{serving.http_address}"
    if serving.grpc_address:
        text += f" and, for gRPC, {serving.grpc_address}"
    return text


def bound(host: str, port: int) -> socket.socket:
    """A socket with that address; UserError if it cannot be had."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"Cannot listen on {address(host, port)}: {error.strerror}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(0)  # a port in use may show only now
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen on {address(host, port)}: {error.strerror}.") from error
    return listener


def address(host: str, port: int) -> str:
    """HOST:PORT, with brackets where the host needs them."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _take_signals(told: "asyncio.Future[int]") -> None:
    """The first signal is told, the second one ends the process at once."""

    def take(number: int) -> None:
        if told.done():
            os._exit(128 + number)
        told.set_result(number)

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, take, number)


def _app(table: Table, settings: Settings, metrics: "Metrics") -> Any:
    from serving.http.app import make_app

    return make_app(table, settings, metrics)


def _grpc(table: Table, settings: Settings, metrics: "Metrics") -> Any:
    from serving.grpc.server import make_server

    return make_server(table, settings, metrics)
