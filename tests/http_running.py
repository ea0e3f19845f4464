"""The HTTP application over fake bundles: on a socket of loopback in a thread, or without one."""

import asyncio
import contextlib
import socket

import httpx
from fake_bundle import FakeImages, FakeModelStore
from loops import InThread, settings_of

from onepass import speech
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.observability import Metrics
from serving.server import HttpServer, bind_socket


def store(root):
    """`voice` and `shapes`, whose controls are `store.controls[name, 1]`."""
    made = FakeModelStore(root)
    made.add("voice")
    made.add("shapes", kind=FakeImages)
    return made


class AnyVoice:
    """A voice for text whose frames every model reads."""

    def __init__(self, spec=None):
        pass

    def check(self, spec):
        """Refuses none."""


def speak_text_with(patch, text_frames):
    """Puts a function in the place of the text front end."""
    patch.setattr(speech, "shipped_voice", AnyVoice)
    patch.setattr(speech, "text_frames", text_frames)


# Authorities of certificates and proxies, which nothing here needs, take 40 ms to read.
HERE = {"verify": False, "trust_env": False}


class Running(InThread):
    """An uvicorn server; its `url`, `port` and `client`."""

    async def start(self):
        listener = bind_socket("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = HttpServer(make_app(self.registry, self.settings, self.metrics))
        await self._server.start(listener)
        self.client = httpx.Client(base_url=self.url, timeout=20, **HERE)

    def connection(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    async def stop(self):
        self.client.close()
        await self._server.drain()


@contextlib.asynccontextmanager
async def asking(store, **settings):
    """An httpx client of the application, without a socket."""
    given, metrics = settings_of(**settings), Metrics()
    registry = ModelRegistry(store.root, given, store.load, metrics)
    await registry.start()
    await registry.initial_load_done()
    transport = httpx.ASGITransport(make_app(registry, given, metrics))
    try:
        address = "http://localhost"
        async with httpx.AsyncClient(transport=transport, base_url=address, **HERE) as client:
            yield client
    finally:
        await registry.stop(5)


def ask(store, method, path, *, settings=None, **request):
    async def once():
        async with asking(store, **(settings or {})) as client:
            return await client.request(method, path, **request)

    return asyncio.run(once())
