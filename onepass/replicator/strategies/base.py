"""The Replicator, which runs one step function on one device, many devices or many machines.

Users write `step_fn(batch)` and `input_fn(context)` once, for one replica, and express exchanges
between replicas with collective primitives. Buchlovsky et al. 2019, "TF-Replicator: Distributed
Machine Learning for Researchers", arXiv 1902.00465.
"""

import abc
import contextlib
import dataclasses
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.rules import UserError, must_be
from onepass.replicator import collectives
from onepass.replicator.collectives import CollectiveOrderError, CollectiveRecord, call_text

_UNEVEN = "number of rows is not a multiple of the number of replicas"
ROWS_MUST = "The rows of a global batch must be a multiple of"
StepFn = Callable[[Any], Any]
InputFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]
ShardFn = Callable[[int, int], tf.data.Dataset]
Call = Callable[..., Any]
_PREFETCHED_BATCHES = 2


def variables_in_step_error(error: Exception) -> UserError | None:
    """Return a UserError if a step created variables while being traced, else None."""
    if type(error).__name__ != "UnliftableError" and "singleton tf.Variables" not in str(error):
        return None
    found = re.search(r"tensor '(\w+/\w+)", str(error))
    which = f" (`{found[1]}`)" if found else ""
    return UserError(
        f"A step must not create variables{which}: create them in `scope()`, those of an optimizer "
        "with `optimizer.build(variables)`."
    )


class WrappedOptimizer(tf.Module):
    """An optimiser whose `apply_gradients` averages over replicas.

    Other attributes are those of the inner optimiser, whose own reduction over replicas is switched
    off. Raise ValueError if that has no `apply_gradients`.
    """

    def __init__(self, replicator: "Replicator", optimizer: Any):
        super().__init__(name="wrapped_optimizer")
        if not hasattr(optimizer, "apply_gradients"):
            raise ValueError(
                f"`optimizer` must have `apply_gradients`, got a {type(optimizer).__name__}."
            )
        self._replicator = replicator
        self.optimizer = optimizer
        self._options = {}
        known = inspect.signature(optimizer.apply_gradients).parameters
        if "skip_gradients_aggregation" in known:
            self._options["skip_gradients_aggregation"] = True
        elif "experimental_aggregate_gradients" in known and not replicator.is_async:
            self._options["experimental_aggregate_gradients"] = False
        # Keras 3 has no such option. Keeping its sum and dividing by the number of replicas would
        # clip and scale different gradients. LossScaleOptimizer wraps another optimiser.
        for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if each and not self._options and hasattr(each, "_all_reduce_sum_gradients"):
                each._all_reduce_sum_gradients = list

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:  # tf.Module.__init__ has not set it yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def variables(self) -> Any:
        """The optimiser's variables."""
        variables = self.optimizer.variables
        return variables() if callable(variables) else variables

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]], **options: Any
    ) -> Any:
        """Average the gradients of (gradient, variable) pairs and apply them, inside a step."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        return self.apply(gradients, variables, **options)

    def apply(self, gradients: Any, variables: Sequence[tf.Variable], **options: Any) -> Any:
        """See `apply_gradients`."""
        means = self._replicator.all_reduce(list(gradients), "mean")
        pairs = zip(means, variables, strict=True)
        return self.optimizer.apply_gradients(pairs, **self._options, **options)

    def minimize(self, loss: Any, variables: Sequence[tf.Variable], tape: tf.GradientTape) -> Any:
        """Apply the gradients of a loss recorded by `tape` by `apply_gradients`."""
        return self.apply(tape.gradient(loss, variables), variables)


def check_divisible(element_spec: Any, num_replicas: int) -> None:
    """Raise UserError unless `num_replicas` divides the rows of each tensor, as far as known."""
    for spec in tf.nest.flatten(element_spec):
        if spec.shape.rank == 0:
            raise UserError("A global batch must have rows; a tensor of `dataset` is a scalar.")
        rows = spec.shape[0] if spec.shape.rank else None
        if rows is not None and rows % num_replicas:
            raise UserError(f"{ROWS_MUST} {num_replicas} replicas, got {rows}.")


def _replica_rows(element_spec: Any, first: int, count: int, num_replicas: int) -> Callable:
    """Return a function for `dataset.map` that keeps the rows of `count` replicas.

    Every tensor [rows, ...] becomes [count, rows / num_replicas, ...], with the rows of the
    replicas first, ..., first + count - 1.
    """

    def rows_of_replicas(tensor: tf.Tensor) -> tf.Tensor:
        rows = tf.shape(tensor)[0]
        even = tf.debugging.assert_equal(rows % num_replicas, 0, message=_UNEVEN)
        with tf.control_dependencies([even] if even is not None else []):
            size = rows // num_replicas
        known = None if tensor.shape[0] is None else tensor.shape[0] // num_replicas
        replica_rows = tensor[first * size : (first + count) * size]
        replica_rows = tf.reshape(replica_rows, tf.concat([[count, size], tf.shape(tensor)[1:]], 0))
        return tf.ensure_shape(replica_rows, [count, known, *tensor.shape[1:]])

    if type(element_spec) is tuple:  # `map` passes a tuple as several arguments
        return lambda *batch: tf.nest.map_structure(rows_of_replicas, batch)
    return lambda batch: tf.nest.map_structure(rows_of_replicas, batch)


def replica_batches(
    dataset: tf.data.Dataset, first: int, count: int, num_replicas: int
) -> tf.data.Dataset:
    """Return the rows of replicas first, ..., first + count - 1 in turn, from global batches.

    A batch whose rows are not a multiple of `num_replicas` is an error (`uneven_rows_error`
    explains it), and so is every later element: raised only once, it would reach one replica, while
    the others would report the next batch, or the end of the data.
    """
    rows_of_replicas = _replica_rows(dataset.element_spec, first, count, num_replicas)
    if all(spec.shape[0] is not None for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset.map(rows_of_replicas).unbatch()

    def replica_rows(*batch: Any) -> tf.data.Dataset:
        rows = tf.stack([tf.shape(tensor)[0] for tensor in tf.nest.flatten(batch)])
        is_even = tf.reduce_all(rows % num_replicas == 0)
        times = tf.where(is_even, tf.constant(1, tf.int64), -1)
        element = batch if type(dataset.element_spec) is tuple else batch[0]
        return tf.data.Dataset.from_tensors(element).repeat(times).map(rows_of_replicas).unbatch()

    return dataset.flat_map(replica_rows)


def uneven_rows_error(error: Exception, num_replicas: int) -> UserError | None:
    """Return a UserError for an error that `replica_batches` raised in a step, else None."""
    return UserError(f"{ROWS_MUST} {num_replicas} replicas.") if _UNEVEN in str(error) else None


@dataclasses.dataclass
class _Replica:
    index: int
    graph: Any
    record: CollectiveRecord


@dataclasses.dataclass(eq=False)
class Replicator(abc.ABC):
    """Base class of all strategies, which run a step function on replicas.

    The functions of `onepass.replicator.strategies` create them. A subclass's `compile` runs the
    step function within `_step(index, record)`, where the primitives may be called.

    Attributes:
      name: name of the strategy, a value of `--strategy`.
      num_replicas: total number of replicas of all workers.
      num_workers: number of processes that run the same loop; `worker_index` is this one's.
      is_chief: whether this process writes to disk.
      is_async: whether replicas update without waiting for each other.
      num_logical_devices: number of devices per replica.
    """

    name: str
    num_replicas: int = 1
    num_workers: int = 1
    worker_index: int = 0
    is_async: bool = False
    num_logical_devices: int = 1

    def __post_init__(self) -> None:
        self.is_chief = self.worker_index == 0
        self._thread = threading.local()

    @abc.abstractmethod
    def scope(self) -> contextlib.AbstractContextManager:
        """Return a context for creating variables and optimisers before the first step."""

    @property
    def num_devices(self) -> int:
        """Number of devices among which a trainer's batch is divided."""
        return self.num_replicas

    def gathered_variables(self) -> contextlib.AbstractContextManager:
        """Return a context, outside of steps, in which variables are read and set as a whole."""
        return contextlib.nullcontext()

    def dataset(self, input_fn: InputFn) -> Iterable[Any]:
        """Return an iterable of the replicas' input; a compiled step takes an iterator over it.

        Args:
          input_fn: function from a tf.distribute.InputContext (index and number of input pipelines)
            to a tf.data.Dataset of per-replica batches.
        """
        return input_fn(tf.distribute.InputContext()).prefetch(_PREFETCHED_BATCHES)

    def batches(self, dataset: tf.data.Dataset | ShardFn) -> Iterable[Any]:
        """Return an iterable that gives every replica its rows of global batches.

        Replica r of R takes rows [r * n / R, (r + 1) * n / R) of a batch of n rows.

        Args:
          dataset: nests of tensors [rows, ...], the same in every process; or a function from i and
            k to a dataset with part i of k equal parts of the rows, so that each of several
            processes computes only its part.

        Raises:
          UserError: `num_replicas` does not divide the number of rows; if that is not static, the
            step raises the error.
        """
        return whole(dataset).prefetch(_PREFETCHED_BATCHES)

    @abc.abstractmethod
    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> Call:
        """Return a function that runs steps on an iterator over `dataset` or `batches`.

        It runs `steps_per_call` steps and returns the outputs of the last. The step function, which
        returns a nest of tensors (or None) for the batch of a replica, is traced as a graph,
        without autograph. Floating-point outputs are averaged over the replicas; other outputs are
        taken from replica 0. At the end of the data, the function raises tf.errors.OutOfRangeError.
        """

    def compile_training(
        self, gradients_fn: StepFn, update_fn: Callable, variables: Sequence, reads: Sequence = ()
    ) -> Call:
        """Return a compiled update of variables from gradients averaged over the replicas.

        Args:
          gradients_fn: function from a replica's batch to (metrics, gradients), means over rows.
          update_fn: function from the averages of metrics and gradients over the replicas to (new
            values of the variables, outputs of the step).
          variables: variables that a step sets.
          reads: other variables that `gradients_fn` reads.
        """
        return self.compile(self._training_step(gradients_fn, update_fn, variables))

    def _training_step(
        self, gradients_fn: StepFn, update_fn: Callable, variables: Sequence
    ) -> StepFn:
        def step(batch: Any) -> Any:
            metrics, gradients = self.all_reduce(gradients_fn(batch), "mean")
            values, outputs = update_fn(metrics, gradients)
            self.update(variables, values)
            return outputs

        return step

    @abc.abstractmethod
    def _replica_id(self) -> int | tf.Tensor:
        """See `replica_id`; an int or int32 []."""

    def run(
        self, step_fn: StepFn, input_fn: InputFn, num_steps: int, steps_per_call: int = 1
    ) -> Any:
        """Compile a step, run it `num_steps` times, and return the outputs of the last run."""
        if num_steps < 1 or num_steps % steps_per_call:
            rule = f"a positive multiple of `steps_per_call` ({steps_per_call})"
            raise ValueError(must_be("num_steps", rule, num_steps))
        call, iterator = self.compile(step_fn, steps_per_call), iter(self.dataset(input_fn))
        for made in range(0, num_steps, steps_per_call):
            outputs = call(iterator, **self._call_options(num_steps - made))
        return outputs

    def _call_options(self, steps_left: int) -> dict[str, int]:
        """Return further arguments of a compiled step in `run`, which ends after `steps_left`."""
        return {}

    @property
    def replica_id(self) -> tf.Tensor:
        """Index of the replica that runs the step, int32 []."""
        self._current_replica("replica_id")
        return tf.cast(self._replica_id(), tf.int32)

    @contextlib.contextmanager
    def logical_device(self, index: int) -> Iterator[None]:
        """Place the block's operations and variables on a logical device of each replica.

        It may only be used in a step or in `scope()`. Raise ValueError if `index` is not below
        `num_logical_devices`.
        """
        if not 0 <= index < self.num_logical_devices:
            raise ValueError(
                f"`index` must be in [0, {self.num_logical_devices}), got {index}: a replica has "
                f"{self.num_logical_devices} logical device(s)."
            )
        with self._device_scope(index):
            yield

    def _device_scope(self, index: int) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def all_sum(self, value: Any) -> Any:
        """Return the sum over replicas of each tensor of a nest, as `all_reduce(value, "sum")`."""
        return self._collective("all_sum", collectives.reducer("sum"), value)

    def all_reduce(self, value: Any, reducer: str) -> Any:
        """Reduce each tensor of a nest over replicas; the result is the same on all replicas.

        Gradients are derivatives of the sum of all replicas' losses.

        Args:
          value: a nest of tensors; None stays None.
          reducer: sum, mean (only floating-point), min or max (whose gradients are divided among
            equal values).

        Raises:
          ValueError: the reducer is unknown, or cannot reduce a tensor's dtype.
        """
        function = collectives.reducer(reducer)
        return self._collective(f"all_reduce[{reducer}]", function, value)

    def all_gather(self, value: Any) -> Any:
        """Return each tensor of a nest from all replicas: [...] becomes [num_replicas, ...]."""
        return self._collective("all_gather", collectives.gather, value)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return each tensor of a nest as it is on replica `source`, bit for bit, for any dtype.

        That replica receives the gradient; other replicas get zeros. Raise ValueError if there is
        no such replica.
        """
        if not 0 <= source < self.num_replicas:
            raise ValueError(must_be("source", f"in [0, {self.num_replicas})", source))
        function = collectives.broadcast_from(source)
        return self._collective(f"broadcast[{source}]", function, value)

    def map_gather(self, fn: Callable, value: Any) -> Any:
        """Return `all_gather(fn(value))`: each replica maps its own value."""
        self._current_replica("map_gather")
        return self.all_gather(fn(value))

    def map_reduce(self, fn: Callable, value: Any, reducer: str) -> Any:
        """Return `all_reduce(fn(value), reducer)`: each replica maps its own value."""
        self._current_replica("map_reduce")
        return self.all_reduce(fn(value), reducer)

    def wrap_optimizer(self, optimizer: Any) -> WrappedOptimizer:
        """Return an optimiser that applies the mean of the gradients over replicas.

        Args:
          optimizer: an optimiser of Keras 3 or tf_keras, or any object with
            `apply_gradients(pairs)` that assigns plain variables.
        """
        return WrappedOptimizer(self, optimizer)

    def update(self, variables: Iterable[tf.Variable], values: Iterable[Any]) -> None:
        """Set variables, in a step; asynchronous strategies add the difference instead."""
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _sum(self, tensors: list) -> list:
        """Return the sums over replicas of tensors with the dtypes of collectives.py."""
        return tensors

    @contextlib.contextmanager
    def _step(self, index: int, record: CollectiveRecord) -> Iterator[None]:
        record.begin(index)
        self._thread.replica = _Replica(index, _graph(), record)
        try:
            yield
            record.end(index)
        finally:
            self._thread.replica = None

    def _current_replica(self, primitive: str) -> _Replica:
        replica = getattr(self._thread, "replica", None)
        if replica is None:
            raise RuntimeError(f"`{primitive}` may only be called in a step.")
        return replica

    def _collective(self, primitive: str, function: collectives.Primitive, value: Any) -> Any:
        self._current_replica(primitive)
        leaves = tf.nest.flatten(value)
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        self._record_call(primitive, tensors)
        results = iter(function(self, tensors) if tensors else [])
        return tf.nest.pack_sequence_as(
            value, [None if leaf is None else next(results) for leaf in leaves]
        )

    def _record_call(self, primitive: str, tensors: Sequence[tf.Tensor]) -> None:
        replica, graph = self._current_replica(primitive), _graph()
        if graph is not replica.graph:
            kinds = {"While": "tf.while_loop", "Cond": "tf.cond", "": "another tf.function"}
            within = next(kinds[kind] for kind in kinds if kind in type(graph).__name__)
            raise CollectiveOrderError(
                f"`{primitive}` is called within {within}, where some replicas might not call it; "
                "call it directly in the step."
            )
        replica.record.note(replica.index, call_text(primitive, tensors))


def whole(batches: Any) -> Any:
    """Return the batches; if `batches` is a function of parts, return the batches with all rows."""
    return batches(0, 1) if callable(batches) else batches


def check_steps_per_call(steps_per_call: int) -> None:
    """Raise ValueError unless `steps_per_call` is positive."""
    if steps_per_call < 1:
        raise ValueError(must_be("steps_per_call", "at least 1", steps_per_call))


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
