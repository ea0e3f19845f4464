"""One step function on one device, many devices or many machines.

A user writes `step_fn(batch)` and `input_fn(context)` once, as if for one device with its share of
the batch, and says with primitives where replicas meet. Buchlovsky et al. 2019, "TF-Replicator:
Distributed Machine Learning for Researchers".
"""

import abc
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from replicator.collectives import primitives
from replicator.collectives.collective_order import OrderError, OrderRecord, call_text

StepFn = Callable[[Any], Any]
InputFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]
Call = Callable[[Any], Any]


@dataclasses.dataclass
class _Replica:
    """One replica's trace of a step: who it is, in which graph, and the list of its calls."""

    index: int
    graph: Any
    record: OrderRecord
    outputs: bool = False


class Replicator(abc.ABC):
    """Runs a step function on replicas; the base class of all strategies.

    A subclass gives `scope`, `dataset`, `batches`, `compile` and `_replica_id`, and, where it has
    more than one replica, `_sum`. Its `compile` runs the step function within `_step(index,
    record)`, which is what permits the primitives.

    Attributes:
      name: the strategy's word.
      num_replicas: replicas over all workers.
      num_workers, worker_index: processes that run the same loop, and which of them this one is.
      is_chief: whether this process writes to disk.
      is_async: whether replicas update without waiting for each other.
      num_logical_devices: devices of one replica.
    """

    def __init__(
        self,
        name: str,
        *,
        num_replicas: int = 1,
        num_workers: int = 1,
        worker_index: int = 0,
        is_async: bool = False,
        num_logical_devices: int = 1,
    ):
        self.name, self.num_replicas, self.is_async = name, num_replicas, is_async
        self.num_workers, self.worker_index = num_workers, worker_index
        self.is_chief = worker_index == 0
        self.num_logical_devices = num_logical_devices
        self._thread = threading.local()

    @abc.abstractmethod
    def scope(self) -> contextlib.AbstractContextManager:
        """A context; everything with variables, optimisers too, is made in it, before the steps."""

    @property
    def num_devices(self) -> int:
        """The number of devices that share the rows of a trainer's batch."""
        return self.num_replicas

    def whole(self) -> contextlib.AbstractContextManager:
        """A context, outside steps, to read variables in, whole, wherever their parts are kept."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def dataset(self, input_fn: InputFn):
        """The iterable of all replicas' input, for `iter` and then a compiled step.

        Args:
          input_fn: from a tf.distribute.InputContext (which of how many input pipelines this is) to
            a tf.data.Dataset of per-replica batches.
        """

    @abc.abstractmethod
    def batches(self, dataset: tf.data.Dataset):
        """The iterable that gives every replica its equal share of the rows of global batches.

        Replica r of R takes rows [r * n / R, (r + 1) * n / R) of a batch of n rows.

        Args:
          dataset: of nests of tensors [rows, ...], the same in every process.

        Raises:
          UserError: `num_replicas` does not divide the rows; here, or where they are not known
            before, in the step.
        """

    @abc.abstractmethod
    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> Call:
        """A function from an iterator (over `dataset` or `batches`) to the outputs of a step.

        It makes `steps_per_call` steps and returns the outputs of the last. The step function is
        traced as a graph, without autograph. Outputs that are floating are averaged over the
        replicas; others are those of replica 0. At the end of the data it raises
        tf.errors.OutOfRangeError.

        Args:
          step_fn: from the batch of a replica to a nest of tensors (or None).
          steps_per_call: steps of one call.
        """

    def compile_training(
        self, local: StepFn, moved: Callable, variables: Sequence, reads: Sequence = ()
    ) -> Call:
        """`compile` of an update of variables along gradients, averaged over the replicas.

        Args:
          local: from the batch of a replica to (figures, gradients), means over its rows.
          moved: from these, averaged, to (values of the variables, outputs of the step).
          variables: what a step sets.
          reads: variables that `local` reads beside them.
        """
        return self.compile(self._training_step(local, moved, variables))

    def _training_step(self, local: StepFn, moved: Callable, variables: Sequence) -> StepFn:
        def step(batch):
            values, outputs = moved(*self.all_reduce(local(batch), "mean"))
            self.update(variables, values)
            return outputs

        return step

    @abc.abstractmethod
    def _replica_id(self):
        """An int or int32 [], the number of the replica that runs the step."""

    def run(self, step_fn: StepFn, input_fn: InputFn, num_steps: int, steps_per_call: int = 1):
        """Makes `num_steps` steps and returns the outputs of the last; see `compile`."""
        if num_steps < 1 or num_steps % steps_per_call:
            raise ValueError(
                f"`num_steps` must be a positive multiple of `steps_per_call` ({steps_per_call}), "
                f"got {num_steps}."
            )
        call, iterator = self.compile(step_fn, steps_per_call), iter(self.dataset(input_fn))
        for _ in range(num_steps // steps_per_call):
            outputs = call(iterator)
        return outputs

    @property
    def replica_id(self) -> tf.Tensor:
        """int32 [], the number of the replica that runs the step."""
        self._here("replica_id")
        return tf.cast(self._replica_id(), tf.int32)

    @contextlib.contextmanager
    def logical_device(self, index: int) -> Iterator[None]:
        """A context, in a step or the scope, that places ops and variables on a replica's device.

        Raises:
          ValueError: the replicas do not have so many devices.
        """
        if not 0 <= index < self.num_logical_devices:
            raise ValueError(
                f"`index` must be in [0, {self.num_logical_devices}), got {index}: a replica has "
                f"{self.num_logical_devices} logical device(s)."
            )
        with self._placed(index):
            yield

    def _placed(self, index: int) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def all_sum(self, value):
        """The sum over replicas of each tensor of a nest; `all_reduce(value, "sum")`."""
        return self._collective("all_sum", primitives.reducer("sum"), value)

    def all_reduce(self, value, reducer: str):
        """Each tensor of a nest reduced over replicas, the same on all of them.

        Gradients are those of the sum of all replicas' losses.

        Args:
          value: a nest of tensors; None stays None.
          reducer: sum, mean (floating only), min or max (their gradient is shared among equals).
        """
        function = primitives.reducer(reducer)
        return self._collective(f"all_reduce[{reducer}]", function, value)

    def all_gather(self, value):
        """Each tensor of a nest from all replicas: [...] becomes [num_replicas, ...]."""
        return self._collective("all_gather", primitives.gather, value)

    def broadcast(self, value, source: int = 0):
        """Each tensor of a nest, of any dtype, as replica `source` has it.

        The gradient goes to that replica.
        """
        if not 0 <= source < self.num_replicas:
            raise ValueError(f"`source` must be in [0, {self.num_replicas}), got {source}.")
        function = primitives.broadcast_from(source)
        return self._collective(f"broadcast[{source}]", function, value)

    def map_gather(self, fn: Callable, value):
        """`all_gather(fn(value))`: each replica maps its own value."""
        self._here("map_gather")
        return self.all_gather(fn(value))

    def map_reduce(self, fn: Callable, value, reducer: str):
        """`all_reduce(fn(value), reducer)`: each replica maps its own value."""
        self._here("map_reduce")
        return self.all_reduce(fn(value), reducer)

    def wrap_optimizer(self, optimizer):
        """An optimiser whose `apply_gradients` applies the mean of gradients over replicas, once.

        Args:
          optimizer: of Keras 3 or tf_keras, or any object with `apply_gradients(pairs)` that
            assigns plain variables.
        """
        from replicator.strategies.wrapped_optimizer import WrappedOptimizer

        return WrappedOptimizer(self, optimizer)

    def update(self, variables, values) -> None:
        """Sets variables, in a step; asynchronous: adds the difference, so that nothing is lost."""
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _sum(self, tensors: list) -> list:
        """The sums over replicas of tensors of the engine's dtypes (see primitives.py)."""
        return tensors

    @contextlib.contextmanager
    def _step(self, index: int, record: OrderRecord) -> Iterator[None]:
        """Within it this thread traces a step as replica `index`."""
        record.begin(index)
        self._thread.replica = _Replica(index, _graph(), record)
        try:
            yield
            record.end(index)
        finally:
            self._thread.replica = None

    def _here(self, primitive: str) -> _Replica:
        replica = getattr(self._thread, "replica", None)
        if replica is None:
            raise RuntimeError(f"`{primitive}` may only be called in a step.")
        return replica

    def _collective(self, primitive: str, function, value):
        """Function applied to the tensors of a nest, None left out, after the order was checked."""
        self._here(primitive)
        leaves = tf.nest.flatten(value)
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        self._note(primitive, tensors)
        results = iter(function(self, tensors) if tensors else [])
        return tf.nest.pack_sequence_as(
            value, [None if leaf is None else next(results) for leaf in leaves]
        )

    def _note(self, primitive: str, tensors) -> None:
        replica = self._here(primitive)
        if _graph() is not replica.graph:
            raise OrderError(
                f"`{primitive}` is called within {_place(_graph())}, where replicas could disagree "
                f"on whether to call it; call it in the step itself."
            )
        replica.record.note(replica.index, call_text(primitive, tensors))


def _graph():
    """The graph that is being traced, None when there is none."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _place(graph) -> str:
    kind = type(graph).__name__
    if "Cond" in kind and "While" not in kind:
        return "tf.cond"
    return "tf.while_loop" if "While" in kind else "another tf.function"
