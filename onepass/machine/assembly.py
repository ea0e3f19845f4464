"""Assemble instructions into a program: drop unused ones, fuse others, place buffers in memory.

A bias is merged into the product it is added to, as are a factor and another summand; products of
the same row become one; tanh times sigmoid becomes one function; and the part of a convolution that
reads past rows, which are known long before, is computed for many time steps at once, so that its
weights are read only once. So are products of arguments, which a call gives for all its steps.
"""

import dataclasses
import enum
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from onepass.machine.formulas import CODES
from onepass.machine.kernels import FLOAT32, LANES, aligned_zeros, pad_channels, words_of_vector
from onepass.machine.values import Buffer, Constant, Value, contiguous, is_wide
from onepass.machine.weights import kind_of, pack_matrix, pack_rows

WIDTH = 24  # number of integers in an instruction
WAITS, TELLS = 19, 20  # columns: the other thread's progress to wait for, and that after it
EARLY = 21  # column of a product for several steps: 1 if it is only computed, for the next step
FULL, LIMITED = WIDTH - 2, WIDTH - 1  # columns: the full value of a count, and its column
OPERANDS = 7  # of these, after the operation: one that is written, then six that are read
DIVIDED = 16  # column of a product: 0, 1 if a team divides it, or `BARRIER` if it waits before
BARRIER = 2
SCALE = 17  # column of a product: the bits of the float by which its addend is scaled; 0: none
KIND = 18  # column of a product or of a lookup: the kind of its weights
PANEL = 4  # vectors of outputs in a panel of a packed matrix, the least that a member computes
# Instructions until the memory of a small buffer is used again by threads that work together, which
# would wait for it.
_APART, _SMALL = 256, 1 << 12
_COMPARED = 4096  # numbers of constants at most of which equal ones are stored once
_WORTH_DIVIDING = 1 << 13  # weights of a product; reading fewer takes no longer than a barrier


class Op(enum.IntEnum):
    """Operations of the machine, which `execute.py` and `operations.py` define."""

    PRODUCT = 0
    MAP = 1
    MAP_DOUBLES = 2
    CONVERT = 3
    COPY = 4
    GATHER = 5
    READ = 6
    WRITE = 7
    ROWS = 8
    REDUCE = 9
    ARGMAX = 10
    CUMULATE = 11
    SOFTMAX = 12
    DOT = 13
    INPUT = 14
    OUTPUT = 15
    PAST = 16
    AHEAD = 17


PRODUCTS = (Op.PRODUCT, Op.PAST, Op.AHEAD)  # which a team can divide


@dataclasses.dataclass
class Place:
    """The position of a number in a buffer."""

    buffer: Buffer
    start: int

    @property
    def key(self) -> tuple[int, int]:
        """A key that is equal for equal places."""
        return self.buffer.number, self.start


@dataclasses.dataclass(eq=False)
class Instruction:
    """An operation of the machine with its operands."""

    op: Op
    out: Place | None
    reads: list[Place]
    numbers: tuple[int, ...] = ()  # sizes, strides and other integers that the operation needs
    stays: bool = False  # it has an effect besides its result, and must be kept
    limited: int | None = None  # index in `numbers` of a count of rows up to the position
    partly: tuple[Buffer, ...] = ()  # read only up to the position's row, with that limit
    scale: float | None = None  # of the last operand of a product, which is added; None: none is
    kind: int = 0  # of the weights that are read

    @property
    def key(self) -> tuple:
        """A key that is equal for instructions with the same result."""
        return self.op, tuple(place.key for place in self.reads), self.numbers

    def buffers(self) -> Iterable[Buffer]:
        """Return every buffer that the instruction reads or writes."""
        places = [*self.reads] + ([] if self.out is None else [self.out])
        return (place.buffer for place in places)


def place_of(value: Value) -> Place:
    """Return the place of a value's first number."""
    return Place(value.buffer, value.start)


@dataclasses.dataclass(frozen=True)
class Branches:
    """The choice of a step between branches, each of which has its list of instructions."""

    position: Buffer  # the state whose value modulo the period decides
    which: tuple[int, ...]  # the branch for each value, from 0 to the period less one

    @property
    def firsts(self) -> list[int]:
        """The first position at which each branch runs that runs at all."""
        return [self.which.index(number) for number in dict.fromkeys(self.which)]


class Assembly:
    """A list of instructions under construction, and the constants that they read.

    A step with branches has a list for each, all of which share states and constants.
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.constants: dict[Buffer, np.ndarray] = {}
        self.matrices: dict[Buffer, np.ndarray] = {}  # of products; they are packed at the end
        self.branches: Branches | None = None
        self.past_sums: dict[tuple, tuple[Place, Place, int]] = {}  # of products of past rows
        self._equal: dict[tuple, Value] = {}
        self._stored: dict[tuple, Buffer] = {}

    def begin_list(self) -> None:
        """Begin the list of the next branch."""
        self.instructions, self._equal = [], {}

    def add(
        self,
        op: Op,
        out: Value | None,
        reads: Sequence[Value],
        numbers: Sequence[int] = (),
        stays: bool = False,
        fills: bool = False,
        limited: int | None = None,
    ) -> Value:
        """Return an instruction's result, or an equal earlier one's; `fills`: of a part.

        Without a result, it returns None.
        """
        numbers = tuple(int(number) for number in numbers)
        target = None if out is None else place_of(out)
        made = Instruction(op, target, [place_of(value) for value in reads], numbers, stays)
        if limited is not None:
            made.limited = limited
            made.partly = tuple(each.buffer for each in reads if each.filled is not None)
        if not stays and not fills and out is not None:
            key = (made.key, out.shape, out.strides, out.dtype)
            if key in self._equal:
                return self._equal[key]
            self._equal[key] = out
        self.instructions.append(made)
        return out  # type: ignore[return-value]

    def store_constants(self, array: np.ndarray, wide: bool) -> Buffer:
        """Return a buffer with constant numbers; equal arrays share one, unless they are large."""
        array = np.ascontiguousarray(array, np.float64 if wide else np.float32).ravel()
        key = (wide, array.size, self._identify(array))
        if key not in self._stored:
            buffer = Buffer(array.size, wide, kept=True)
            self._stored[key], self.constants[buffer] = buffer, array
        return self._stored[key]

    def packed_matrix(self, matrix: np.ndarray) -> Buffer:
        """Return the buffer of a constant matrix [inputs, outputs] of products."""
        key = (matrix.shape, self._identify(matrix))
        if key not in self._stored:
            buffer = Buffer(pad_channels(matrix.shape[1]) * len(matrix), False, kept=True)
            self._stored[key], self.matrices[buffer] = buffer, matrix
        return self._stored[key]

    def _identify(self, array: np.ndarray) -> bytes | int:
        is_compared = array.size <= _COMPARED or self.branches  # which have the same weights
        return array.tobytes() if is_compared else id(array)

    def stored_indices(self, array: np.ndarray) -> Buffer:
        """Return a buffer with constant 32-bit integers."""
        return self.store_constants(
            np.ascontiguousarray(array, np.int32).ravel().view(np.float32), False
        )

    def value_of(self, constant: Constant) -> Value:
        """Return a constant as a value."""
        buffer = self.store_constants(constant.array, is_wide(constant.dtype))
        return dataclasses.replace(contiguous(constant.shape, constant.dtype), buffer=buffer)


@dataclasses.dataclass
class Program:
    """A program that the machine can run."""

    rows: np.ndarray
    close_rows: np.ndarray  # for a thread by itself: `rows` with buffers close together, in caches
    constants: np.ndarray
    workspace: np.ndarray  # the initial workspace of one row, before the first step, float32
    offsets: dict[Buffer, int]  # index of each buffer's first word in the workspace
    position: int  # index of the word in the workspace that holds the position; -1: none
    instructions: list[Instruction]  # those of `rows`
    extents: dict[Buffer, tuple[int, int]]  # the words between which each buffer may be written
    spans: np.ndarray  # first row, and that after the last, by position; [0, 2]: always all
    clock: int  # index of the word that holds the position that chooses one of `spans`

    def _divided_weights(self) -> np.ndarray:
        products = np.isin(self.rows[:, 0], PRODUCTS) & (self.rows[:, DIVIDED] > 0)
        numbers = self.rows[products, 1 + OPERANDS :].astype(np.int64)
        return numbers[:, 0] * numbers[:, 1] * LANES

    @functools.cached_property
    def divisible_weights(self) -> int:
        """Number of weights of the products that a team divides."""
        return int(self._divided_weights().sum())

    @functools.cached_property
    def mean_divided(self) -> int:
        """Mean number of weights of a product that a team divides."""
        return self.divisible_weights // max(1, len(self._divided_weights()))

    def phases_of(self, workspaces: np.ndarray) -> np.ndarray:
        """Return for each row of workspaces which of `spans` its next step runs."""
        if not len(self.spans):
            return np.zeros(len(workspaces), np.int64)
        words = np.ascontiguousarray(workspaces[:, self.clock : self.clock + 2])
        return words.view(np.float64)[:, 0].astype(np.int64) % len(self.spans)

    def process_all_rows(self) -> None:
        """Make all instructions process all rows of the state, filled or not."""
        self.rows, self.close_rows = self.rows.copy(), self.close_rows.copy()
        self.rows[:, LIMITED] = self.close_rows[:, LIMITED] = 0


def assemble_program(
    assembly: Assembly,
    kept: Sequence[Buffer],
    counter: Buffer | None,
    kind: int = FLOAT32,
    lists: Sequence[list[Instruction]] = (),
) -> Program:
    """Drop unused instructions, and assign offsets to the other buffers and those in `kept`.

    `counter` is the buffer in `kept` that holds the position; None: there is none. `kind` is that
    of large weights, and `lists` are the instructions of the branches, in the order of their
    `firsts`.
    """
    lists = [drop_unused(each) for each in lists or [assembly.instructions]]
    instructions = [each for one in lists for each in one]
    _pack_weights(assembly, instructions, kind)
    constants, fixed = _constants(assembly, instructions)
    ends = np.cumsum([len(each) for each in lists])
    bounds = np.stack([ends - [len(each) for each in lists], ends], 1)
    placed = [
        _place_buffers(instructions, set(assembly.constants), kept, apart) for apart in (_APART, 0)
    ]
    (offsets, _), (close, _) = placed
    rows, close_rows = (_rows_of(instructions, each, fixed, bounds) for each in (offsets, close))
    spans, clock, branches = np.zeros([0, 2], np.int64), -1, assembly.branches
    if branches is not None:
        order = list(dict.fromkeys(branches.which))
        spans = bounds[[order.index(number) for number in branches.which]].astype(np.int64)
        clock = offsets[branches.position]
    position = -1 if counter is None else offsets[counter]
    extents = {
        buffer: (at, at + _pad_words(buffer.words + (0 if buffer.kept else LANES - 1)))
        for buffer, at in offsets.items()
    }
    workspace = np.zeros(max(size for _, size in placed), np.float32)
    return Program(
        rows, close_rows, constants, workspace, offsets, position, instructions, extents, spans,
        clock,
    )  # fmt: skip


def _rows_of(
    instructions: Sequence[Instruction],
    offsets: dict[Buffer, int],
    fixed: dict[Buffer, int],
    bounds: np.ndarray,
) -> np.ndarray:
    """Return the integers of instructions, those of each branch between two of `bounds`."""
    rows = np.zeros([len(instructions), WIDTH], np.int32)
    for row, each in zip(rows, instructions, strict=True):
        places = [each.out, *each.reads]
        row[0], row[KIND] = each.op, each.kind
        for index, place in enumerate(places):
            row[1 + index] = 0 if place is None else _word(place, offsets, fixed)
        row[1 + OPERANDS : 1 + OPERANDS + len(each.numbers)] = each.numbers
        if each.scale is not None:
            row[SCALE] = np.float32(each.scale).view(np.int32)
        if each.limited is not None:
            column = 1 + OPERANDS + each.limited
            row[FULL], row[LIMITED] = row[column], column
    for first, last in bounds:
        announce_products(rows[first:last])
        _divide(rows[first:last])
    return rows


def announce_products(rows: np.ndarray) -> None:
    """Let every product know the weights of the next one, to prefetch them."""
    first = 1 + OPERANDS
    products = rows[rows[:, 0] == Op.PRODUCT]
    following = np.roll(products, -1, 0)
    kinds, inputs, vectors = following[:, KIND], following[:, first], following[:, first + 1]
    of_vector = [words_of_vector(kind, n) for kind, n in zip(kinds, inputs, strict=True)]
    # Weights are constants, whose addresses are stored as complements.
    products[:, first + 5] = ~following[:, 3]
    products[:, first + 6] = -(-vectors // 4)  # panels
    products[:, first + 7] = 4 * np.array(of_vector, np.int32)  # words of a panel of four
    rows[rows[:, 0] == Op.PRODUCT] = products


def _divide(rows: np.ndarray) -> None:
    """Mark the products that a team divides, and those before which its members wait.

    A barrier lies between a divided instruction and one that is not. Of two divided ones, the
    second needs none before it unless it reads or overwrites what the first writes or reads; a
    column of the same outputs is computed by the same member.
    """
    written: list[tuple[int, int, tuple]] = []  # first and last word, and the outputs, since then
    read: list[tuple[int, int]] = []
    for row in rows:
        inputs, vectors, each = (int(number) for number in row[1 + OPERANDS : 4 + OPERANDS])
        is_past = row[0] in (Op.PAST, Op.AHEAD)
        is_product = is_past or (row[0] == Op.PRODUCT and not row[LIMITED])
        if not is_product or vectors < 2 * PANEL or inputs * vectors * LANES < _WORTH_DIVIDING:
            written, read = [], []
            continue
        pitch_in, pitch_out = (0, 0) if is_past else (int(row[11]), int(row[12]))
        repeats = 0 if is_past else each - 1
        if row[0] == Op.AHEAD:
            size_in = (2 * each - 1) * int(row[12]) + inputs
        else:
            size_in = inputs * int(row[11]) if is_past else pitch_in * repeats + inputs
        source = (int(row[2]), int(row[2]) + size_in)
        start = int(row[1])
        columns = (start, vectors, repeats, pitch_out if repeats else 0)
        out = (start, start + pitch_out * repeats + vectors * LANES, columns)
        overlaps = any(source[0] < high and low < source[1] for low, high, _ in written)
        overlaps |= any(out[0] < high and low < out[1] for low, high in read)
        overlaps |= any(
            out[0] < high and low < out[1] and columns != other for low, high, other in written
        )
        sources = [source]
        if row[0] != Op.PAST and row[SCALE]:
            first = int(row[6] if row[0] == Op.AHEAD else row[5])
            sources.append((first, first + vectors * LANES))
            same = first, *columns[1:]  # outputs that the same member has computed
            overlaps |= any(
                first < high and low < first + vectors * LANES and same != other
                for low, high, other in written
            )
        row[DIVIDED] = BARRIER if overlaps or not written else 1
        if overlaps:
            written, read = [], []
        written.append(out)
        read += sources


def _word(place: Place, offsets: dict[Buffer, int], fixed: dict[Buffer, int]) -> int:
    start = place.start * (2 if place.buffer.wide else 1)
    if place.buffer in fixed:
        return ~(fixed[place.buffer] + start)
    return offsets[place.buffer] + start


def drop_unused(instructions: list[Instruction]) -> list[Instruction]:
    """Return the instructions whose results are used, in order."""
    read: set[Buffer] = set()
    found = []
    for each in reversed(instructions):
        if each.stays or (each.out is not None and each.out.buffer in read):
            found.append(each)
            read.update(place.buffer for place in each.reads)
    return found[::-1]


def _pad_words(words: int) -> int:
    return -(-words // LANES) * LANES


def _pack_weights(assembly: Assembly, instructions: list[Instruction], kind: int) -> None:
    """Store the matrices of products, and of tables their rows, in their kinds."""
    stored: dict[Buffer, Buffer] = {}
    for each in instructions:
        table = _table_of(assembly, each)
        if each.op not in PRODUCTS and table is None:
            continue
        read = 1 if each.op in PRODUCTS else 0
        old = each.reads[read].buffer
        array = assembly.matrices[old] if table is None else table
        own = kind_of(array, kind)
        if table is not None and own == FLOAT32:
            continue
        if old not in stored:
            packed = pack_matrix(array, own) if table is None else pack_rows(array, own)
            stored[old] = Buffer(packed.size, False, kept=True)
            assembly.constants[stored[old]] = packed
        each.kind, each.reads[read] = own, Place(stored[old], 0)


def _table_of(assembly: Assembly, each: Instruction) -> np.ndarray | None:
    """Return the constant float32 table [rows, channels] of which an instruction reads rows."""
    if each.op not in (Op.READ, Op.ROWS) or each.reads[0].start:
        return None
    array, numbers = assembly.constants.get(each.reads[0].buffer), each.numbers
    if array is None or each.reads[0].buffer.wide:
        return None
    whole = numbers[1] == 1 if each.op is Op.READ else True
    channels, step = numbers[2], numbers[4]
    is_table = whole and channels == step and array.size % channels == 0
    return array.reshape([-1, channels]) if is_table else None


def _constants(
    assembly: Assembly, instructions: list[Instruction]
) -> tuple[np.ndarray, dict[Buffer, int]]:
    fixed, size = {}, 0
    for each in instructions:  # in the order in which they are read
        for buffer in each.buffers():
            if buffer in assembly.constants and buffer not in fixed:
                fixed[buffer] = size
                size += _pad_words(buffer.words)
    constants = aligned_zeros(size + LANES)
    for buffer, at in fixed.items():
        constants[at : at + buffer.words] = assembly.constants[buffer].view(np.float32)
    return constants, fixed


def _place_buffers(
    instructions: list[Instruction], constant: set[Buffer], kept: Sequence[Buffer], apart: int
) -> tuple[dict[Buffer, int], int]:
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for time, each in enumerate(instructions):
        for buffer in each.buffers():
            if buffer not in constant:
                first.setdefault(buffer, time)
                last[buffer] = time
    offsets: dict[Buffer, int] = {}
    size = 0
    inner = [buffer for buffer in first if buffer.kept and buffer not in kept]
    for buffer in [*kept, *inner]:
        offsets[buffer], size = size, size + _pad_words(buffer.words)
    free: list[tuple[int, int]] = []  # (start, size) of free memory
    ends: list[tuple[int, Buffer]] = []
    for buffer in sorted((b for b in first if not b.kept), key=lambda b: first[b]):
        now = first[buffer]
        for ended, old in [x for x in ends if x[0] + apart * (x[1].words <= _SMALL) < now]:
            ends.remove((ended, old))
            free = _merge_free([*free, (offsets[old], _pad_words(old.words + LANES - 1))])
        words = _pad_words(buffer.words + LANES - 1)  # vector stores may write past the last row
        fits = [room for room in free if room[1] >= words]
        if fits:
            # The smallest room that fits, which leaves larger rooms for larger buffers.
            room = min(fits, key=lambda each: each[1])
            free.remove(room)
            offsets[buffer] = room[0]
            if room[1] > words:
                free.append((room[0] + words, room[1] - words))
        else:
            offsets[buffer], size = size, size + words
        ends.append((last[buffer], buffer))
    return offsets, size + LANES


def _merge_free(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, size in sorted(free):
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((start, size))
    return joined


BLOCK = 16  # most time steps whose past rows are multiplied at once
_ADD, _SUB, _MUL, _TANH, _SIGMOID, _GATE = (
    CODES[name] for name in ("Add", "Sub", "Mul", "Tanh", "Sigmoid", "Gate")
)


class Fusion:
    """Fuses a step's instructions; `counters` are states that increase by one in every step."""

    def __init__(
        self, assembly: Assembly, instructions: Sequence[Instruction], counters: Collection[Buffer]
    ) -> None:
        self._assembly, self._counters = assembly, counters
        self.instructions = list(instructions)
        self._blocks: dict[int, int] = defaultdict(int)  # number of products, by steps at once

    def run(self) -> list[Instruction]:
        """Return the instructions after all fusions."""
        before = 0
        while before != len(self.instructions):  # each may make another one possible
            before = len(self.instructions)
            for fuse in (self._biases, self._identities, self._factors, self._sums):
                self._apply(fuse)
        for fuse in (
            self._merge_products,
            self._gates,
            self._split_pasts,
            self._products_ahead,
            self._place_parts,
        ):
            self._apply(fuse)
        return self.instructions

    def _apply(self, fuse: Callable[[], None]) -> None:
        self._note()
        fuse()
        self.instructions = [each for each in self.instructions if each not in self._dropped]

    def _note(self) -> None:
        self._readers: dict[Buffer, list[Instruction]] = defaultdict(list)
        self._writers: dict[Buffer, list[Instruction]] = defaultdict(list)
        self._dropped: set[Instruction] = set()
        for each in self.instructions:
            for buffer in {place.buffer for place in each.reads}:
                self._readers[buffer].append(each)
            if each.out is not None:
                self._writers[each.out.buffer].append(each)

    def _rename(self, old: Buffer, new: Buffer, shift: int) -> None:
        for each in self._readers.pop(old, []):
            each.reads = [
                Place(new, place.start + shift) if place.buffer is old else place
                for place in each.reads
            ]
            self._readers[new].append(each)

    def _maker(self, place: Place, *ops: Op) -> Instruction | None:
        writers = self._writers[place.buffer]
        if place.buffer.kept or len(writers) != 1 or writers[0] in self._dropped:
            return None
        return writers[0] if writers[0].op in ops else None

    def _is_read_once(self, buffer: Buffer) -> bool:
        readers = self._readers[buffer]
        return len(readers) == 1 and sum(p.buffer is buffer for p in readers[0].reads) == 1

    def _biases(self) -> None:
        for each in self.instructions:
            if each.op is not Op.MAP or each.numbers[0] != _ADD or each.out is None:
                continue
            for first, second, step in ((0, 1, 8), (1, 0, 7)):
                own, bias = each.reads[first], each.reads[second]
                product = self._summand(own, each.numbers[2])
                if product is not None and self._takes_bias(product, each, bias, step):
                    self._add_bias(product, bias)
                    self._rename(each.out.buffer, own.buffer, own.start)
                    self._dropped.add(each)
                    break

    def _summand(self, place: Place, count: int) -> Instruction | None:
        """Return the product that computes a value, or that is a term of a sum that computes it."""
        if not self._is_read_once(place.buffer) or place.start:
            return None
        made = self._maker(place, Op.PRODUCT, Op.MAP)
        if made is None or made.op is Op.PRODUCT:
            return made
        if made.numbers[0] != _ADD or made.numbers[1:3] != (1, count):
            return None
        for index, step in ((0, 7), (1, 8)):
            if made.numbers[step] == 1:
                product = self._summand(made.reads[index], count)
                if product is not None:
                    return product
        return None

    def _takes_bias(self, product: Instruction, add: Instruction, bias: Place, step: int) -> bool:
        outer, inner = add.numbers[1:3]
        outputs = self._assembly.matrices[product.reads[1].buffer].shape[1]
        return (
            (outer, inner, product.numbers[2]) == (1, outputs, 1)
            and bias.buffer in self._assembly.constants
            and (bias.start, bias.buffer.size, add.numbers[step]) == (0, inner, 1)
            and not bias.buffer.wide
        )

    def _add_bias(self, product: Instruction, bias: Place) -> None:
        constants = self._assembly.constants
        total = np.zeros(pad_channels(bias.buffer.size), np.float32)
        before = constants[product.reads[2].buffer]
        total[: before.size] += before
        total[: bias.buffer.size] += constants[bias.buffer]
        product.reads[2] = Place(self._assembly.store_constants(total, False), 0)

    def _is_flat(self, each: Instruction, *codes: int) -> bool:
        """Return whether an instruction maps by one of these functions along a single axis."""
        return (
            each.op is Op.MAP
            and each.out is not None
            and each.numbers[0] in codes
            and each.numbers[1] == 1
            and each.limited is None
            and not (each.stays or each.out.start or each.out.buffer.kept)
            and len(self._writers[each.out.buffer]) == 1
        )

    def _constant(self, place: Place, step: int, count: int) -> np.ndarray | None:
        """Return the floats that a map reads, one for all or `count`; None if they are computed."""
        array = self._assembly.constants.get(place.buffer)
        if array is None or place.buffer.wide or step not in (0, 1):
            return None
        return array[place.start : place.start + (count if step else 1)]

    def _identities(self) -> None:
        """Drop sums with zero and products with one."""
        for each in self.instructions:
            if not self._is_flat(each, _ADD, _MUL):
                continue
            count, neutral = each.numbers[2], float(each.numbers[0] == _MUL)
            for index in (0, 1):
                source = each.reads[1 - index]
                array = self._constant(each.reads[index], each.numbers[7 + index], count)
                same = each.numbers[8 - index] == 1 and not source.buffer.kept
                if array is not None and (array == neutral).all() and same:
                    self._rename(each.out.buffer, source.buffer, source.start)  # type: ignore[union-attr]
                    self._dropped.add(each)
                    break

    def _lone_product(self, place: Place, step: int, count: int) -> Instruction | None:
        """Return the product of one row all of whose outputs are read only here, or None."""
        made = self._maker(place, Op.PRODUCT)
        if made is None or place.start or made.out.start or made.numbers[2] != 1 or step != 1:  # type: ignore[union-attr]
            return None
        outputs = self._assembly.matrices[made.reads[1].buffer].shape[1]
        return made if outputs == count and self._is_read_once(place.buffer) else None

    def _factors(self) -> None:
        """Multiply weights and biases by the constants that their products are multiplied by."""
        for each in self.instructions:
            if not self._is_flat(each, _MUL):
                continue
            for index in (0, 1):
                steps, count = each.numbers[7:9], each.numbers[2]
                factor = self._constant(each.reads[index], steps[index], count)
                product = self._lone_product(each.reads[1 - index], steps[1 - index], count)
                if factor is None or product is None:
                    continue
                if factor.size == 1 or product.scale is None:
                    self._scale(product, factor)
                    product.out = each.out
                    self._writers[each.out.buffer] = [product]  # type: ignore[union-attr]
                    self._dropped.add(each)
                    break

    def _scale(self, product: Instruction, factor: np.ndarray) -> None:
        assembly = self._assembly
        matrix, bias = (
            assembly.matrices[product.reads[1].buffer],
            assembly.constants[product.reads[2].buffer],
        )
        product.reads[1] = Place(assembly.packed_matrix(matrix * factor), 0)
        wide = np.zeros(bias.size, np.float32)
        wide[: matrix.shape[1]] = bias[: matrix.shape[1]] * factor
        product.reads[2] = Place(assembly.store_constants(wide, False), 0)
        if product.scale is not None:
            product.scale *= float(factor.item())

    def _sums(self) -> None:
        """Let products begin with what they are added to, or subtracted from."""
        order = {each: index for index, each in enumerate(self.instructions)}
        moved: dict[Instruction, Instruction] = {}
        for each in self.instructions:
            if not self._is_flat(each, _ADD, _SUB):
                continue
            found = []
            for index in (0, 1):
                steps, other = each.numbers[7:9], each.reads[1 - index].buffer
                product = self._lone_product(each.reads[index], steps[index], each.numbers[2])
                is_plain = steps[1 - index] == 1 and not other.wide
                if product is None or product.scale is not None or not is_plain:
                    continue
                parts = self._parts(product)
                is_late = bool(parts) and all(self._lag(part) for part in parts)
                if other not in self._assembly.constants and not is_late:
                    found.append((order[product], index, product))
            if not found:
                continue
            _, index, product = max(found, key=lambda one: one[0])
            is_difference = each.numbers[0] == _SUB
            if is_difference and index == 1:
                self._scale(product, np.full(1, -1.0, np.float32))
            product.scale = -1.0 if is_difference and index == 0 else 1.0
            product.reads.append(each.reads[1 - index])
            self._readers[each.reads[1 - index].buffer].append(product)
            product.out = each.out
            self._writers[each.out.buffer] = [product]  # type: ignore[union-attr]
            order[product] = order[each]
            moved[each] = product
        late = set(moved.values())
        self.instructions = [
            moved.get(each, each) for each in self.instructions if each not in late
        ]

    def _merge_products(self) -> None:
        groups: dict[tuple, list[Instruction]] = defaultdict(list)
        for each in self.instructions:
            is_whole = each.scale is None and each.out is not None
            if each.op is Op.PRODUCT and each.numbers[2] == 1 and is_whole:
                groups[each.reads[0].key, each.numbers[0]].append(each)
        for group in groups.values():
            if len(group) > 1:
                self._merge(group)

    def _merge(self, group: list[Instruction]) -> None:
        assembly, first = self._assembly, group[0]
        matrices = [assembly.matrices[each.reads[1].buffer] for each in group]
        widths = [pad_channels(matrix.shape[1]) for matrix in matrices]
        whole = np.zeros([matrices[0].shape[0], sum(widths)], np.float32)
        bias, start = np.zeros(sum(widths), np.float32), 0
        made = Buffer(sum(widths), False)
        for each, matrix, width in zip(group, matrices, widths, strict=True):
            whole[:, start : start + matrix.shape[1]] = matrix
            own = assembly.constants[each.reads[2].buffer]
            bias[start : start + own.size] = own
            self._rename(each.out.buffer, made, start)  # type: ignore[union-attr]
            start += width
            if each is not first:
                self._dropped.add(each)
        first.out = Place(made, 0)
        first.reads[1:] = [Place(assembly.packed_matrix(whole), 0)]
        first.reads.append(Place(assembly.store_constants(bias, False), 0))
        first.numbers = (first.numbers[0], start // LANES, 1, 0, start)

    def _gates(self) -> None:
        for each in self.instructions:
            if each.op is not Op.MAP or each.numbers[0] != _MUL:
                continue
            for first, second in ((0, 1), (1, 0)):
                tanh, sigmoid = (self._maker(each.reads[i], Op.MAP) for i in (first, second))
                if self._makes_gate(each, tanh, _TANH) and self._makes_gate(
                    each, sigmoid, _SIGMOID
                ):
                    each.reads = [tanh.reads[0], sigmoid.reads[0]]  # type: ignore[union-attr]
                    each.numbers = (_GATE, *each.numbers[1:])
                    self._dropped.add(tanh)  # type: ignore[arg-type]
                    self._dropped.add(sigmoid)  # type: ignore[arg-type]
                    break

    def _makes_gate(self, gate: Instruction, half: Instruction | None, code: int) -> bool:
        simple = (1, gate.numbers[2], 1, 1)  # one axis, along which all arguments have equal length
        return (
            half is not None
            and half.out is not None
            and half.numbers[0] == code
            and self._is_read_once(half.out.buffer)
            and all(p.start == 0 for p in gate.reads[:2])
            and (half.numbers[1], half.numbers[2], half.numbers[7], gate.numbers[1])
            == (*simple[:3], 1)
            and gate.numbers[7] == gate.numbers[8] == 1
        )

    def _split_pasts(self) -> None:
        """Split products of concatenated rows, to multiply past rows for many steps at once."""
        for each in list(self.instructions):
            if each.op is Op.PRODUCT and each.numbers[2] == 1 and each not in self._dropped:
                parts = self._parts(each)
                if any(self._lag(part) or self._argument_of(part) for part in parts):
                    self._split(each, parts)

    def _parts(self, product: Instruction) -> list[Instruction]:
        """Return the copies that fill a product's row; [] if they do not fill it completely."""
        place = product.reads[0]
        copies = self._writers[place.buffer]
        if place.buffer.kept or place.start or place.buffer.size != product.numbers[0]:
            return []
        if any(each is not product for each in self._readers[place.buffer]):
            return []
        simple = all(
            each.op is Op.COPY and each.numbers[:3] == (1, 1, 1) and each.numbers[6::3] == (1, 1)
            for each in copies
        )
        whole = sum(each.numbers[3] for each in copies if each.op is Op.COPY)
        return copies if simple and whole == product.numbers[0] else []

    def _lag(self, copy: Instruction) -> int:
        """Return the age in time steps of the row that `copy` copies; 0 if it is not of a ring."""
        read = self._maker(copy.reads[0], Op.READ)
        if read is None or read.numbers[:2] != (1, 1) or copy.numbers[3] != read.numbers[2]:
            return 0
        ring, at = read.reads
        *_, count, _, step, add, size, last = read.numbers
        writes = [each for each in self._readers[ring.buffer] if each.op is Op.WRITE]
        written = [each for each in writes if each.reads[2].buffer is ring.buffer]
        if at.buffer not in self._counters or len(written) != 1 or not ring.buffer.kept:
            return 0
        write = written[0]
        # Only rings that are written at the position itself contain rows of known age.
        same = write.reads[1].key == at.key and write.numbers[5:] == (0, size, last)
        if not same or count != step or ring.start or last != size - 1 or add >= size:
            return 0
        return size - add

    def _split(self, product: Instruction, parts: list[Instruction]) -> None:
        assembly, out = self._assembly, product.out
        matrix = assembly.matrices[product.reads[1].buffer]
        vectors = product.numbers[1]
        made: list[Instruction] = []

        def is_late(copy: Instruction) -> int:
            return 0 if self._lag(copy) else 2 - bool(self._argument_of(copy))

        # Past rows and arguments come first; the product of the current row is added to their sums.
        for copy in sorted(parts, key=is_late):
            start, count, lag = copy.out.start, copy.numbers[3], self._lag(copy)  # type: ignore[union-attr]
            weights = Place(assembly.packed_matrix(matrix[start : start + count]), 0)
            bias = product.reads[2] if not made else out
            if lag:
                read = self._maker(copy.reads[0], Op.READ)
                own = None if bias is out else bias.key  # type: ignore[union-attr]
                key = read.reads[0].key, weights.key, own, vectors, lag  # type: ignore[union-attr]
                if key not in assembly.past_sums:  # branches share them
                    assembly.past_sums[key] = self._new_sums(min(lag, BLOCK), vectors)
                sums, end, begun = assembly.past_sums[key]
                reads = [read.reads[0], weights, bias, read.reads[1], sums, end]  # type: ignore[union-attr]
                numbers = (count, vectors, min(lag, BLOCK), read.numbers[6], lag, begun)  # type: ignore[union-attr]
                made.append(Instruction(Op.PAST, out, reads, numbers, False))  # type: ignore[arg-type]
            else:
                sizes = (count, vectors, 1, 0, vectors * LANES)
                made.append(Instruction(Op.PRODUCT, out, [copy.reads[0], weights, bias], sizes))  # type: ignore[list-item]
            self._dropped.add(copy)
        if product.scale is not None:
            made[-1].scale, made[-1].reads = product.scale, [*made[-1].reads, product.reads[3]]
        at = self.instructions.index(product)
        self.instructions[at : at + 1] = made
        self._dropped.add(product)

    def _new_sums(self, block: int, vectors: int) -> tuple[Place, Place, int]:
        sums, end = Buffer(block * vectors * LANES, False, kept=True), Buffer(1, True, kept=True)
        return Place(sums, 0), Place(end, 0), self._begun(block)

    def _begun(self, block: int) -> int:
        """Return how many steps late the blocks of one more product begin, to spread the work."""
        self._blocks[block] += 1
        return self._blocks[block] % block

    def _argument_of(self, copy: Instruction) -> Instruction | None:
        return self._argument(copy.reads[0], copy.numbers[3])

    def _argument(self, place: Place, count: int) -> Instruction | None:
        """Return the instruction that reads the argument of floats that `place` is in, or None.

        Several values are worth a product ahead; a single one is usually a symbol or its noise. A
        branch does not run at every step, as products ahead have to.
        """
        if self._assembly.branches is not None:
            return None
        made = self._maker(place, Op.INPUT)
        if made is None or place.buffer.wide or count < LANES:
            return None
        return made if made.numbers[2] == place.buffer.size else None

    def _products_ahead(self) -> None:
        """Multiply arguments for many steps at once."""
        rows: dict[Buffer, Place] = {}
        for each in list(self.instructions):
            if each.op is not Op.PRODUCT or each.numbers[2] != 1:
                continue
            source, (inputs, vectors) = each.reads[0], each.numbers[:2]
            argument = self._argument(source, inputs)
            if argument is None:
                continue
            size = source.buffer.size
            if source.buffer not in rows:
                made = Instruction(
                    Op.INPUT,
                    Place(Buffer(2 * BLOCK * size, False, kept=True), 0),
                    [],
                    (*argument.numbers[:3], BLOCK),
                )
                self.instructions.insert(self.instructions.index(argument), made)
                rows[source.buffer] = made.out  # type: ignore[assignment]
            sums = Buffer(BLOCK * vectors * LANES, False, kept=True)
            each.op, each.numbers = Op.AHEAD, (inputs, vectors, BLOCK, self._begun(BLOCK), size)
            here = Place(rows[source.buffer].buffer, source.start)
            each.reads = [here, *each.reads[1:3], Place(sums, 0), *each.reads[3:]]
        self.instructions = drop_unused(self.instructions)

    def _place_parts(self) -> None:
        # These write exactly their numbers; other operations write whole vectors, past the end.
        for copy in self.instructions:
            if copy.op is not Op.COPY or copy.out is None or copy.out.buffer.kept or copy.stays:
                continue
            if copy.numbers[1:3] != (1, 1) or copy.numbers[6::3] != (1, 1):
                continue
            source = copy.reads[0]
            maker = self._maker(source, Op.READ, Op.ROWS, Op.GATHER, Op.INPUT)
            whole = source.start == 0 and source.buffer.size == copy.numbers[3]
            if maker is None or not whole or source.buffer.wide != copy.out.buffer.wide:
                continue
            maker.out = copy.out
            self._rename(source.buffer, copy.out.buffer, copy.out.start)
            self._dropped.add(copy)
