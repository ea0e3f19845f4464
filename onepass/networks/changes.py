"""Notice that a network is not the one that a model was made of: another layer, attribute or graph.

Two looks at a network answer it. `Watch` compares the objects that the network refers to with those
it referred to before, which takes microseconds and so precedes every call. `graph_digest` compares
the operations of a fresh trace; it decides whether another object makes another network.
"""

import dis
import functools
import hashlib
import operator
import types
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.networks.trainable import is_layer, is_of_library

MOST_ENTRIES = 10_000  # of a container; larger ones are data
MOST_PARTS = 50_000  # objects that are looked at
SMALL_BYTES = 1 << 16  # of an array whose contents are compared
# Of these types, equal values are the same.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), tf.DType, np.generic)

# The rooms of onepass whose classes are made of a network.
_ROOMS = {"machine", "model", "networks", "samplers", "step", "storage", "training"}


class _Part(NamedTuple):
    """The references of an object: what `read` returns now, and `before`, by name or index."""

    read: Callable[[], Sequence[Any]]
    before: dict[Any, Any]
    attributes: dict[str, Any] | None = None


class Watch:
    """The objects that a network refers to, compared with those that it refers to later."""

    def __init__(self, network: Any) -> None:
        self._parts: list[tuple[_Part, list[Any]]] = []
        seen: dict[int, Any] = {}  # keeps temporary objects alive, so that no `id` is reused
        waiting = [network]
        while waiting and len(seen) < MOST_PARTS:
            part = waiting.pop()
            if id(part) in seen:
                continue
            seen[id(part)] = part
            for found in _parts_of(part):
                self._parts.append((found, list(found.before.values())))
                waiting += _visible_values(found, found.before).values()
                waiting += [type(part)] * (found.attributes is not None)

    def has_changed(self) -> bool:
        """Return whether the network refers to another object than before, or to another value."""
        for part, before in self._parts:
            now = part.read()
            if len(now) == len(before) and all(map(operator.is_, now, before)):
                continue
            named = dict(enumerate(now)) if part.attributes is None else part.attributes
            shown, then = _visible_values(part, named), _visible_values(part, part.before)
            if shown.keys() != then.keys() or not all(_same(x, then[k]) for k, x in shown.items()):
                return True
        return False


def _visible_values(part: _Part, values: Mapping[Any, Any]) -> dict[Any, Any]:
    if part.attributes is None:
        return dict(values)
    hidden = _bookkeeping()
    return {k: x for k, x in values.items() if k not in hidden and not k.startswith("_self_")}


def _same(now: Any, before: Any) -> bool:
    return now is before or (
        type(now) is type(before) and isinstance(now, _PLAIN) and bool(now == before)
    )


@functools.cache
def _bookkeeping() -> frozenset[str]:
    """Return the attributes in which Keras and `tf.Module` keep accounts of their own."""
    import keras

    names = {
        *vars(keras.Model(name="a")),
        *vars(keras.layers.Layer(name="a")),
        *vars(tf.Module("a")),
    }
    names |= {"optimizer", "history", "_nodes", "_nodes_by_depth", "_operations_by_depth"}
    return frozenset(names - {"_layers", "_dtype_policy", "autocast"})


def _parts_of(part: Any) -> Iterable[_Part]:
    if isinstance(part, np.ndarray):
        if part.nbytes <= SMALL_BYTES:
            yield _part(lambda: [zlib.crc32(part.tobytes())])
    elif isinstance(part, Mapping):
        yield _part(lambda: list(part.values())[:MOST_ENTRIES])
    elif isinstance(part, list | tuple | set | frozenset):
        yield _part(lambda: list(part)[:MOST_ENTRIES])
    elif isinstance(part, types.FunctionType):
        if not is_of_library(part):
            yield _part(_references(part))
    elif isinstance(part, types.MethodType):
        yield _part(lambda: [part.__self__, part.__func__])
    elif isinstance(part, functools.partial):
        yield _part(lambda: [part.func, part.args, part.keywords])
    elif isinstance(part, tf.types.experimental.PolymorphicFunction):
        yield _part(lambda: [getattr(part, "python_function", None)])
    elif isinstance(part, type):
        yield from (_part(functools.partial(_of_class, x)) for x in part.__mro__ if _is_own(x))
    elif _has_own_attributes(part):
        attributes = part.__dict__
        yield _Part(lambda: list(attributes.values()), attributes.copy(), attributes)


def _part(read: Callable[[], Sequence[Any]]) -> _Part:
    return _Part(read, dict(enumerate(read())))


def _of_class(kind: type) -> list[Any]:
    plain = (types.FunctionType, *_PLAIN, list, dict, tuple)
    return [x for k, x in vars(kind).items() if isinstance(x, plain) and k[:2] != "__"]


def _has_own_attributes(part: Any) -> bool:
    is_own = is_layer(part) or isinstance(part, tf.Module) or _is_own(type(part))
    if not is_own or isinstance(part, types.ModuleType):
        return False
    try:
        return isinstance(object.__getattribute__(part, "__dict__"), dict)
    except AttributeError:
        return False


def _is_ours(kind: type) -> bool:
    package, _, name = kind.__module__.partition(".")
    return package == "onepass" and name.partition(".")[0] in _ROOMS


def _is_own(kind: type) -> bool:
    return not is_of_library(kind) and not _is_ours(kind)


def _references(function: types.FunctionType) -> Callable[[], list[Any]]:
    """Return a reader of a function's code, defaults, and variables of closure and module."""
    cells, scope = function.__closure__ or (), function.__globals__
    names = [name for name in _globals_of(function.__code__) if name in scope]

    def read() -> list[Any]:
        found = [function.__code__, function.__defaults__, function.__kwdefaults__]
        for cell in cells:
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                found.append(None)
        return found + [scope.get(name) for name in names]

    return read


def _globals_of(code: types.CodeType) -> list[str]:
    found = [x.argval for x in dis.get_instructions(code) if x.opname == "LOAD_GLOBAL"]
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found += _globals_of(each)
    return list(dict.fromkeys(found))


def graph_digest(graph: tf.Graph) -> tuple[str, list[Any]]:
    """Return a digest of a traced graph, and the objects outside whose identity is part of it.

    It covers types, attributes, constants and order of the operations and what they read, not their
    names. Two graphs with the same variables compute the same if their digests are equal.
    """
    outside = [outer for outer, _ in graph.captures]
    known = {inner.op.name: _identity(outer) for outer, inner in graph.captures}
    digest, names = hashlib.sha256(), {}
    for index, node in enumerate(graph.as_graph_def().node):
        names[node.name] = str(index)
        reads = [_rename_input(each, names) for each in node.input]
        digest.update(f"{node.op}|{reads}|{known.get(node.name)}".encode())
        for key in sorted(node.attr):
            if key[0] != "_":
                digest.update(key.encode() + _content(node.attr[key], graph))
    digest.update(repr([_rename_input(each.name, names) for each in graph.outputs]).encode())
    return digest.hexdigest(), outside


def _rename_input(read: str, names: Mapping[str, str]) -> str:
    is_control, read = read[:1] == "^", read.lstrip("^")
    name, _, output = read.partition(":")
    return f"{'^' * is_control}{names.get(name, name)}:{output or 0}"


def _identity(outer: Any) -> str:
    if not hasattr(outer, "numpy"):  # of the graph around this one
        return ""
    if outer.dtype == tf.resource:
        return f"id {id(outer)}"
    return hashlib.sha256(np.ascontiguousarray(outer.numpy()).tobytes()).hexdigest()


def _content(value: Any, graph: tf.Graph) -> bytes:
    functions = [value.func] if value.HasField("func") else list(value.list.func)
    if not functions:
        return value.SerializeToString(deterministic=True)
    found = [graph._get_function(each.name) for each in functions]
    return repr([x and graph_digest(x.graph)[0] for x in found]).encode()
