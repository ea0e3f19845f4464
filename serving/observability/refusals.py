"""What was refused for want of room: counted, and said in the log at most once a second."""

import logging
import time

from serving.engine.clients import Client
from serving.observability.logs import event
from serving.observability.metrics import Metrics

LOG = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 1.0


class Refusals:
    """Counts what is refused, by what there was too much of.

    Args:
      metrics: where it is counted; None: it is only logged.
    """

    def __init__(self, metrics: Metrics | None = None):
        self._metrics = metrics
        self._unsaid: dict[str, int] = {}
        self._next_line: dict[str, float] = {}

    def note(self, what: str, client: Client) -> None:
        """Counts a refusal."""
        if self._metrics is not None:
            self._metrics.refused(what)
        self._unsaid[what] = self._unsaid.get(what, 0) + 1
        now = time.monotonic()
        if now >= self._next_line.get(what, 0.0):
            self._next_line[what] = now + SECONDS_BETWEEN_LINES
            fields = {"what": what, "client": client.address, "number": self._unsaid.pop(what)}
            event(LOG, "refused", logging.WARNING, **fields)
