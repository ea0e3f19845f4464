"""Fuse instructions into fewer and larger ones with the same results.

A bias is merged into the product it is added to; products of the same row become one; tanh times
sigmoid becomes one function; and the part of a convolution that reads past rows, which are known
long before, is computed for many time steps at once, so that its weights are read only once.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from onepass.machine.assembly import Assembly, Instruction, Op, Place
from onepass.machine.formulas import CODES
from onepass.machine.kernels import LANES, pad_channels
from onepass.machine.values import Buffer

BLOCK = 16  # most time steps whose past rows are multiplied at once
_ADD, _MUL, _TANH, _SIGMOID, _GATE = (
    CODES[name] for name in ("Add", "Mul", "Tanh", "Sigmoid", "Gate")
)


class Fusion:
    """Fuses a step's instructions; `counters` are states that increase by one in every step."""

    def __init__(
        self,
        assembly: Assembly,
        instructions: Sequence[Instruction],
        counters: Collection[Buffer],
    ) -> None:
        self._assembly, self._counters = assembly, counters
        self.instructions = list(instructions)

    def run(self) -> list[Instruction]:
        """Return the instructions after all fusions."""
        for fuse in (
            self._biases,
            self._merge_products,
            self._gates,
            self._split_pasts,
            self._place_parts,
        ):
            self._note()
            fuse()
            self.instructions = [each for each in self.instructions if not self._is_dropped(each)]
        return self.instructions

    def _note(self) -> None:
        self._readers: dict[Buffer, list[Instruction]] = defaultdict(list)
        self._writers: dict[Buffer, list[Instruction]] = defaultdict(list)
        self._dropped: set[int] = set()
        for each in self.instructions:
            for buffer in {id(place.buffer): place.buffer for place in each.reads}.values():
                self._readers[buffer].append(each)
            if each.out is not None:
                self._writers[each.out.buffer].append(each)

    def _is_dropped(self, each: Instruction) -> bool:
        return id(each) in self._dropped

    def _drop(self, each: Instruction) -> None:
        self._dropped.add(id(each))

    def _rename(self, old: Buffer, new: Buffer, shift: int) -> None:
        """Redirect all readers of a buffer to a new buffer, in which its numbers are shifted."""
        for each in self._readers.pop(old, []):
            each.reads = [
                Place(new, place.start + shift) if place.buffer is old else place
                for place in each.reads
            ]
            self._readers[new].append(each)

    def _maker(self, place: Place, *ops: Op) -> Instruction | None:
        writers = self._writers[place.buffer]
        if place.buffer.kept or len(writers) != 1 or self._is_dropped(writers[0]):
            return None
        return writers[0] if writers[0].op in ops else None

    def _is_read_once(self, buffer: Buffer) -> bool:
        readers = self._readers[buffer]
        return len(readers) == 1 and sum(p.buffer is buffer for p in readers[0].reads) == 1

    def _biases(self) -> None:
        """Merge a constant that is added to a product into the product's bias."""
        for each in self.instructions:
            if each.op is not Op.MAP or each.numbers[0] != _ADD or each.out is None:
                continue
            for first, second, step in ((0, 1, 8), (1, 0, 7)):
                own, bias = each.reads[first], each.reads[second]
                product = self._summand(own, each.numbers[2])
                if product is not None and self._takes_bias(product, each, bias, step):
                    self._add_bias(product, bias)
                    self._rename(each.out.buffer, own.buffer, own.start)
                    self._drop(each)
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

    def _merge_products(self) -> None:
        groups: dict[tuple, list[Instruction]] = defaultdict(list)
        for each in self.instructions:
            if each.op is Op.PRODUCT and each.numbers[2] == 1 and each.out is not None:
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
                self._drop(each)
        first.out = Place(made, 0)
        first.reads[1:] = [Place(assembly.packed_matrix(whole), 0)]
        first.reads.append(Place(assembly.store_constants(bias, False), 0))
        first.numbers = (first.numbers[0], start // LANES, 1, 0, start)

    def _gates(self) -> None:
        """Replace tanh(a) sigmoid(b) with one function, which divides once instead of twice."""
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
                    self._drop(tanh)  # type: ignore[arg-type]
                    self._drop(sigmoid)  # type: ignore[arg-type]
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
            if each.op is Op.PRODUCT and each.numbers[2] == 1 and not self._is_dropped(each):
                parts = self._parts(each)
                if any(self._lag(part) for part in parts):
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
        # Past rows come first; the product of the current row is added to their sums.
        for copy in sorted(parts, key=lambda each: self._lag(each) == 0):
            start, count, lag = copy.out.start, copy.numbers[3], self._lag(copy)  # type: ignore[union-attr]
            weights = Place(assembly.packed_matrix(matrix[start : start + count]), 0)
            bias = product.reads[2] if not made else out
            if lag:
                read = self._maker(copy.reads[0], Op.READ)
                block = min(lag, BLOCK)
                sums = Buffer(block * vectors * LANES, False, kept=True)
                end = Buffer(1, True, kept=True)
                reads = [read.reads[0], weights, bias, read.reads[1], Place(sums, 0), Place(end, 0)]  # type: ignore[union-attr]
                numbers = (count, vectors, block, read.numbers[6], lag)  # type: ignore[union-attr]
                made.append(Instruction(Op.PAST, out, reads, numbers, False))  # type: ignore[arg-type]
            else:
                numbers = (count, vectors, 1, 0, vectors * LANES)
                made.append(Instruction(Op.PRODUCT, out, [copy.reads[0], weights, bias], numbers))  # type: ignore[list-item]
            self._drop(copy)
        at = self.instructions.index(product)
        self.instructions[at : at + 1] = made
        self._drop(product)

    def _place_parts(self) -> None:
        """Make instructions write parts of a concatenated row directly into the row."""
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
            self._drop(copy)
