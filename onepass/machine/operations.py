"""The operations of the machine, each for one batch row, except products and maps.

`p` is the address of an instruction: columns with the operation, the offsets of its operands and,
from column 8 on, its numbers. The other arguments are addresses of operands. Everything is an
integer, since Numba counts the references to an array at every call. Sizes and strides count
numbers.
"""

import numpy as np

from onepass.machine.compiler import compiled
from onepass.machine.formulas import CODES, VECTORISED, function_of, map_vectors
from onepass.machine.kernels import (
    LANES,
    VECTOR_BYTES,
    add,
    add_multiple,
    add_scaled,
    copy,
    copy_part,
    dot,
    dots,
    double_at,
    field,
    float_at,
    max_of,
    multiply_kind,
    prefetch,
    row_words,
    set_double,
    set_float,
    sum_of,
    vector_words,
    widen_row,
)

_SUM, _MEAN, _LARGEST, _LEAST, _PRODUCT_OF = range(5)  # functions of REDUCE
_SUBTRACT, _TIMES, _EXP = (CODES[name] for name in ("Sub", "Mul", "Exp"))


@compiled
def _map_vectors(
    code: int,
    o: int,
    a: int,
    b: int,
    c: int,
    o_pitch: int,
    a_pitch: int,
    b_pitch: int,
    c_pitch: int,
    a_step: int,
    b_step: int,
    c_step: int,
    rows: int,
    vectors: int,
) -> None:
    """Call `map_vectors`; a separate function, so that its code is compiled only once."""
    map_vectors(
        code, o, a, b, c, o_pitch, a_pitch, b_pitch, c_pitch, a_step, b_step, c_step, rows, vectors
    )


@compiled
def product(
    p: int,
    o: int,
    a: int,
    w: int,
    bias: int,
    addend: int,
    o_step: int,
    a_step: int,
    rows: int,
    first: int,
    count: int,
) -> None:
    """Set rows at o to rows at a times a packed matrix plus a bias; add to them if bias is o.

    With a scale in column 17, that many times the row at `addend` in the workspace is added, too.
    Only the `count` vectors of outputs from vector `first` are computed; `first` starts a panel.
    """
    inputs, each, a_pitch, o_pitch = field(p, 8), field(p, 10), field(p, 11), field(p, 12)
    skip, kind = first * VECTOR_BYTES, field(p, 18)
    o, bias, addend = o + skip, bias + skip, addend + skip
    w += 4 * first * vector_words(kind, inputs)
    adds = o == bias
    if each == 1:
        scale, b_step = float_at(p + 4 * 17), o_step if adds else np.int64(0)
        scaled = addend if field(p, 17) else np.int64(0)
        multiply_kind(
            kind, o, o_step, w, a, a_step, rows, inputs, count, bias, b_step, scale, scaled, o_step
        )
        return
    o_pitch, a_pitch = 4 * o_pitch, 4 * a_pitch
    for row in range(rows):
        y, x = o + row * o_step, a + row * a_step
        b, b_pitch = (y, o_pitch) if adds else (bias, np.int64(0))
        multiply_kind(kind, y, o_pitch, w, x, a_pitch, each, inputs, count, b, b_pitch)


@compiled
def ask(p: int, fixed: int, member: int, members: int) -> None:
    """Prefetch the first cache lines of the weights that a member reads in the next product."""
    panels = field(p, 14)
    first, last = panels * member // members, panels * (member + 1) // members
    if first < last:
        prefetch(fixed + 4 * (field(p, 13) + first * field(p, 15)))


@compiled
def past(
    p: int,
    o: int,
    ring: int,
    w: int,
    bias: int,
    sums: int,
    now: int,
    made: int,
    first: int,
    count: int,
) -> int:
    """Set or add the product of the row from `lag` steps ago, computed for `block` steps at once.

    A ring's rows are known before they are read, so one pass over the weights serves several steps.
    Only the `count` vectors of outputs from vector `first` are computed. Return the first time step
    whose product has not been computed yet, which `made` was before. With column 21, they are only
    computed, for the time step after `now`.

    Blocks begin when the time step plus column 13 is a multiple of `block`: products that begin
    theirs at different steps spread the work.
    """
    now += field(p, 21)
    inputs, block, size, lag = field(p, 8), field(p, 10), field(p, 11), field(p, 12)
    pitch, skip, kind = field(p, 9) * VECTOR_BYTES, first * VECTOR_BYTES, field(p, 18)
    o, bias, sums = o + skip, bias + skip, sums + skip
    w += 4 * first * vector_words(kind, inputs)
    # The sums of a block of steps are kept; outside of it, they are recomputed starting at `now`.
    if not made - block <= now < made:
        done = (now + field(p, 13)) % block
        steps, made, target = block - done, now + block - done, sums + done * pitch
        oldest = (now - lag) % size
        before = min(steps, size - oldest)  # rows before the end of the ring
        first_terms = np.int64(0) if bias == o else bias
        multiply_kind(
            kind, target, pitch, w, ring + oldest * inputs * 4, inputs * 4, before, inputs, count,
            first_terms, np.int64(0),
        )  # fmt: skip
        if before < steps:
            rest = steps - before
            multiply_kind(
                kind, target + before * pitch, pitch, w, ring, inputs * 4, rest, inputs, count,
                first_terms, np.int64(0),
            )  # fmt: skip
    if not field(p, 21):
        row = sums + (now - made + block) * pitch
        if bias == o:
            add(o, row, count)
        else:
            copy(o, row, count)
    return made


@compiled
def read_past(p: int, o: int, bias: int, sums: int, at: int, end: int, step: int, rows: int) -> int:
    """Do what `past` does for the first rows whose sums are known; return how many these are."""
    block, count, adds = field(p, 10), field(p, 9), bias == o
    pitch = count * VECTOR_BYTES
    for row in range(rows):
        ahead = np.int64(double_at(end)) - np.int64(double_at(at))
        if not 0 < ahead <= block:
            return row
        source = sums + (block - ahead) * pitch
        if adds:
            add(o, source, count)
        else:
            copy(o, source, count)
        o, sums, at, end = o + step, sums + step, at + step, end + step
    return rows


SHARED = 4  # steps of a block; with fewer, rows share one read of the weights


@compiled
def past_of_rows(
    p: int, o: int, ring: int, w: int, bias: int, sums: int, at: int, end: int, step: int, rows: int
) -> None:
    """Compute the sums of `past` for several rows if all are at the same step and need them."""
    inputs, block, size, lag = field(p, 8), field(p, 10), field(p, 11), field(p, 12)
    pitch, count, kind = field(p, 9) * VECTOR_BYTES, field(p, 9), field(p, 18)
    now, made = np.int64(double_at(at)) + field(p, 21), np.int64(double_at(end))
    if made - block <= now < made:
        return
    for row in range(1, rows):
        if now != np.int64(double_at(at + row * step)) + field(p, 21):
            return
        if made != np.int64(double_at(end + row * step)):
            return
    done, first_terms = (now + field(p, 13)) % block, np.int64(0) if bias == o else bias
    for row in range(rows):
        set_double(end + row * step, np.float64(now + block - done))
    for i in range(done, block):
        inside = ring + (now - lag + i - done) % size * inputs * 4
        multiply_kind(
            kind, sums + i * pitch, step, w, inside, step, rows, inputs, count, first_terms,
            np.int64(0),
        )  # fmt: skip


@compiled
def ahead(
    p: int,
    o: int,
    rows: int,
    w: int,
    bias: int,
    sums: int,
    addend: int,
    time: int,
    left: int,
    first: int,
    count: int,
) -> None:
    """Do what `product` does for a row of an argument, or a part of it, for several steps at once.

    `rows` are the argument's in the two blocks from the last multiple of `block` steps on, `time`
    is the number of steps before this one, and `left` that of the steps from this one on. The
    product's own blocks begin as those of `past`. With 1 in column 21, they are only computed, a
    step early; with 2, only read, but for the first one.
    """
    inputs, block, pitch = field(p, 8), field(p, 10), field(p, 9) * VECTOR_BYTES
    skip, adds, early, kind = first * VECTOR_BYTES, o == bias, field(p, 21) == 1, field(p, 18)
    o, bias, sums = o + skip, bias + skip, sums + skip
    w += 4 * first * vector_words(kind, inputs)
    done = (time + early + field(p, 11)) % block
    row, steps = sums + done * pitch, min(block - done, left - early)
    if (done == 0 and field(p, 21) != 2) or (time == 0 and not early):
        x_pitch, first_terms = 4 * field(p, 12), np.int64(0) if adds else bias
        here = rows + (time % block + early) * x_pitch
        multiply_kind(
            kind, row, pitch, w, here, x_pitch, steps, inputs, count, first_terms, np.int64(0)
        )
    if early:
        return
    if adds:
        add(o, row, count)
        row = o
    if field(p, 17):
        add_multiple(o, float_at(p + 4 * 17), addend + skip, row, count)
    elif not adds:
        copy(o, row, count)


@compiled
def number_at(at: int, index: int, wide: int) -> float:
    """Return the number with an index from an address on, a double if `wide`, else a float."""
    return double_at(at + 8 * index) if wide else np.float64(float_at(at + 4 * index))


@compiled
def set_number(at: int, index: int, wide: int, value: float) -> None:
    """Set what `number_at` returns."""
    if wide:
        set_double(at + 8 * index, value)
    else:
        set_float(at + 4 * index, np.float32(value))


@compiled
def _map_numbers(p: int, wide: int, o: int, a: int, b: int, c: int) -> None:
    for i in range(field(p, 9)):
        for j in range(field(p, 10)):
            made = function_of(
                field(p, 8),
                number_at(a, i * field(p, 12) + j * field(p, 15), wide),
                number_at(b, i * field(p, 13) + j * field(p, 16), wide),
                number_at(c, i * field(p, 14) + j * field(p, 17), wide),
            )
            set_number(o, i * field(p, 11) + j, wide, made)


@compiled
def map_rows(
    p: int,
    wide: int,
    o: int,
    a: int,
    b: int,
    c: int,
    o_step: int,
    a_step: int,
    b_step: int,
    c_step: int,
    rows: int,
) -> None:
    """Set numbers to a function of up to three operands, along two axes, for all rows."""
    code, outer, vectors = field(p, 8), field(p, 9), (field(p, 10) + LANES - 1) // LANES
    if wide or code >= VECTORISED:
        for _ in range(rows):
            _map_numbers(p, wide, o, a, b, c)
            o, a, b, c = o + o_step, a + a_step, b + b_step, c + c_step
        return
    o_pitch, a_pitch, b_pitch = 4 * field(p, 11), 4 * field(p, 12), 4 * field(p, 13)
    c_pitch, full = 4 * field(p, 14), np.int64(4 * LANES)
    a_next, b_next, c_next = field(p, 15) * full, field(p, 16) * full, field(p, 17) * full
    if outer == 1:
        _map_vectors(
            code, o, a, b, c, o_step, a_step, b_step, c_step, a_next, b_next, c_next, rows, vectors
        )
        return
    for _ in range(rows):
        _map_vectors(
            code, o, a, b, c, o_pitch, a_pitch, b_pitch, c_pitch, a_next, b_next, c_next, outer,
            vectors,
        )  # fmt: skip
        o, a, b, c = o + o_step, a + a_step, b + b_step, c + c_step


@compiled
def convert(p: int, o: int, a: int, o_step: int, a_step: int, rows: int) -> None:
    """Convert floats to doubles, or, without column 8, doubles to floats."""
    wide, outer, count, pitch, step = (
        field(p, 8), field(p, 9), field(p, 10), field(p, 11), field(p, 12)
    )  # fmt: skip
    for _ in range(rows):
        for i in range(outer):
            for j in range(count):
                value = number_at(a, i * pitch + j * step, 1 - wide)
                set_number(o, i * count + j, wide, value)
        o, a = o + o_step, a + a_step


@compiled
def _move(
    o: int, o_step: int | np.int64, a: int, a_step: int | np.int64, count: int, words: int
) -> None:
    if o_step == 1 and a_step == 1 and count * words > 2:
        whole, rest = divmod(count * words, LANES)
        copy(o, a, whole)
        copy_part(o + whole * VECTOR_BYTES, a + whole * VECTOR_BYTES, rest)
        return
    for i in range(count):
        for word in range(words):
            at = 4 * word
            value = float_at(a + 4 * words * i * a_step + at)
            set_float(o + 4 * words * i * o_step + at, value)


@compiled
def copy_axes(p: int, o: int, a: int, o_step: int, a_step: int, rows: int) -> None:
    """Copy numbers along three axes, for all rows."""
    words, outer, middle, count = field(p, 8), field(p, 9), field(p, 10), field(p, 11)
    o_outer, o_middle, o_next = 4 * words * field(p, 12), 4 * words * field(p, 13), field(p, 14)
    a_outer, a_middle, a_next = 4 * words * field(p, 15), 4 * words * field(p, 16), field(p, 17)
    for _ in range(rows):
        for i in range(outer):
            for j in range(middle):
                y, x = o + i * o_outer + j * o_middle, a + i * a_outer + j * a_middle
                _move(y, o_next, x, a_next, count, words)
        o, a = o + o_step, a + a_step


@compiled
def gather(p: int, o: int, a: int, table: int) -> None:
    """Copy the numbers at the indices that a table contains."""
    words = field(p, 8)
    for i in range(field(p, 9)):
        source = a + 4 * words * field(table, i)
        for word in range(words):
            set_float(o + 4 * (i * words + word), float_at(source + 4 * word))


@compiled
def _slot(p: int, at: int) -> int:
    """Return an index plus column 13, modulo column 14 if positive, clipped to [0, column 15]."""
    slot = np.int64(double_at(at)) + field(p, 13)
    if field(p, 14) > 0:
        slot = slot % field(p, 14)
    return max(np.int64(0), min(slot, field(p, 15)))


@compiled
def read(p: int, o: int, a: int, at: int) -> None:
    """Copy rows of an axis, starting at an index that changes from step to step."""
    words, one, kind = field(p, 8), np.int64(1), field(p, 18)
    if kind:
        count = field(p, 10)
        widen_row(kind, o, a + 4 * row_words(kind, count) * _slot(p, at), count)
        return
    source = a + 4 * words * field(p, 12) * _slot(p, at)
    for i in range(field(p, 9)):
        target = o + 4 * words * i * field(p, 10)
        _move(target, one, source + 4 * words * i * field(p, 11), one, field(p, 10), words)


@compiled
def write(p: int, o: int, a: int, at: int, step: int, a_step: int, at_step: int, rows: int) -> None:
    """Write rows of an axis, starting at an index that changes from step to step, for all rows."""
    words, outer, count, one = field(p, 8), field(p, 9), field(p, 10), np.int64(1)
    pitch, slot_words = 4 * words * field(p, 11), 4 * words * field(p, 12)
    for _ in range(rows):
        target = o + slot_words * _slot(p, at)
        for i in range(outer):
            _move(target + pitch * i, one, a + 4 * words * i * count, one, count, words)
        o, a, at = o + step, a + a_step, at + at_step


@compiled
def read_rows(p: int, o: int, a: int, at: int) -> None:
    """Copy the rows at several indices."""
    words, count, one, kind = field(p, 8), field(p, 10), np.int64(1), field(p, 18)
    for i in range(field(p, 9)):
        row = np.int64(double_at(at + 8 * i * field(p, 11)))
        row = max(np.int64(0), min(row, field(p, 13)))
        if kind:
            widen_row(kind, o + 4 * i * count, a + 4 * row_words(kind, count) * row, count)
            continue
        _move(o + 4 * words * i * count, one, a + 4 * words * row * field(p, 12), one, count, words)


@compiled
def _join_values(code: int, total: float, value: float) -> float:
    if code <= _MEAN:
        return total + value
    if code == _LARGEST:
        return value if not value <= total else total
    if code == _LEAST:
        return value if not value >= total else total
    return total * value


@compiled
def reduce(p: int, o: int, a: int) -> None:
    """Set numbers to sums, means, maxima, minima or products along an axis."""
    code, wide, count, inner, step = (
        field(p, 8), field(p, 9), field(p, 11), field(p, 12), field(p, 14)
    )  # fmt: skip
    for i in range(field(p, 10)):
        for j in range(inner):
            place = i * field(p, 13) + j * field(p, 15)
            if not wide and step == 1 and code <= _MEAN:
                total = np.float64(sum_of(a + 4 * place, count))
            elif not wide and step == 1 and code == _LARGEST:
                total = np.float64(max_of(a + 4 * place, count))
            else:
                total = number_at(a, place, wide)
                for n in range(1, count):
                    total = _join_values(code, total, number_at(a, place + n * step, wide))
            set_number(o, i * inner + j, wide, total / count if code == _MEAN else total)


@compiled
def _first_largest(a: int, count: int) -> np.int64:
    """Return the index of the first of `count` floats that equals the largest; else `count`."""
    largest = max_of(a, count)
    for j in range(count):
        if float_at(a + 4 * j) == largest:
            return np.int64(j)
    return np.int64(count)


@compiled
def argmax(p: int, o: int, a: int) -> None:
    """Set doubles to the index of the largest or smallest number of each row."""
    wide, count, pitch, step, least = (
        field(p, 8), field(p, 10), field(p, 11), field(p, 12), field(p, 13)
    )  # fmt: skip
    for i in range(field(p, 9)):
        if not wide and not least and step == 1:
            at = _first_largest(a + 4 * i * pitch, count)
            if at < count:  # otherwise there are NaN
                set_double(o + 8 * i, np.float64(at))
                continue
        best, at = -np.inf, np.int64(0)
        for j in range(count):
            value = number_at(a, i * pitch + j * step, wide)
            value = -value if least else value
            if value > best:
                best, at = value, np.int64(j)
        set_double(o + 8 * i, np.float64(at))


@compiled
def cumulate(p: int, o: int, a: int) -> None:
    """Set running sums or products along the last axis, optionally reversed or exclusive."""
    code, count, excluded, backward = field(p, 13), field(p, 10), field(p, 14), field(p, 15)
    wide, pitch, step = field(p, 8), field(p, 11), field(p, 12)
    for i in range(field(p, 9)):
        total = 1.0 if code == _PRODUCT_OF else 0.0
        for n in range(count):
            j = count - 1 - n if backward else n
            before, value = total, number_at(a, i * pitch + j * step, wide)
            total = value if n == 0 else _join_values(code, total, value)
            set_number(o, i * count + j, wide, before if excluded else total)


@compiled
def _map_row(code: int, y: int, a: int, b: int, b_step: int, vectors: int) -> None:
    zero, full = np.int64(0), np.int64(4 * LANES)
    _map_vectors(
        code, y, a, b, b, zero, zero, zero, zero, full, b_step, b_step, np.int64(1), vectors
    )


@compiled
def softmax(p: int, o: int, a: int) -> None:
    """Set rows to their softmax; each output row must have room for one more number."""
    full, zero = np.int64(4 * LANES), np.int64(0)
    for i in range(field(p, 8)):
        x, y, count = a + 4 * i * field(p, 10), o + 4 * i * field(p, 11), field(p, 9)
        vectors = (count + LANES - 1) // LANES
        largest = y + full * vectors  # the address after the row
        set_float(largest, max_of(x, count))
        # The largest number is subtracted, so that no exponential overflows.
        _map_row(np.int64(_SUBTRACT), y, x, largest, zero, vectors)
        _map_row(np.int64(_EXP), y, y, y, full, vectors)
        set_float(largest, np.float32(1.0) / sum_of(y, count))
        _map_row(np.int64(_TIMES), y, y, largest, zero, vectors)


@compiled
def products(p: int, o: int, a: int, b: int) -> None:
    """Set [groups, rows, columns] to the matrix products of two values that are not constant."""
    groups, rows, inner, columns = field(p, 8), field(p, 9), field(p, 10), field(p, 11)
    for g in range(groups):
        for m in range(rows):
            x = a + 4 * (g * field(p, 12) + m * field(p, 13))
            y = o + 4 * ((g * rows + m) * field(p, 18))
            w = b + 4 * g * field(p, 15)
            if field(p, 16) == 1 and field(p, 14) == 1:  # rows of b are contiguous along the sum
                if inner % LANES == 0:
                    dots(y, x, w, 4 * field(p, 17), inner // LANES, columns)
                    continue
                for n in range(columns):
                    set_float(y + 4 * n, dot(x, w + 4 * n * field(p, 17), inner))
                continue
            if field(p, 17) == 1:
                vectors = (columns + LANES - 1) // LANES
                for n in range(vectors * LANES):
                    set_float(y + 4 * n, np.float32(0.0))
                for k in range(inner):
                    scale = float_at(x + 4 * k * field(p, 14))
                    add_scaled(y, scale, w + 4 * k * field(p, 16), np.int64(vectors))
                continue
            for n in range(columns):
                total = np.float32(0.0)
                for k in range(inner):
                    value = float_at(w + 4 * (k * field(p, 16) + n * field(p, 17)))
                    total += float_at(x + 4 * k * field(p, 14)) * value
                set_float(y + 4 * n, total)
