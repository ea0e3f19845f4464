"""Ctrl-C, SIGTERM and SIGHUP as a request that a loop checks after each step."""

import signal
import threading
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """A context in which the first of SIGNALS sets `signal_name` instead of ending the process.

    A second signal has its usual effect. Under nohup, SIGHUP stays ignored.
    """

    def __init__(self):
        self.signal_name: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Install the handlers if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception) -> None:
        """Restore the handlers."""
        self._restore_handlers()

    def _handle(self, number, frame) -> None:
        self.signal_name = signal.Signals(number).name
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
