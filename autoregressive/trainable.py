"""The weights that a function reads, and which of them are trained.

A `tf.Variable` has an attribute for it. A Keras variable is trained if its model or layer lists it
among `trainable_variables`, which may change after it was created without a change of the
`tf.Variable` within. So the layers of a network are looked for in whatever holds them.
"""

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Objects of these packages are not looked into: no layer of a user is kept there.
_LIBRARIES = {
    *("builtins", "collections", "functools", "keras", "llvmlite", "numba", "numpy", "tensorflow"),
    "typing",
}


_OF_LAYERS = ("trainable", "trainable_variables", "variables", "build")


class Listed(NamedTuple):
    """Variables, and those among them that are trained, as a Keras layer lists them."""

    variables: list[tf.Variable]
    trainable_variables: list[tf.Variable]


class Weights(NamedTuple):
    """Variables that a function reads.

    Attributes:
      trained: the variables that training changes.
      frozen: all other variables of floating type, including statistics of normalisation.
    """

    trained: list[tf.Variable]
    frozen: list[tf.Variable]


def weights_read(function: Callable, *example: tf.Tensor) -> Weights:
    """Return the variables that a function of tensors reads.

    Args:
      function: a function of tensors, which is traced; call this in the scope of the Replicator
        if its variables were created in one.
      *example: arguments for which the function is traced.
    """
    return weights_among(function, variables_read(function, *example))


def weights_among(function: Callable, variables: Iterable[tf.Variable]) -> Weights:
    """Return the variables that a function reads, divided into trained and frozen ones.

    Args:
      function: a function of tensors, such as a Keras model.
      variables: the variables that the function reads.
    """
    listed = _listed_by_layers(function)
    weights = Weights([], [])
    for variable in variables:
        is_trained = listed.get(id(variable), variable.trainable)
        if is_trained or variable.dtype.is_floating:
            weights[0 if is_trained else 1].append(variable)
    return weights


def variables_read(function: Callable, *example: tf.Tensor) -> list[tf.Variable]:
    """Return all variables that a function of tensors reads, in the order of their first reads.

    The order is the same when another process resumes the run. The arguments are those of
    `weights_read`.
    """
    traced = tf.function(function, autograph=False).get_concrete_function(*example)
    return without_copies(in_order_of_reads(traced))


def in_order_of_reads(traced: tf.types.experimental.ConcreteFunction) -> list[tf.Variable]:
    """Return a traced function's variables in the order in which it captured them."""
    places = {id(handle): place for place, handle in enumerate(traced.captured_inputs)}
    last = len(places)
    return sorted(traced.variables, key=lambda read: places.get(id(read.handle), last))


def without_copies(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Return each variable once; a replica's copy is replaced by the variable of all replicas."""
    variables = [_of_all_replicas(variable) for variable in variables]
    return list({id(variable): variable for variable in variables}.values())


def frozen_among(variables: Sequence[tf.Variable], holder: Any) -> list[int]:
    """Return the places of the variables that layers within an object have frozen.

    Args:
      variables: the variables, in the order that the places refer to.
      holder: any object, such as a model.
    """
    listed = _listed_by_layers(holder)
    return [place for place, each in enumerate(variables) if not listed.get(id(each), True)]


def _of_all_replicas(variable: tf.Variable) -> tf.Variable:
    """Return the variable that a replica's copy belongs to; on one device, the variable itself."""
    container = getattr(variable.handle, "_distributed_container", None)
    return variable if container is None or container() is None else container()


def _listed_by_layers(holder: Any) -> dict[int, bool]:
    """Return whether each variable of a holder's layers is trained, by `id` of the tf.Variable."""
    listed: dict[int, bool] = {}
    for layer in layers_within(holder):
        trained = {id(variable) for variable in layer.trainable_variables}
        for variable in layer.variables:
            own = variable if isinstance(variable, tf.Variable) else variable.value
            is_trained = id(variable) in trained
            listed[id(own)] = is_trained and listed.get(id(own), True)
    return listed


def layers_within(holder: Any) -> Iterator[Any]:
    """Yield the outermost layers that an object can reach; they tell trained from frozen."""
    seen: dict[int, Any] = {}  # keeps objects made on the way alive, so that no `id` is reused
    waiting = [holder]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if _is_layer(part):
            yield part
        else:
            waiting += _parts(part)


def _is_layer(part: Any) -> bool:
    """Return whether an object is a layer or model of any version of Keras, or a `Listed`."""
    return isinstance(part, Listed) or all(hasattr(type(part), name) for name in _OF_LAYERS)


def _parts(part: Any) -> Iterable[Any]:
    """Return the objects that an object holds or, if it is a function, refers to."""
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, list | tuple | set | frozenset):
        return list(part)
    if isinstance(part, types.FunctionType):
        return [] if _is_of_library(part) else _referred(part)
    if isinstance(part, types.MethodType):
        return [part.__self__, part.__func__]
    if isinstance(part, functools.partial):
        return [part.func, part.args, part.keywords]
    if hasattr(part, "python_function"):  # a tf.function
        return [part.python_function]
    if isinstance(part, type | types.ModuleType) or _is_of_library(type(part)):
        return []
    methods = [
        method
        for kind in type(part).__mro__
        if not _is_of_library(kind)
        for method in vars(kind).values()
        if isinstance(method, types.FunctionType)
    ]
    attributes = getattr(part, "__dict__", {})
    # An object that makes up attributes on access has no such dict.
    return [*(attributes.values() if isinstance(attributes, dict) else ()), *methods]


def _referred(function: types.FunctionType) -> list[Any]:
    """Return what a function refers to: enclosed and global variables, and default values."""
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


def _is_of_library(part: Any) -> bool:
    return str(getattr(part, "__module__", "")).partition(".")[0] in _LIBRARIES
