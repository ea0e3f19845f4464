"""`StepMachine`: trace one step of a network, lower it, and run it for all time steps."""

import collections
import dataclasses
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.runtime import Apart, cores
from onepass.machine import rules  # noqa: F401  (their rules are registered)
from onepass.machine.assembly import (
    BLOCK,
    LIMITED,
    OPERANDS,
    PRODUCTS,
    Op,
    Program,
    assemble_program,
)
from onepass.machine.execute import PATIENCE, require_equal_rings, run, settle
from onepass.machine.kernels import APART, LANES
from onepass.machine.lowering import Lowering, Resource
from onepass.machine.sides import divide_step
from onepass.machine.values import KNOWN, Constant, Unlowerable, contiguous, is_wide
from onepass.machine.weights import WEIGHTS
from onepass.networks.conditions import is_at_rate, shape_at


class Pace:
    """The decision whether threads work on one piece together, which does not affect results.

    That is faster if there are idle cores and work to share. The first pieces try both ways `RUNS`
    times each; later both are tried again, one after the other, whenever some times as long as such
    a pair takes has passed: `SOON` at first and after another decision, twice as many after every
    pair that confirms it, up to `LATE`. The medians of the latest trials are compared, which makes
    the decision robust to interruptions, and only trials are, since a longer piece may have more to
    read in every step.
    """

    RUNS = 5
    SOON, LATE = 4, 32

    def __init__(self) -> None:
        self.is_trial = True  # whether the piece chosen last is one to measure, which is short
        self._seconds = {way: collections.deque[float](maxlen=self.RUNS) for way in (True, False)}
        self._together, self._between = False, self.SOON
        self._again: list[bool] = []  # ways to be tried again
        self._pair, self._since = collections.deque[float](maxlen=2), 0.0
        self._lock = threading.Lock()  # calls at the same time share it

    @property
    def is_settled(self) -> bool:
        """Return whether both ways have been measured `RUNS` times."""
        return all(len(seconds) == self.RUNS for seconds in self._seconds.values())

    def choose(self) -> bool:
        """Return whether threads should work together on the next piece."""
        with self._lock:
            if not self.is_settled:
                self.is_trial = True
                return len(self._seconds[True]) < len(self._seconds[False])
            if not self._again and self._since >= self._between * sum(self._pair):
                self._again, self._since = [True, False], 0.0
            self.is_trial = bool(self._again)
            return self._again[-1] if self.is_trial else self._together

    def record(self, together: bool, seconds: float, steps: int) -> None:
        """Record the time that a piece took."""
        with self._lock:
            if self.is_settled and not self._again:
                self._since += seconds
            elif steps:
                self._again = self._again[:-1]
                self._seconds[together].append(seconds / steps)
                self._pair.append(seconds)
                if self.is_settled and not self._again:
                    self._decide()

    def _decide(self) -> None:
        median = {way: statistics.median(seconds) for way, seconds in self._seconds.items()}
        before, self._together = self._together, median[True] <= median[False]
        is_confirmed = before == self._together
        self._between = min(2 * self._between, self.LATE) if is_confirmed else self.SOON


_WORTH_A_THREAD = 100_000  # instructions; starting a thread takes less than a tenth of their time
_WEIGHTS_OF_AN_INSTRUCTION = 1000  # that are read in the time of a small instruction
_WORTH_A_MEMBER = 1 << 13  # multiplications; for fewer, a member waits longer than it works
_LARGE = 1 << 16  # multiplications of a product, on average, that two threads rather divide
_LOST = 3000  # yields of a member after which a team ends; they take a millisecond or more
_LONGER = 50  # times the length of a trial, that of a piece when the faster way is known
_TRIED = 4  # least number of steps in the test of limits
Step = Callable[..., tuple[list[tf.Tensor], list[tf.Tensor]]]


class Member(NamedTuple):
    """One thread's part of a run: the last arguments of `execute.run`."""

    first: int
    rows: int
    counters: np.ndarray
    place: int


class StepMachine:
    """A step for one row as a program of the machine, which any number of rows can run.

    `step` maps the arguments of a time step, such as noise, the settings of a call, such as a
    temperature, and the states to the results and the new states; `state` has the states of one
    row before the first step. `weights` is the type of large weights, one of `WEIGHTS`. Raises
    Unlowerable if the machine lacks an operation of the step.
    """

    def __init__(
        self,
        step: Step,
        arguments: Sequence[tf.TensorSpec],
        settings: Sequence[tf.TensorSpec],
        state: Sequence[tf.Tensor],
        weights: str = "float32",
    ) -> None:
        self.arguments, self.settings = list(arguments), list(settings)
        self._kind = WEIGHTS.index(weights)
        specs = [*arguments, *settings, *(tf.TensorSpec(x.shape, x.dtype) for x in state)]
        for spec in specs:
            if np.dtype(spec.dtype.as_numpy_dtype) not in KNOWN:
                raise Unlowerable(f"numbers of type {spec.dtype.name}", "Placeholder")

        def joined(*given: tf.Tensor) -> list[tf.Tensor]:
            results, states = step(*given)
            return [*results, *states]

        self.traced = tf.function(joined, autograph=False).get_concrete_function(*specs)
        self._specs = specs
        self._paces: dict[int, Pace] = collections.defaultdict(Pace)  # by the number of rows
        self._divided: Any = None  # the rows of a program, and its sides
        self.program = self._lower_step()
        if not self._limits_change_nothing(state):
            self.program.process_all_rows()

    def _lower_step(self) -> Program:
        self._kept = [
            contiguous(spec.shape, spec.dtype.as_numpy_dtype, kept=True)
            for spec in self._specs[len(self.arguments) :]
        ]
        lowering = Lowering()
        states = self._kept[len(self.settings) :]
        lowering.candidates = {x.buffer for x in states if x.wide and x.size == 1}
        self._lower_list(lowering)
        assembly = lowering.assembly
        lists = [assembly.instructions]
        for position in assembly.branches.firsts[1:] if assembly.branches else ():
            assembly.begin_list()
            lowering = Lowering(lowering, position)
            self._lower_list(lowering)
            lists.append(assembly.instructions)
        require_equal_rings(lists, lowering.counters)
        self._read = [(*each, _address(each[-1])) for each in lowering.read]
        buffers = [value.buffer for value in self._kept]
        return assemble_program(assembly, buffers, lowering.counter, self._kind, lists)

    def _lower_list(self, lowering: Lowering) -> None:
        """Lower the step, of branches those at the position of `lowering`."""
        graph, column = self.traced.graph, 0
        given: list[Any] = []
        for spec in self.arguments:
            value = contiguous(spec.shape, spec.dtype.as_numpy_dtype)
            numbers = [value.wide, column, value.size]
            lowering.assembly.add(Op.INPUT, value, [], numbers, fills=True)
            column += value.size
            given.append(value)
        names = [tensor.name for tensor in graph.inputs]
        known: dict[str, Any] = dict(zip(names, [*given, *self._kept], strict=False))
        for outer, inner in graph.captures:
            is_resource = inner.dtype == tf.resource
            known[inner.name] = Resource(outer) if is_resource else Constant(np.asarray(outer))
        made = lowering.graph(graph, graph.outputs, known)
        states = self._kept[len(self.settings) :]
        count = len(made) - len(states)
        self.results = [(each.shape, each.dtype) for each in made[:count]]
        settle(lowering, list(zip(states, made[count:], strict=True)), made[:count])

    def _limits_change_nothing(self, state: Sequence[tf.Tensor]) -> bool:
        """Return whether a few steps give the same results if they also compute unfilled rows."""
        if not self.program.rows[:, LIMITED].any():
            return True
        generator, found = np.random.default_rng(0), []
        steps = max(_TRIED, len(self.program.spans))
        arguments = [
            generator.integers(0, 2, [1, steps, *spec.shape])
            if spec.dtype.is_integer
            else generator.normal(size=[1, steps, *spec.shape])
            for spec in self.arguments
        ]
        settings = [np.ones(spec.shape) for spec in self.settings]
        limited = self.program
        for program in (limited, dataclasses.replace(limited, rows=limited.rows.copy())):
            if program is not limited:
                program.process_all_rows()
            self.program = program
            workspaces = self.begin(1, settings, state)
            made = self.run(workspaces, *arguments)
            found.append([*made, *self.contents(workspaces)])
        self.program = limited
        return all(
            np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
            for a, b in zip(*found, strict=True)
        )

    @property
    def multiplications(self) -> float:
        """Mean number of multiplications per instruction, for one row."""
        rows, first = self.program.rows, 1 + OPERANDS
        numbers = rows[:, first : first + 4].astype(np.int64)
        products = numbers[:, 0] * numbers[:, 1] * LANES * (rows[:, 0] != Op.DOT)
        each = np.where(rows[:, 0] == Op.PRODUCT, products * numbers[:, 2], products)
        each = np.where(rows[:, 0] == Op.DOT, numbers.prod(1), each)
        counted = np.isin(rows[:, 0], (*PRODUCTS, Op.DOT))
        return float(each[counted].sum()) / len(rows)

    @property
    def is_stale(self) -> bool:
        """True if weights have changed since the program was made."""
        with tf.init_scope():
            for handle, dtype, before, address in self._read:
                now = np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
                if _address(now) != address and not np.array_equal(now, before):
                    return True
        return False

    def refresh(self) -> bool:
        """Update the program if its weights have changed, and return whether they have."""
        if not self.is_stale:
            return False
        limited = self.program.rows[:, LIMITED].any()
        with tf.init_scope():
            self.program = self._lower_step()
        if not limited:
            self.program.process_all_rows()
        return True

    def begin(self, batch: int, settings: Sequence[Any], state: Sequence[Any]) -> np.ndarray:
        """Return workspaces float32 [batch, words], from values for all rows or for each row."""
        workspaces = np.tile(self.program.workspace, [batch, 1])
        self.put(workspaces, [*settings, *state])
        return workspaces

    def put(self, workspaces: np.ndarray, given: Sequence[Any]) -> None:
        """Set the settings and the states of all rows in place, each as in `begin`, but for None.

        States may be left out at the end.
        """
        for value, each in zip(self._kept, given, strict=False):
            if each is None or not value.size:  # an empty state, used only for its shape
                continue
            at = self.program.offsets[value.buffer]
            kind = np.float64 if is_wide(value.dtype) else np.float32
            flat = np.ascontiguousarray(np.asarray(each).reshape([-1, value.size]), kind)
            workspaces[:, at : at + value.buffer.words] = flat.view(np.float32)

    def contents(self, workspaces: np.ndarray) -> list[np.ndarray]:
        """Return the settings and states of all rows, [rows, ...] each."""
        found = []
        for value in self._kept:
            at = self.program.offsets[value.buffer]
            part = np.ascontiguousarray(workspaces[:, at : at + value.buffer.words])
            kind = np.float64 if is_wide(value.dtype) else np.float32
            shape = [len(workspaces), *value.shape]
            found.append(part.view(kind).reshape(shape).astype(value.dtype))
        return found

    def run(self, workspaces: np.ndarray, *arguments: np.ndarray) -> list[np.ndarray]:
        """Run steps on arguments [rows, time, ...], update the workspaces; return the results."""
        phases = self.program.phases_of(workspaces)
        if (phases != phases[0]).any():
            return self._run_by_phase(phases, workspaces, arguments)
        rows, times = len(workspaces), arguments[0].shape[1]
        flat = [np.asarray(each, np.float64).reshape([rows, times, -1]) for each in arguments]
        given = np.concatenate(flat, -1)
        sizes = [int(np.prod(shape, dtype=int)) for shape, _ in self.results]
        drawn = np.zeros([rows, times, sum(sizes)])
        start = 0
        while start < times:
            start = self._run_piece(workspaces, given, drawn, start, times)
        parts = np.split(drawn, np.cumsum(sizes)[:-1], -1)
        return [
            part.reshape([rows, times, *shape]).astype(dtype)
            for part, (shape, dtype) in zip(parts, self.results, strict=True)
        ]

    def _run_by_phase(
        self, phases: np.ndarray, workspaces: np.ndarray, arguments: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Do what `run` does for rows at positions that differ modulo the period."""
        order, made = np.argsort(phases, kind="stable"), []
        for rows in np.split(order, np.flatnonzero(np.diff(phases[order])) + 1):
            part = workspaces[rows]
            made.append(self.run(part, *(np.asarray(each)[rows] for each in arguments)))
            workspaces[rows] = part
        back = np.argsort(order)
        return [np.concatenate(parts)[back] for parts in zip(*made, strict=True)]

    def _run_piece(
        self, workspaces: np.ndarray, given: np.ndarray, drawn: np.ndarray, start: int, stop: int
    ) -> int:
        """Run time steps from `start` until `stop` or earlier, and return where it has ended.

        Pieces end early to try, or to choose again, which way to use several threads is faster.
        """
        program, rows = self.program, len(workspaces)
        work = rows * len(program.rows) + program.divisible_weights // _WEIGHTS_OF_AN_INSTRUCTION
        is_long = work * (stop - start) >= _WORTH_A_THREAD
        is_shared = is_long and not len(program.spans)  # branches are run by one thread
        worth = int(program.mean_divided * rows // _WORTH_A_MEMBER) if is_shared else 1
        team, pace = max(1, min(cores(), worth)), self._paces[rows]
        sides = None
        if is_shared and cores() > 1 and rows * program.mean_divided < _LARGE:
            sides = self._sides_of(program)
            team = 2 if sides is not None else team
        together = team > 1 and pace.choose()
        if team > 1:
            trial = max(BLOCK, -(-_WORTH_A_THREAD // work))
            stop = min(stop, start + trial * (1 if pace.is_trial else _LONGER))
        members = _members(rows, team if together else is_long * cores(), together)
        copies = [(program.rows if together else program.close_rows).copy() for _ in members]
        if together and sides is not None:
            members = [member._replace(first=0, rows=rows) for member in members]
            copies = [side.copy() for side in sides]

        def work_on(index: int) -> int:
            first, count, counters, place = members[index]
            return run(
                copies[index], program.position, program.constants, workspaces, given, drawn,
                start, stop, first, count, counters, place, program.spans, program.clock,
            )  # fmt: skip

        began = time.perf_counter()
        ended = _run_all(work_on, len(members))
        if team > 1:
            pace.record(together, time.perf_counter() - began, ended - start)
        return ended

    def _sides_of(self, program: Program) -> tuple[np.ndarray, np.ndarray] | None:
        if self._divided is None or self._divided[0] is not program.rows:
            self._divided = program.rows, divide_step(program)
        return self._divided[1]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _members(rows: int, threads: int, together: bool) -> list[Member]:
    """Return what each thread runs; the threads of a team divide products, others share nothing."""
    threads = max(1, threads if together else min(threads, rows))
    bounds = [rows * index // threads for index in range(threads + 1)]
    counters = np.zeros([threads, APART // 8], np.int64)
    counters[0, PATIENCE] = _LOST
    return [
        Member(low, high - low, counters if together else counters[:1], index * together)
        for index, (low, high) in enumerate(itertools.pairwise(bounds))
    ]


def _run_all(work: Callable[[int], int], count: int) -> int:
    """Call `work` with 0 to count - 1 at the same time or not at all; return its result for 0."""
    if count == 1:
        return work(0)
    apart, gate = Apart(), threading.Barrier(count)

    def start(index: int) -> int:
        gate.wait()
        return apart.run(work, index)

    with ThreadPoolExecutor(count) as pool:
        try:
            started = [pool.submit(start, index) for index in range(count)]
        except BaseException:  # the system has no more threads, or the user presses Ctrl-C
            gate.abort()
            raise
        first, *_ = [future.result() for future in started]
    return first


def machine_of_step(stepped: Any, specs: Sequence[tf.TensorSpec]) -> tuple[StepMachine, list]:
    """Return a machine for a network's step, and the first state; raise Unlowerable without one."""
    has_horizon = getattr(stepped, "has_horizon", False)
    given: dict[str, Any] = {"length": 1} if has_horizon else {}
    fixed = [spec for spec in specs if not is_at_rate(spec)]
    if fixed:
        given["fixed"] = [tf.zeros(shape_at(spec, 1, [1]), spec.dtype) for spec in fixed]
    specs = [spec for spec in specs if is_at_rate(spec)]
    first = stepped.initial_state(1, **given)
    flat = tf.nest.flatten(first)

    def step(*given: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        inputs, *condition = given[: len(specs)]
        packed = tf.nest.pack_sequence_as(first, list(given[len(specs) :]))
        parameters, after = stepped.step(inputs, packed, *condition)
        return [parameters], tf.nest.flatten(after)

    of_one = [tf.TensorSpec([1, 1, *spec.shape[2:]], spec.dtype) for spec in specs]
    return StepMachine(step, of_one, [], flat), flat


def unknown_operation(stepped: Any, specs: Sequence[tf.TensorSpec]) -> str:
    """Return an error message that names an operation that the machine lacks, or ""."""
    try:
        machine_of_step(stepped, specs)
    except Unlowerable as error:
        return str(error.args[0])
    return ""
