"""A server in a process of its own, started by the command and ended by SIGTERM."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from onepass.bench.worker_group import CPU_ONLY, last_line, module_path
from replicator.launch import reaper
from replicator.runs.errors import UserError
from serving.settings import TOKEN_VARIABLE

COMMAND = (sys.executable, "-m", "onepass", "serve")
READY = re.compile(r"serving (.*) at http://(\S+?):(\d+)(?: and, for gRPC, (\S+))?")
LEAVE_SECONDS = 60.0
REAPER = (sys.executable, reaper.__file__, str(LEAVE_SECONDS))


class Server:
    """`onepass serve ROOT`, ready: where it listens.

    Args:
      root: of the models.
      limit_seconds: that it may take to be ready.
      options: of the command.
    """

    def __init__(self, root: Path, limit_seconds: float, options: Sequence[str] = ()):
        ports = ["--port", "0", "--grpc-port", "0"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed by `stop`
        self._said, writer = os.pipe()
        self._reaper = subprocess.Popen(
            [*REAPER, *COMMAND, str(root), *ports, "--log-level", "warning", *options],
            env={**os.environ, **CPU_ONLY, **module_path(), TOKEN_VARIABLE: ""},
            stdin=subprocess.PIPE,  # its end, when this process is gone, ends the server
            stdout=writer,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for this process, which stops it
        )
        os.close(writer)
        try:
            said = self._ready(time.monotonic() + limit_seconds)
            missing = {path.name for path in root.iterdir()} - {*said[1].split(", ")}
            if missing:
                self._leave()  # its log is written in a thread of its own
                raise UserError(
                    f"The server could not load {missing.pop()}: {last_line(self._log)}"
                )
        except BaseException:
            self.stop()
            raise
        self.http_address = f"{said[2]}:{said[3]}"
        self.grpc_address = said[4] or ""

    def _ready(self, end: float) -> re.Match[str]:
        """What its line of being ready says."""
        out, text = self._said, ""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while (said := READY.search(text)) is None or not text.endswith("\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise UserError("The server was not ready in time; see `--limit-seconds`.")
                part = os.read(out, 4096)
                if not part:
                    raise UserError(f"The server ended: {last_line(self._log)}")
                text += part.decode(errors="replace")
        return said

    def processes(self) -> list[int]:
        """The ids of all its processes."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        found = [pid for pid, parent in parents.items() if parent == self._reaper.pid]
        for each in found:
            found += [pid for pid, parent in parents.items() if parent == each]
        return found

    def metrics(self) -> str:
        """What it has counted, as Prometheus reads it."""
        request = urllib.request.Request(
            f"http://{self.http_address}/monitoring/prometheus/metrics"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def stop(self) -> None:
        """Lets it answer what it has and leave; nothing that it has started is left."""
        self._leave()
        self._reaper.communicate(b"!")  # kills what is left
        os.close(self._said)
        self._log.close()

    def _leave(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._reaper.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reaper.wait(LEAVE_SECONDS)
