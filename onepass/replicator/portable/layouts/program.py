"""Read the operations of a compiled program and their dependencies from XLA's text.

A program that XLA has partitioned describes one device: shapes are those of its shards, and
exchanges between devices are separate operations. The text is in scheduled order.
"""

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
# These operations take no time.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota"),
    *("partition-id", "replica-id", "after-all", "opt-barrier"),
}
_LINE = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][a-z\d-]*)\(([^()]*)\)(.*)$")
_HEADER = re.compile(r"^(ENTRY )?%([\w.-]+) .*\{$")
_SHAPE = re.compile(r"\b([a-z]+)(\d*)[a-z\d]*\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|body|condition|to_apply)=%([\w.-]+)")
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]+)\}|\[(?:\d+,)*(\d+)\]<=|mesh\[(.*?)\] \{(.*?)\})"
)
COMPUTE, LINK = "compute", "link"


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation on a resource, which starts when its inputs are available.

    Attributes:
      name: name in the program; all parts of a combined collective have the same name.
      kind: name of a collective; for any other operation, a digest of the computation without
        shapes.
      size_bytes: number of bytes read and written; for a collective, the size of one device's
        input.
      inputs: indices of earlier operations that it waits for.
      seconds: duration; for a collective, it is computed from the network instead.
    """

    name: str
    kind: str
    size_bytes: float
    inputs: tuple[int, ...] = ()
    devices: int = 1
    resource: str = COMPUTE
    seconds: float = 0.0

    @property
    def is_collective(self) -> bool:
        """True if devices exchange data."""
        return self.kind in COLLECTIVES


def read_program(text: str, num_devices: int) -> list[Operation]:
    """Return the operations of the entry computation in order, except those that take no time."""
    called = dict(_computations(text))
    entry = called.pop("ENTRY", [])
    digests: dict[str, str] = {}
    program: list[Operation] = []
    given: dict[str, tuple[int, ...]] = {}  # operations that compute each value, by name
    pieces: dict[str, list[tuple[int, ...]]] = {}  # parts of a combined collective, by element
    sizes: dict[str, int] = {}
    for line in entry:
        name, shape, opcode, operands, rest = line
        read = re.findall(r"%([\w.-]+)", operands)
        sizes[name] = _bytes(shape)
        waits = tuple(sorted({index for each in read for index in given.get(each, ())}))
        opcode = opcode.removesuffix("-start")
        if opcode in _FREE or opcode.endswith("-done"):
            element = re.search(r"index=(\d+)", rest)
            whole = pieces.get(read[0]) if read else None
            given[name] = whole[int(element[1])] if whole and element else waits
            if whole and not element:
                pieces[name] = whole
        elif opcode in COLLECTIVES:
            group = _group(rest, num_devices)
            pieces[name] = []
            for each in read:
                pieces[name].append((len(program),))
                size = float(sizes[each])
                program.append(Operation(name, opcode, size, given.get(each, ()), group, LINK))
            given[name] = tuple(index for (index,) in pieces[name])
        else:
            given[name] = (len(program),)
            moved = sizes[name] + sum(sizes.get(each, 0) for each in read)
            kind = _kind(opcode, rest, called, digests)
            program.append(Operation(name, kind, float(moved), waits))
    return program


def combine_collectives(program: list[Operation], most_bytes: float = math.inf) -> list[Operation]:
    """Return the program with combined collectives split into buckets of at most `most_bytes`.

    The parts of a collective are exchanged in order, in buckets, each as soon as its contents are
    ready. With infinite buckets, the collectives are as compiled.
    """
    made: list[Operation] = []
    moved_to: list[int] = []  # new index of each operation
    for operation in program:
        inputs = tuple(sorted({moved_to[index] for index in operation.inputs}))
        last = made[-1] if made else None
        joins = (
            operation.is_collective
            and last is not None
            and last.name == operation.name
            and last.size_bytes + operation.size_bytes <= most_bytes
        )
        if joins and last is not None:
            size = last.size_bytes + operation.size_bytes
            waits = tuple(sorted({*last.inputs, *inputs}))
            made[-1] = dataclasses.replace(last, size_bytes=size, inputs=waits)
        else:
            made.append(dataclasses.replace(operation, inputs=inputs))
        moved_to.append(len(made) - 1)
    return made


def _computations(text: str) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    lines: list[tuple[str, ...]] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            lines = []
            yield "ENTRY" if header[1] else header[2], lines
        elif found := _LINE.match(line):
            lines.append(found.groups())


def _bytes(shape: str) -> int:
    total = 0
    for letters, bits, sizes in _SHAPE.findall(shape):
        width = 8 if letters in ("pred", "s", "u", "f", "bf", "c") and not bits else int(bits or 0)
        total += math.prod(map(int, filter(None, sizes.split(",")))) * max(width, 8) // 8
    return total


def _group(rest: str, num_devices: int) -> int:
    found = _GROUPS.search(rest)
    if found is None:
        return num_devices
    if found[1]:
        return found[1].count(",") + 1
    if found[2]:
        return int(found[2])
    axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[3])}
    return math.prod(axes[name] for name in re.findall(r"'(\w+)'", found[4]))


def _kind(opcode: str, rest: str, called: dict[str, list], digests: dict[str, str]) -> str:
    names = _CALLED.findall(rest)
    return "-".join([opcode, *(_digest(name, called, digests) for name in names)])


def _digest(name: str, called: dict[str, list], digests: dict[str, str]) -> str:
    if name not in digests:
        parts = (
            _kind(opcode, rest, called, digests) for _, _, opcode, _, rest in called.get(name, [])
        )
        digests[name] = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]
    return digests[name]
