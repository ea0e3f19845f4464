"""The weights that a network reads, and whether it is another network by now.

A `tf.Variable` has an attribute `trainable`. A Keras variable is trained if its model or layer
lists it among `trainable_variables`; this can change later without changing the `tf.Variable` that
it wraps. Therefore the layers are searched for among all objects that a network refers to.

`Watch` compares those objects with earlier ones, which takes microseconds and so precedes every
call. `graph_digest` compares the operations of a fresh trace; it decides whether another object
makes another network.
"""

import dis
import functools
import hashlib
import operator
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Objects of these packages are not searched: they contain no layers of a user.
_LIBRARIES = {
    *("builtins", "collections", "functools", "keras", "llvmlite", "numba", "numpy", "tensorflow"),
    "typing",
}
# Data of a converted network, thousands of objects without a layer.
_DATA = "onepass.networks.from_torch.graph"
_MISSING = object()
_OF_LAYERS = ("trainable", "trainable_variables", "variables", "build")


class Listed(NamedTuple):
    """All variables and the trained ones among them, in attributes named as in a Keras layer."""

    variables: list[tf.Variable]
    trainable_variables: list[tf.Variable]


class Weights(NamedTuple):
    """The variables that a function reads: trained ones and other floats, such as statistics."""

    trained: list[tf.Variable]
    frozen: list[tf.Variable]


def weights_read(function: Callable, *example: tf.Tensor) -> Weights:
    """Return the variables that a function reads; call it in the scope of its Replicator."""
    traced = tf.function(function, autograph=False).get_concrete_function(*example)
    return weights_among(function, without_copies(in_order_of_reads(traced)))


def weights_among(function: Callable, variables: Iterable[tf.Variable]) -> Weights:
    """Return the variables that a function reads, divided into trained and frozen ones."""
    listed = _listed_by_layers(function)
    weights = Weights([], [])
    for variable in variables:
        is_trained = listed.get(id(variable), variable.trainable)
        if is_trained or variable.dtype.is_floating:
            weights[0 if is_trained else 1].append(variable)
    return weights


def in_order_of_reads(traced: tf.types.experimental.ConcreteFunction) -> list[tf.Variable]:
    """Return a traced function's variables as it captured them, which a resumed run finds again."""
    places = {id(handle): place for place, handle in enumerate(traced.captured_inputs)}
    last = len(places)
    return sorted(traced.variables, key=lambda read: places.get(id(read.handle), last))


def without_copies(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Return each variable once, with a replica's copy replaced by the distributed variable."""
    variables = [_of_all_replicas(variable) for variable in variables]
    return list({id(variable): variable for variable in variables}.values())


def frozen_among(variables: Sequence[tf.Variable], holder: Any) -> list[int]:
    """Return the indices of variables that are not trainable, or frozen in an object's layers."""
    listed = _listed_by_layers(holder)
    return [
        place for place, each in enumerate(variables) if not listed.get(id(each), each.trainable)
    ]


def _of_all_replicas(variable: tf.Variable) -> tf.Variable:
    container = getattr(variable.handle, "_distributed_container", None)
    return variable if container is None or container() is None else container()


def _listed_by_layers(holder: Any) -> dict[int, bool]:
    listed: dict[int, bool] = {}
    for layer in layers_within(holder):
        trained = {id(variable) for variable in layer.trainable_variables}
        for variable in layer.variables:
            own = variable if isinstance(variable, tf.Variable) else variable.value
            is_trained = id(variable) in trained
            listed[id(own)] = is_trained and listed.get(id(own), True)
    return listed


def layers_within(holder: Any) -> Iterator[Any]:
    """Yield the outermost Keras layers, and the `Listed`, that are reachable from an object."""
    seen: dict[int, Any] = {}  # keeps temporary objects alive, so that no `id` is reused
    waiting = [holder]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if is_layer(part):
            yield part
        else:
            waiting += _parts(part)


def single_layers(holder: Any) -> Iterator[Any]:
    """Yield all Keras layers that are reachable from an object, those within models too."""
    for root in layers_within(holder):
        flatten = attribute_of(root, "_flatten_layers")
        yield from flatten() if flatten else [root]


def attribute_of(part: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of an object of a user, or the default if it has none."""
    try:
        return getattr(part, name, default)
    except Exception:  # it may be looked up in a dict, a module loaded then, or another process
        return default


def is_layer(part: Any) -> bool:
    """Return whether an object is a layer or model of any version of Keras, or a `Listed`."""
    kind = type(part)
    return kind is Listed or all(
        attribute_of(kind, name, _MISSING) is not _MISSING for name in _OF_LAYERS
    )


def _parts(part: Any) -> Iterable[Any]:
    if _is(part, type, types.ModuleType):
        return []
    if _is(part, Mapping, list, tuple, set, frozenset):
        try:
            return list(part.values() if isinstance(part, Mapping) else part)
        except Exception:  # of a container of a user
            return []
    if _is(part, types.FunctionType):
        return [] if is_of_library(part) else _references(part)()
    if _is(part, types.MethodType):
        return [part.__self__, part.__func__]
    if _is(part, functools.partial):
        return [part.func, part.args, part.keywords]
    kind = type(part)
    if attribute_of(kind, "python_function") is not None:  # a tf.function
        return [attribute_of(part, "python_function")]
    if kind is Watch or is_of_library(kind):  # a `Watch` reads modules of others as well
        return []
    methods = [
        method
        for each in kind.__mro__
        if not is_of_library(each)
        for method in vars(each).values()
        if isinstance(method, types.FunctionType)
    ]
    attributes = attribute_of(part, "__dict__")
    # Objects that create attributes on access may have no dict here.
    return [*(attributes.values() if _is(attributes, dict) else ()), *methods]


def _is(part: Any, *kinds: type) -> bool:
    """Return whether an object is of one of the classes; its `__class__` may raise any error."""
    try:
        return isinstance(part, kinds)
    except Exception:
        return False


def is_of_library(part: Any) -> bool:
    """Return whether a class or function is one of a library that contains no layers of a user."""
    module = str(attribute_of(part, "__module__", ""))
    return module.partition(".")[0] in _LIBRARIES or module == _DATA


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

    fresh = keras.Model(name="a"), keras.layers.Layer(name="a"), tf.Module("a")
    names = {name for each in fresh for name in vars(each)}
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


def _is_own(kind: type) -> bool:
    package, room = (*kind.__module__.split("."), "")[:2]
    return not is_of_library(kind) and not (package == "onepass" and room in _ROOMS)


def _references(function: types.FunctionType) -> Callable[[], list[Any]]:
    """Return a reader of a function's code, defaults, and variables of closure and module.

    Modules of this library hold caches of all models, and nothing of a network.
    """
    cells, scope = function.__closure__ or (), function.__globals__
    is_ours = str(scope.get("__name__")).partition(".")[0] == "onepass"
    names = [] if is_ours else [n for n in _globals_of(function.__code__) if n in scope]

    def read() -> list[Any]:
        found = [function.__code__, function.__defaults__, function.__kwdefaults__]
        for cell in cells:
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                found.append(None)
        return found + [scope.get(name) for name in names]

    return read


@functools.cache
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


def outline(graph: tf.Graph) -> str:
    """Return a digest of a graph's operations and constants in any order, in every process.

    Unlike `graph_digest`, it covers neither variables nor what reads what.
    """
    stored = graph.as_graph_def()
    nodes = [*stored.node, *(node for each in stored.library.function for node in each.node_def)]
    found = [f"{each.op} {each.attr['value'] if each.op == 'Const' else ''}" for each in nodes]
    found += [_identity(outer) for outer, _ in graph.captures if outer.dtype != tf.resource]
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


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
