"""Pure functions of tensors by name, of which every format of an export is written.

A model has them in two forms, `Functions`. `calls` take batches of rows of any length, as a
server calls them: the signatures of a bundle. `fixed` are those of one size, for runtimes that know
the size of every axis: `draw`, or `step` with its state, `noise` and `condition`, and for a user's
model also `call` and `log_prob`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.signature import FORMAT, PLAIN, WHOLE, Arrays, Signature, TensorInfo
from onepass.step.replay import operations_for

DRAW = "draw"
ROWS_AT_ONCE = 4  # rows that run in parallel, each in a batch of one
INT32, INT64, FLOAT32, UINT8, UINT32 = map(
    np.dtype, (np.int32, np.int64, np.float32, np.uint8, np.uint32)
)
Tensors = dict[str, Any]
Make = Callable[[Tensors], Tensors]


@dataclasses.dataclass(frozen=True)
class Function:
    """A pure function of tensors by name."""

    fn: Make
    signature: Signature  # without outputs, those that `fn` returns
    state: tuple[str, ...] = ()  # inputs that a call returns for the next one; first zeros

    @property
    def specs(self) -> dict[str, tf.TensorSpec]:
        """The shape and type of each input, by name."""
        inputs = self.signature.inputs.items()
        return {name: tf.TensorSpec(info.shape, info.dtype, name=name) for name, info in inputs}

    def trace(self) -> Any:
        """Return the function as a TensorFlow graph, a concrete function."""

        @tf.function(autograph=False, input_signature=list(self.specs.values()))
        def function(*tensors: tf.Tensor) -> Tensors:
            outputs = self.fn(dict(zip(self.signature.inputs, tensors, strict=True)))
            infos = self.signature.outputs
            known = {n: tf.ensure_shape(outputs[n], info.shape) for n, info in infos.items()}
            return known or outputs

        return function.get_concrete_function()

    def fixed(self, rows: int, sizes: Sequence[int] = ()) -> "Function":
        """Return the function for `rows` rows, whose next axes of unknown size have these `sizes`.

        Its seeds are uint32 [rows, 2], the high word and the low word, as not every runtime has
        integers of 64 bits.
        """
        inputs = {}
        for name, info in self.signature.inputs.items():
            known = itertools.zip_longest(info.shape[1:], sizes[: len(info.shape) - 1])
            shape = (rows, *(size if of_all is None else of_all for of_all, size in known))
            inputs[name] = dataclasses.replace(info, shape=shape)
        if "seed" in inputs:
            inputs["seed"] = TensorInfo(UINT32, (rows, 2))
        return Function(self.fn, Signature(inputs, {}), self.state)

    def without_unread(self) -> "Function":
        """Return the function without the inputs that it does not read."""
        graph = self.trace().graph
        read = {operation.name for operation in operations_for(graph.outputs)}
        tensors = zip(self.signature.inputs.items(), graph.inputs, strict=False)
        kept = {name: info for (name, info), tensor in tensors if tensor.op.name in read}
        unread = {name: spec for name, spec in self.specs.items() if name not in kept}

        def fn(given: Tensors) -> Tensors:
            zeros = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in unread.items()}
            return self.fn({**zeros, **given})

        return Function(fn, Signature(kept, self.signature.outputs), self.state)

    def first_state(self) -> Arrays:
        """Return the state before the first call, of a function of one size."""
        inputs: Any = self.signature.inputs
        return {name: np.zeros(inputs[name].shape, inputs[name].dtype) for name in self.state}


@dataclasses.dataclass
class Functions:
    """The functions of a model by name, and what its export says of them."""

    calls: dict[str, Function]  # of batches of rows of any length
    # Those of a size, of a number of rows and of elements (None: the model's own).
    fixed: Callable[[int, int | None], dict[str, Function]]
    batches: Sequence[int]  # allowed numbers of rows of a call
    serving: dict[str, Any] = dataclasses.field(default_factory=dict)  # buckets, pieces
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)  # without `serving`
    # By name; needed are those that no trace lists, as a derived step reads them by their handles.
    variables: Mapping[str, tf.Variable] = dataclasses.field(default_factory=dict)
    conditions: Any = None  # of a user's model, the `Conditions` that it reads
    # The calls other than `serving_default` as StableHLO, if they have a portable form.
    lowered: Callable[[], dict[str, Function]] = dict

    @property
    def description(self) -> dict[str, Any]:
        """The entry `serving` of model.json."""
        signatures = {name: each.signature.to_dict() for name, each in self.calls.items()}
        return {
            "format": FORMAT,
            "signatures": signatures,
            "allowed_batches": list(self.batches),
            **self.serving,
        }

    def of_size(self, rows: int, length: int | None = None) -> dict[str, Function]:
        """Return the functions of one size, each with the inputs that it reads."""
        return {name: each.without_unread() for name, each in self.fixed(rows, length).items()}


def name_variables(
    traced: Iterable[Any], known: Mapping[str, tf.Variable] = MappingProxyType({})
) -> dict[str, tf.Variable]:
    """Return `known` and the other variables that concrete functions list, each once, by name."""
    names = {variable.ref() for variable in known.values()}
    others = {v.ref(): v for each in traced for v in each.variables if v.ref() not in names}
    return {**known, **{f"{n:03d}/{v.name}": v for n, v in enumerate(others.values())}}


def by_rows(signature: Signature, row: Make) -> Make:
    """Return a function of batches; `row` maps a batch of one to outputs without that axis."""
    specs = {n: tf.TensorSpec(info.shape[1:], info.dtype) for n, info in signature.outputs.items()}
    options = {"fn_output_signature": specs, "parallel_iterations": ROWS_AT_ONCE}

    def rows(given: Tensors) -> Tensors:
        count = next(iter(given.values())).shape[0]
        if count is not None:  # XLA gives no portable form of a loop over rows
            made = [row({name: x[n : n + 1] for name, x in given.items()}) for n in range(count)]
            return {name: tf.stack([each[name] for each in made]) for name in made[0]}
        return tf.map_fn(row, {n: tensor[:, tf.newaxis] for n, tensor in given.items()}, **options)

    return rows


def drawing_functions(
    calls: dict[str, Function],
    batches: Sequence[int],
    density: Mapping[str, Function] = MappingProxyType({}),
    sizes: Sequence[int] = (),
) -> Functions:
    """Return the functions of a model of whole rows; `density` has those of given elements."""
    drawn = {name: each for name, each in calls.items() if name not in WHOLE}

    def fixed(rows: int, length: int | None) -> dict[str, Function]:
        kept = {DRAW: calls[PLAIN], **drawn, **density}
        return {name: each.fixed(rows, sizes) for name, each in kept.items()}

    return Functions(calls, fixed, batches)


def keys_of(seeds: tf.Tensor) -> tf.Tensor:
    """Return keys of noise, uint32 [rows, 2], high word first, of seeds int64 [rows] or of keys.

    A seed -n stands for 2^64 - n.
    """
    if seeds.dtype != tf.int64:
        return seeds
    return tf.reverse(tf.bitcast(seeds, tf.uint32), [-1])  # the bitcast returns the low word first


def noise_infos(
    temperatures: tuple[int | None, ...] = (None,),
    low: float = 0.0,
    high: float = 1.0,
    temperature: float = 1.0,
) -> dict[str, TensorInfo]:
    """Return the inputs that every drawing function has: seed, row and temperature."""
    return {
        "seed": TensorInfo(INT64, (None,), default=0),  # bits of an integer in [0, 2^64)
        "row": TensorInfo(INT32, (None,), low=0, default=0),
        "temperature": TensorInfo(FLOAT32, temperatures, low, high, temperature),
    }
