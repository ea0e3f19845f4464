"""Find the weights that a function reads, and which of them are trained.

A `tf.Variable` has an attribute `trainable`. A Keras variable is trained if its model or layer
lists it among `trainable_variables`; this can change later without changing the `tf.Variable` that
it wraps. Therefore the layers are searched for among all objects that a network refers to.
"""

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
    return weights_among(function, variables_read(function, *example))


def weights_among(function: Callable, variables: Iterable[tf.Variable]) -> Weights:
    """Return the variables that a function reads, divided into trained and frozen ones."""
    listed = _listed_by_layers(function)
    weights = Weights([], [])
    for variable in variables:
        is_trained = listed.get(id(variable), variable.trainable)
        if is_trained or variable.dtype.is_floating:
            weights[0 if is_trained else 1].append(variable)
    return weights


def variables_read(function: Callable, *example: tf.Tensor) -> list[tf.Variable]:
    """Return all variables that a function reads, in an order that a resumed run finds again."""
    traced = tf.function(function, autograph=False).get_concrete_function(*example)
    return without_copies(in_order_of_reads(traced))


def in_order_of_reads(traced: tf.types.experimental.ConcreteFunction) -> list[tf.Variable]:
    """Return a traced function's variables in the order in which it captured them."""
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


def attribute_of(part: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of an object of a user, or the default if it has none.

    An attribute that raises an error of any kind counts as missing: objects may look it up in a
    dict, in a module that they load only then, or in another process.
    """
    try:
        return getattr(part, name, default)
    except Exception:
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
        return _contents(part)
    if _is(part, types.FunctionType):
        return [] if is_of_library(part) else _objects_of_function(part)
    if _is(part, types.MethodType):
        return [part.__self__, part.__func__]
    if _is(part, functools.partial):
        return [part.func, part.args, part.keywords]
    kind = type(part)
    if attribute_of(kind, "python_function") is not None:  # a tf.function
        return [attribute_of(part, "python_function")]
    if is_of_library(kind):
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


def _contents(part: Any) -> list[Any]:
    try:
        return list(part.values() if isinstance(part, Mapping) else part)
    except Exception:
        return []


def _is(part: Any, *kinds: type) -> bool:
    """Return whether an object is of one of the classes; its `__class__` may raise any error."""
    try:
        return isinstance(part, kinds)
    except Exception:
        return False


def _objects_of_function(function: types.FunctionType) -> list[Any]:
    referred: list[Any] = [function.__defaults__ or (), function.__kwdefaults__ or {}]
    for cell in function.__closure__ or ():
        try:
            referred.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        referred += [function.__globals__.get(name) for name in code.co_names]
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return referred


def is_of_library(part: Any) -> bool:
    """Return whether a class or function is one of a library that contains no layers of a user."""
    module = str(attribute_of(part, "__module__", ""))
    return module.partition(".")[0] in _LIBRARIES or module == _DATA
