"""The server's log: one line per event, as text or JSON, with the id of the request."""

import contextlib
import contextvars
import json
import logging
import queue
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

OWN_LOGGERS, OTHER_LOGGERS = ("serving", "onepass"), ("uvicorn", "grpc")
PLAIN = re.compile(r"[A-Za-z0-9_./:+@%-]+")
MAX_LINES = 10_000  # largest number of lines waiting to be written
CLOSE_SECONDS = 1.0
ACCEPTED_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


def request_id() -> str:
    """Return the id of the current request; "" outside a request."""
    return _request_id.get()


def begin_request(given: str | None = None) -> str:
    """Set and return the id of a new request: the client's if it is valid, else a random one."""
    identity = given if given and ACCEPTED_ID.fullmatch(given) else secrets.token_hex(8)
    _request_id.set(identity)
    return identity


def event(logger: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a message with fields."""
    logger.log(level, message, extra={"fields": fields})


class BackgroundHandler(logging.Handler):
    """A handler that writes lines in a separate thread, so logging never blocks.

    Lines that arrive while MAX_LINES are waiting are dropped, with a call of `on_lost` for each;
    the log later says how many were lost.
    """

    def __init__(self, stream: TextIO, on_lost: Callable[[], None] = lambda: None):
        super().__init__()
        self._stream, self._on_lost, self._lost = stream, on_lost, 0
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line for a record."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1
            self._on_lost()

    def write_all(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Write the waiting lines, end the thread in twice `seconds`; return whether it ended."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=seconds)
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the reader has closed the stream
                self._stream.write(f"{line}\n")
                lost, self._lost = self._lost, 0
                if lost:
                    self._stream.write(f"{lost} lines of this log were lost\n")
                self._stream.flush()


def configure(
    log_format: str = "text",
    level: str = "info",
    stream: TextIO | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> BackgroundHandler:
    """Send the logs of this package, from `level`, and of servers, from warning, to the handler."""
    handler = BackgroundHandler(stream or sys.stderr, on_lost)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    for name in (*OWN_LOGGERS, *OTHER_LOGGERS):
        lowest = level if name in OWN_LOGGERS else "warning"
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(lowest.upper())
    return handler


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line other than time, level and message."""
    identity = getattr(record, "request", "") or request_id()
    fields = {"request": identity} if identity else {}
    return fields | getattr(record, "fields", {})


class TextLines(logging.Formatter):
    """Formatter for lines of time, level, message and NAME=VALUE; values have no line breaks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        fields = " ".join(f"{name}={_word(value)}" for name, value in fields_of(record).items())
        message = _escape_text(record.getMessage())
        line = f"{_time(record)} {record.levelname.lower():7s} {message} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """Formatter for lines that are one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a JSON object: time, level, logger, message, the fields, and any exception."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _word(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


def _escape_text(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
