"""Work in a thread that nobody has to wait for: it may be given up, and keeps no process alive."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_daemon_thread(work: Callable[[], Result], name: str) -> "asyncio.Future[Result]":
    """The result of the work, which begins at once and which nothing cancels."""
    done: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)
