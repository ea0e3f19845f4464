"""Run a step over a mesh of devices with DTensor, with sharded variables and batches.

There are two ways. A user's step function (`compile`) is one global computation, which DTensor
partitions according to the layouts of its variables and of the batch. A training step
(`compile_training`) works with any network, because DTensor need not support its operations:
variables and optimiser state are sharded, all weights are gathered on every device, each device
computes the gradients of its own rows, and their mean updates the shards. Rajbhandari et al. 2020,
"ZeRO" (arXiv 1910.02054), stage 2.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from onepass.foundation.errors import UserError
from onepass.replicator.collectives.collective_order import CollectiveRecord
from onepass.replicator.strategies.base import Call, Replicator, StepFn, check_steps_per_call
from onepass.replicator.strategies.sharded_variables import (
    BATCH,
    LayoutRules,
    Layouts,
    ReadMode,
    ShardedVariable,
    ShardedVariableStore,
    check_mesh,
)
from onepass.replicator.strategies.synchronous import local, local_devices
from onepass.replicator.strategies.wrapped_optimizer import WrappedOptimizer


class ShardedReplicator(Replicator):
    """The replicator of `sharded`.

    A step function is traced once for all devices: there is one replica, and the primitives return
    their argument. In the `gradients_fn` of `compile_training`, every device is a replica.
    """

    def __init__(self, mesh: Mapping[str, int], layouts: Layouts):
        super().__init__("sharded")
        check_mesh(mesh)
        names = local_devices(math.prod(mesh.values()))
        kind = tf.DeviceSpec.from_string(names[0]).device_type
        self._mesh = dtensor.create_mesh(list(mesh.items()), devices=names, device_type=kind)
        self._data_parallel = local(names, 1)
        self._rules = LayoutRules(self._mesh, layouts)
        self.store = ShardedVariableStore(
            self._rules, names, lambda: self._current_replica("replica_id").index
        )

    @property
    def num_devices(self) -> int:
        """Number of devices in the mesh."""
        return self._mesh.size

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Store variables created in the block in shards."""
        with tf.variable_creator_scope(self.store.create):
            yield

    def gathered_variables(self) -> contextlib.AbstractContextManager:
        """Return a context of plain variables on the first device; values set in it are sharded."""
        return self.store.gathered_variables()

    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> Call:
        """Return a DTensor function that runs steps, each one global computation."""
        check_steps_per_call(steps_per_call)
        return _CompiledStep(self, step_fn, steps_per_call)

    def compile_training(
        self, gradients_fn: StepFn, update_fn: Callable, variables: Sequence, reads: Sequence = ()
    ) -> Call:
        """Return a step that gathers weights, computes gradients per device, and updates shards.

        `gradients_fn` gets each device's rows; primitives act over the devices. It may read `reads`
        and those `variables` that are trainable or scalar. `update_fn` consists of element-wise
        operations and sums, which DTensor runs on the shards.
        """
        return _CompiledTraining(self, gradients_fn, update_fn, variables, reads)

    def wrap_optimizer(self, optimizer: Any) -> WrappedOptimizer:
        """Return an optimiser that applies the mean of the gradients over replicas."""
        if hasattr(optimizer, "_resource_apply_dense"):
            raise UserError(
                f"The strategy sharded cannot run `{type(optimizer).__name__}`: its fused "
                "operations have no layouts; use an optimizer of Keras 3, or a non-legacy one of "
                "tf_keras."
            )
        return super().wrap_optimizer(optimizer)

    def _replica_id(self) -> int | tf.Tensor:
        return self._data_parallel._replica_id() if self.num_replicas > 1 else 0

    def _sum(self, tensors: list) -> list:
        return self._data_parallel._sum(tensors)

    @contextlib.contextmanager
    def _devices_as_replicas(self) -> Iterator[None]:
        self.num_replicas = self.num_devices
        try:
            yield
        finally:
            self.num_replicas = 1

    def shard_for_mesh(self, batch: Any) -> Any:
        """Return the batch as DTensors whose rows are sharded along the mesh's batch dimension."""
        count = self._mesh.dim_size(BATCH)
        locations = [location[BATCH] for location in self._mesh.local_device_locations()]

        def shard(tensor: tf.Tensor) -> tf.Tensor:
            layout = dtensor.Layout(
                [BATCH] + [dtensor.UNSHARDED] * (tensor.shape.rank - 1), self._mesh
            )
            pieces = _rows(tensor, count)
            return dtensor.pack([pieces[location] for location in locations], layout)

        return tf.nest.map_structure(shard, batch)

    def shard_for_devices(self, batch: Any) -> Any:
        """Return the batch as per-replica values, with the rows divided among all devices."""
        pieces = [_rows(tensor, self.num_devices) for tensor in tf.nest.flatten(batch)]
        return self.per_replica(
            [tf.nest.pack_sequence_as(batch, [p[k] for p in pieces]) for k in range(len(pieces[0]))]
        )

    def per_replica(self, values: list[Any]) -> Any:
        """Combine a nest for each device into one nest of per-replica values."""
        strategy = self._data_parallel._strategy
        return strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        )


class _CompiledStep:
    """A compiled step that is one global computation."""

    def __init__(self, replicator: ShardedReplicator, step_fn: StepFn, steps_per_call: int):
        self._replicator, self._step_fn = replicator, step_fn
        self._steps_per_call = steps_per_call
        self._function = tf.function(self._step, autograph=False)

    def __call__(self, iterator: Iterator[Any]) -> Any:
        self._replicator.store.rules.check_all_used()
        for _ in range(self._steps_per_call):
            batch = self._replicator.shard_for_mesh(_next(iterator))
            with self._replicator.store.reading_as(ReadMode.STEP):
                outputs = self._function(batch)
        return _unpack_values(outputs)

    def _step(self, batch: Any) -> Any:
        store = self._replicator.store
        with self._replicator._step(0, CollectiveRecord()), store.tracing_step():
            return _replicate_values(self._replicator.store.rules, self._step_fn(batch))


class _CompiledTraining:
    """A compiled step that gathers weights, computes on each device, and updates shards."""

    def __init__(
        self,
        replicator: ShardedReplicator,
        gradients_fn: StepFn,
        update_fn: Callable[..., tuple[Any, Any]],
        variables: Sequence[tf.Variable],
        reads: Sequence[tf.Variable],
    ):
        self._replicator, self._gradients_fn, self._update_fn = replicator, gradients_fn, update_fn
        self._variables = list(variables)
        local = [v for v in variables if v.trainable or v.shape.rank == 0]
        read = {v.ref(): v for v in (*local, *reads) if isinstance(v, ShardedVariable)}
        self._read = list(read.values())
        self._gather = tf.function(self._gathered_values, autograph=False)
        self._compute = tf.function(self._local_results, autograph=False)
        self._update = tf.function(self._apply_update, autograph=False)
        for variable in self._read:
            variable.make_copies(range(replicator.num_devices))

    def __call__(self, iterator: Iterator[Any]) -> Any:
        replicator, store = self._replicator, self._replicator.store
        store.rules.check_all_used()
        batch = replicator.shard_for_devices(_next(iterator))
        gathered = [dtensor.unpack(value) for value in self._gather()]
        values = replicator.per_replica([list(pieces) for pieces in zip(*gathered, strict=True)])
        with store.reading_as(ReadMode.LOCAL), replicator._devices_as_replicas():
            results = self._compute(values, batch)
        outputs = self._update(*tf.nest.map_structure(self._pack_pieces, results))
        return _unpack_values(outputs)

    def _gathered_values(self) -> Any:
        return _replicate_values(self._replicator.store.rules, self._read)

    def _local_results(self, values: Any, batch: Any) -> Any:
        record = CollectiveRecord()

        def on_device(values: list[tf.Tensor], batch: Any) -> Any:
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group) or 0)
            with self._replicator._step(index, record):
                for variable, value in zip(self._read, values, strict=True):
                    variable.local_copy(index).assign(value)
                results = self._gradients_fn(batch)
                return tf.nest.map_structure(lambda value: self._summand(value, index), results)

        return self._replicator._data_parallel._strategy.run(on_device, args=(values, batch))

    def _summand(self, value: Any, index: int) -> tf.Tensor:
        """Return one device's term of the mean, with an axis of size 1 per mesh dimension."""
        value = tf.convert_to_tensor(value)
        if not value.dtype.is_floating:  # not averaged; taken from the first device
            value = value if index == 0 else tf.zeros_like(value)
            value = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        return tf.reshape(value, [1] * len(self._replicator._mesh.dim_names) + value.shape)

    def _pack_pieces(self, pieces: Any) -> tf.Tensor:
        names = self._replicator._mesh.dim_names
        pieces = list(self._replicator._data_parallel._strategy.experimental_local_results(pieces))
        unsharded = [dtensor.UNSHARDED] * (pieces[0].shape.rank - len(names))
        return dtensor.pack(pieces, dtensor.Layout([*names, *unsharded], self._replicator._mesh))

    def _apply_update(self, figures: Any, gradients: list[tf.Tensor]) -> Any:
        figures, gradients = tf.nest.map_structure(self._mean, (figures, gradients))
        weights = [v for v in self._variables if v.trainable]
        if [w.shape for w in weights] == [g.shape for g in gradients]:
            gradients = [
                dtensor.relayout(gradient, weight.layout)
                for gradient, weight in zip(gradients, weights, strict=True)
            ]
        values, outputs = self._update_fn(figures, gradients)
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        return _replicate_values(self._replicator.store.rules, outputs)

    def _mean(self, pieces: tf.Tensor) -> tf.Tensor:
        axes = list(range(len(self._replicator._mesh.dim_names)))
        return (tf.reduce_mean if pieces.dtype.is_floating else tf.reduce_sum)(pieces, axes)


def _unpack_values(values: Any) -> Any:
    """Return the first device's tensors, which are the same on all devices; None stays None."""
    return tf.nest.map_structure(lambda v: None if v is None else dtensor.unpack(v)[0], values)


def _replicate_values(rules: LayoutRules, values: Any) -> Any:
    def gathered_variables(value: Any) -> tf.Tensor | None:
        if value is None:
            return None
        value = tf.convert_to_tensor(value)
        return dtensor.relayout(value, rules.make_replicated(value.shape.rank))

    return tf.nest.map_structure(gathered_variables, values)


def _next(iterator: Iterator[Any]) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None


def _rows(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    if tensor.shape.rank == 0:
        raise UserError("A batch must have rows; a tensor of it is a scalar.")
    if tensor.shape[0] % count:
        raise UserError(
            f"The rows of a global batch must be a multiple of {count} shards, got "
            f"{tensor.shape[0]}."
        )
    return tf.split(tensor, count)
