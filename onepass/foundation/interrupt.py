"""Handle signals: as a stop request that loops check, or as an exception like Ctrl-C."""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Signals that end a process from outside and can be caught.
ENDING = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal such as SIGTERM asks the process to stop, as Ctrl-C does."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclasses.dataclass
class Received:
    """The signal that interrupted a block, if any."""

    number: int | None = None


@contextlib.contextmanager
def signals_interrupt() -> Iterator[Received]:
    """Raise `Interrupted` in the block for the first signal in `ENDING` that arrives.

    A signal can arrive twice, because shells, terminals and `timeout` may send it both to a process
    and to its group. Signals that are ignored, such as SIGHUP under nohup, or that already have a
    handler are left alone. Outside the main thread, which is the only one that can install
    handlers, this does nothing.
    """
    received, replaced = Received(), []

    def raise_once(number: int, frame: FrameType | None) -> None:
        if received.number is None:
            received.number = number
            raise Interrupted(number)

    if threading.current_thread() is threading.main_thread():
        replaced = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, raise_once)
    try:
        yield received
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


class StopRequest:
    """A context in which the first signal of SIGNALS sets `signal_name`, and the process goes on.

    A second signal has its usual effect. Under nohup, SIGHUP stays ignored.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Install the handlers if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handlers."""
        self._restore_handlers()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
