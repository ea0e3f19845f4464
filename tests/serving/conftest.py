import asyncio
import inspect

import http_running
import pytest
from fake_bundle import FakeModelStore


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run an `async` test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def models(tmp_path):
    """The folder of `voice` and `shapes`."""
    return http_running.store(tmp_path)


@pytest.fixture
def store(tmp_path):
    """An empty folder of models."""
    (tmp_path / "models").mkdir()
    return FakeModelStore(tmp_path / "models")


@pytest.fixture
def running(models):
    """A server of these models."""
    with http_running.Running(models) as running:
        yield running
