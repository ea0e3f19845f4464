"""What `onepass bench serving` asks of its processes, as rows."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from onepass.bench.report import Measures, Row
from onepass.bench.serving.models import Case, Utterance
from onepass.bench.serving.protocols import (
    GRPC,
    GRPC_SPEAK,
    HTTP_SPEAK,
    HTTP_TEXT,
    HTTP_WAV,
    TF_JSON,
    V2,
    V2_JSON,
)
from onepass.bench.serving.server_process import Server
from onepass.bench.worker_group import Group

BARE, FIRST, ALL, WHOLE = "bare call", "first sound", "all of it", "whole"
ASKED = (GRPC, V2, TF_JSON, V2_JSON)
LOOPED = (GRPC, V2, TF_JSON)
SPOKEN = {HTTP_SPEAK: V2, HTTP_WAV: V2, GRPC_SPEAK: GRPC}  # and by what the whole is asked for
SIZES = {"numba": "numba", "tensorflow": "tf"}  # what rows of a backend are called
MS, RATE, DRAWN, SECONDS, FACTOR = "ms", "req/s", "pictures/s", "s", "s/s"
CALLS_A_TURN, SOUNDS_A_ROUND = 5, 3
BATCH_ROWS = "onepass_batch_rows"
GAP, STREAMS = "longest gap", 8


class Added:
    """Calls by every protocol and bare ones, in alternation, so that a slow spell hits them all.

    seconds: of a call, by protocol; added: over the bare call of the same round. Medians of
    the last measurement.
    """

    def __init__(self, bare: Group, client: Group, case: Case, least_seconds: float):
        self._bare, self._client, self._case = bare, client, case
        self._least_seconds = least_seconds
        self.seconds: dict[str, float] = {}
        self.added: dict[str, float] = {}

    def measure(self) -> float:
        """Seconds of the bare call, measured anew with all the others."""
        rounds: list[dict[str, float]] = []
        end = time.perf_counter() + self._least_seconds
        while not rounds or time.perf_counter() < end:
            rounds.append(self._round())
        self.seconds = {
            name: statistics.median(each[name] for each in rounds) for name in rounds[0]
        }
        self.added = {
            way: statistics.median(each[way] - each[BARE] for each in rounds) for way in ASKED
        }
        return self.seconds[BARE]

    def _round(self) -> dict[str, float]:
        asked = {"do": "call", "inputs": str(self._case.inputs), "count": CALLS_A_TURN}
        taken = {BARE: self._bare.ask(path=str(self._case.folder), **asked)[0]["seconds"]}
        for way in ASKED:
            answer = self._client.ask(way=way, model=self._case.model, **asked)[0]
            taken[way] = answer["seconds"]
        return taken


class Looped:
    """Clients that ask again once they are answered.

    cores: that they kept busy themselves; rows: of a call of the model, the mean; calls: how many
    there were by their rows, as far as the metrics tell them apart. Of the last measurement.
    """

    def __init__(self, client: Group, server: Server, way: str, case: Case, clients: int, seconds):
        self._client, self._server, self._case = client, server, case
        self._asked = {"way": way, "clients": clients, "seconds": seconds}
        self.cores = self.rows = 0.0
        self.calls: dict[str, float] = {}

    def measure(self) -> float:
        """Calls a second."""
        before, sum_before = self._batches()
        answer = self._client.ask(
            do="closed_loop", model=self._case.model, inputs=str(self._case.inputs), **self._asked
        )[0]
        after, sum_after = self._batches()
        self.calls = {rows: after[rows] - before.get(rows, 0.0) for rows in after}
        made = sum(self.calls.values())
        self.cores, self.rows = answer["cores"], (sum_after - sum_before) / made if made else 0.0
        return answer["rate"]

    def _batches(self) -> tuple[dict[str, float], float]:
        return batch_rows(self._server.metrics(), self._case.model)


def batch_rows(text: str, model: str) -> tuple[dict[str, float], float]:
    """Calls of a model by the most rows that they may have had, and rows in all, by the metrics."""
    below: dict[float, float] = {}
    rows = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.name != BATCH_ROWS or sample.labels.get("model") != model:
                continue
            if sample.name.endswith("_bucket"):
                below[float(sample.labels["le"])] = sample.value
            elif sample.name.endswith("_sum"):
                rows = sample.value
    calls, before = {}, 0.0
    for most in sorted(below):
        calls[f"{most:g}"], before = below[most] - before, below[most]
    return calls, rows


class Spoken:
    """A long utterance, streamed and whole.

    first, last: seconds to the first and to the last byte, by the way it was streamed. Of the last
    measurement.
    """

    def __init__(self, client: Group, utterance: Utterance):
        self._client, self._utterance = client, utterance
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def whole(self, way: str) -> float:
        """Seconds to the whole sound, in one answer."""
        return self._ask("call", way)["seconds"]

    def streamed(self, way: str) -> float:
        """Seconds to the first byte."""
        answer = self._ask("speak", way, wav=str(self._utterance.wav))
        self.first[way], self.last[way] = answer["first"], answer["last"]
        return answer["first"]

    def text(self) -> float:
        """Seconds to the first byte of a text."""
        return self._ask("speak", HTTP_TEXT, wav=str(self._utterance.wav))["first"]

    def gap(self) -> float:
        """The longest time in seconds between two parts of a stream, of STREAMS side by side."""
        case = self._utterance.case
        return self._client.ask(
            do="streams", model=case.model, inputs=str(case.inputs), count=STREAMS
        )[0]["gap"]

    def _ask(self, do: str, way: str, **rest: str) -> dict[str, float]:
        case = self._utterance.case
        return self._client.ask(
            do=do, way=way, model=case.model, inputs=str(case.inputs), count=SOUNDS_A_ROUND, **rest
        )[0]


def of_calls(bare: Group, client: Group, cases: Mapping[str, Case], seconds: float) -> Measures:
    """What each protocol adds to the bare call of each case."""
    measures: Measures = []
    for name, case in cases.items():
        added = Added(bare, client, case, seconds)
        measures.append((Row(BARE, name, 1, MS), functools.partial(_in_ms, added.measure)))
        for way in ASKED:
            row = Row(way, name, 1, MS, BARE)
            measures.append((row, functools.partial(_of, added, "seconds", way)))
            row = Row(added_title(way), name, 1, MS)
            measures.append((row, functools.partial(_of, added, "added", way)))
    return measures


def of_clients(
    client: Group,
    server: Server,
    case: Case,
    clients: int,
    seconds: float,
) -> Measures:
    """Requests a second by each protocol."""
    measures: Measures = []
    for way in LOOPED:
        looped = Looped(client, server, way, case, clients, seconds)
        measures.append((Row(loop_title(way), case.model, clients, RATE), looped.measure))
        for what in ("cores", "rows"):
            row = Row(f"{what}, {way}", case.model, clients, what)
            measures.append((row, functools.partial(getattr, looped, what)))
    return measures


def of_images(
    client: Group, server: Server, case: Case, counts: tuple[int, ...], seconds: float
) -> tuple[dict[int, Looped], Measures]:
    """Images a second by gRPC as clients become more; with what was asked of each."""
    looped = {
        count: Looped(client, server, GRPC, case, count, max(seconds, 0.2 * count))
        for count in counts
    }
    measures: Measures = []
    for count, each in looped.items():
        against = drawn_title(1) if count > 1 else None
        row = Row(drawn_title(count), case.model, count, DRAWN, against)
        measures.append((row, each.measure))
        row = Row(f"rows, {drawn_title(count)}", case.model, count, "rows")
        measures.append((row, functools.partial(getattr, each, "rows")))
    return looped, measures


def of_sound(client: Group, utterance: Utterance, backend: str, seconds: float) -> Measures:
    """The first sound of an utterance against the whole, and what a second of sound takes."""
    spoken, size = Spoken(client, utterance), SIZES[backend]
    measures: Measures = [
        (
            Row(f"{WHOLE}, {way}", size, 1, SECONDS),
            functools.partial(spoken.whole, way),
        )
        for way in dict.fromkeys(SPOKEN.values())
    ]
    for way, whole in SPOKEN.items():
        row = Row(f"{FIRST}, {way}", size, 1, SECONDS, f"{WHOLE}, {whole}")
        measures.append((row, functools.partial(spoken.streamed, way)))
        row = Row(f"{ALL}, {way}", size, 1, SECONDS, f"{WHOLE}, {whole}")
        measures.append((row, functools.partial(_item, spoken, way, 1.0)))
        row = Row(f"real time, {way}", size, 1, FACTOR)
        measures.append((row, functools.partial(_item, spoken, way, seconds)))
    if utterance.has_text:
        measures.append((Row(f"{FIRST}, {HTTP_TEXT}", size, 1, SECONDS), spoken.text))
    measures.append((Row(GAP, size, STREAMS, SECONDS), spoken.gap))
    return measures


def added_title(way: str) -> str:
    """What the row of what a protocol adds is called."""
    return f"added, {way}"


def loop_title(way: str) -> str:
    """What the row of requests a second is called."""
    return f"requests, {way}"


def drawn_title(clients: int) -> str:
    """What the row of images a second is called."""
    return "1 client" if clients == 1 else f"{clients} clients"


def _in_ms(measure: Callable[[], float]) -> float:
    return 1e3 * measure()


def _of(added: Added, figures: str, way: str) -> float:
    return 1e3 * getattr(added, figures)[way]


def _item(spoken: Spoken, way: str, divisor: float) -> float:
    return spoken.last[way] / divisor
