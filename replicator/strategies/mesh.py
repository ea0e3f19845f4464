"""One step over a mesh of devices, with variables and batches cut into shards, over DTensor.

Two ways. A user's step function is one global computation: DTensor itself cuts it along the layouts
of its variables and of the batch. An update along gradients (`compile_training`) runs on networks
of any kind, whose operations DTensor need not know: variables and optimiser state lie in shards,
all of the weights are gathered on every device, each device computes the gradients of its own rows,
and their mean moves the shards. Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054), stage 2.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
from tensorflow.experimental import dtensor

from replicator.collectives.collective_order import OrderRecord
from replicator.runs.errors import UserError
from replicator.strategies.base import Call, InputFn, Replicator, StepFn
from replicator.strategies.layouts import BATCH, LayoutRules, Layouts, check_mesh
from replicator.strategies.sharded_variables import Reading, ShardedVariable, Shelf
from replicator.strategies.synchronous import local, local_devices

_AHEAD = 2  # batches made before they are asked for


class ShardedReplicator(Replicator):
    """What `sharded` returns.

    Its step function is traced once, for all devices: it is the only replica and the primitives
    give what they are given. In the `local` part of `compile_training` each device is a replica.
    """

    def __init__(self, mesh: Mapping[str, int], layouts: Layouts):
        super().__init__("sharded")
        check_mesh(mesh)
        names = local_devices(math.prod(mesh.values()))
        kind = tf.DeviceSpec.from_string(names[0]).device_type
        self._mesh = dtensor.create_mesh(list(mesh.items()), devices=names, device_type=kind)
        self._each = local(names, 1)
        self._rules = LayoutRules(self._mesh, layouts)
        self.shelf = Shelf(self._rules, names, lambda: self._here("replica_id").index)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return self._mesh.size

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """A context whose variables are stored in shards."""
        with tf.variable_creator_scope(self.shelf.create):
            yield

    def whole(self) -> contextlib.AbstractContextManager:
        """A context, outside of steps, in which variables are plain ones on the first device.

        What is assigned there is cut into shards at its end.
        """
        return self.shelf.whole()

    def dataset(self, input_fn: InputFn):
        """The dataset of global batches; the one input pipeline is that of all devices."""
        return input_fn(tf.distribute.InputContext()).prefetch(_AHEAD)

    def batches(self, dataset: tf.data.Dataset):
        """The dataset; a step cuts the rows of a batch along the mesh."""
        return dataset.prefetch(_AHEAD)

    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> Call:
        """A DTensor function of a step; see Replicator."""
        if steps_per_call < 1:
            raise ValueError(f"`steps_per_call` must be at least 1, got {steps_per_call}.")
        return _StepCall(self, step_fn, steps_per_call)

    def compile_training(
        self, local: StepFn, moved: Callable, variables: Sequence, reads: Sequence = ()
    ) -> Call:
        """A step that gathers the weights, computes on each device and moves the shards.

        Args:
          local: as for Replicator; of each device's rows, with primitives over the devices.
          moved: elementwise operations and sums; DTensor runs it on the shards.
          variables: what a step sets. `local` may read those of them that are trainable or scalar.
          reads: what else it reads.
        """
        return _TrainingCall(self, local, moved, variables, reads)

    def _replica_id(self):
        return self._each._replica_id() if self.num_replicas > 1 else 0

    def _sum(self, tensors: list) -> list:
        return self._each._sum(tensors)

    @contextlib.contextmanager
    def _each_is_replica(self) -> Iterator[None]:
        self.num_replicas = self.num_devices
        try:
            yield
        finally:
            self.num_replicas = 1

    def cut_for_mesh(self, batch):
        """The rows of a batch along the batch dimension of the mesh, as DTensors."""
        count = self._mesh.dim_size(BATCH)
        places = [place[BATCH] for place in self._mesh.local_device_locations()]

        def cut(tensor):
            layout = dtensor.Layout(
                [BATCH] + [dtensor.UNSHARDED] * (tensor.shape.rank - 1), self._mesh
            )
            parts = _rows(tensor, count)
            return dtensor.pack([parts[place] for place in places], layout)

        return tf.nest.map_structure(cut, batch)

    def cut_for_devices(self, batch):
        """The rows of a batch along all devices, as per-replica values."""
        parts = [_rows(tensor, self.num_devices) for tensor in tf.nest.flatten(batch)]
        return self.on_devices(
            [tf.nest.pack_sequence_as(batch, [p[k] for p in parts]) for k in range(len(parts[0]))]
        )

    def on_devices(self, values: list):
        """One nest for each device as one nest of per-replica values."""
        strategy = self._each._strategy
        return strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        )


class _StepCall:
    """Steps of one global computation."""

    def __init__(self, replicator: ShardedReplicator, step_fn: StepFn, steps_per_call: int):
        self._replicator, self._step_fn = replicator, step_fn
        self._steps_per_call = steps_per_call
        self._function = tf.function(self._step, autograph=False)

    def __call__(self, iterator):
        """The outputs of the last of the steps."""
        self._replicator.shelf.rules.check_all_used()
        for _ in range(self._steps_per_call):
            batch = self._replicator.cut_for_mesh(_next(iterator))
            with self._replicator.shelf.read_as(Reading.STEP):
                outputs = self._function(batch)
        return _unpacked(outputs)

    def _step(self, batch):
        with self._replicator._step(0, OrderRecord()):
            return _replicated(self._replicator.shelf.rules, self._step_fn(batch))


class _TrainingCall:
    """Steps of gathered weights, local gradients and shards that move."""

    def __init__(self, replicator: ShardedReplicator, local: StepFn, moved, variables, reads):
        self._replicator, self._local, self._moved = replicator, local, moved
        self._variables = list(variables)
        self._read = _distinct([*filter(_is_common, variables), *reads])
        self._gather = tf.function(self._gathered, autograph=False)
        self._compute = tf.function(self._computed, autograph=False)
        self._move = tf.function(self._moving, autograph=False)
        for variable in self._read:
            variable.make_copies(range(replicator.num_devices))

    def __call__(self, iterator):
        """The outputs of a step."""
        replicator, shelf = self._replicator, self._replicator.shelf
        shelf.rules.check_all_used()
        batch = replicator.cut_for_devices(_next(iterator))
        wholes = [dtensor.unpack(value) for value in self._gather()]
        values = replicator.on_devices([list(parts) for parts in zip(*wholes, strict=True)])
        with shelf.read_as(Reading.LOCAL), replicator._each_is_replica():
            results = self._compute(values, batch)
        outputs = self._move(*tf.nest.map_structure(self._packed, results))
        return _unpacked(outputs)

    def _gathered(self):
        return _replicated(self._replicator.shelf.rules, self._read)

    def _computed(self, values, batch):
        """Figures and gradients of each device, per-replica values."""
        record = OrderRecord()

        def on_device(values, batch):
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group) or 0)
            with self._replicator._step(index, record):
                for variable, value in zip(self._read, values, strict=True):
                    variable.local_copy(index).assign(value)
                results = self._local(batch)
                return tf.nest.map_structure(lambda value: self._part(value, index), results)

        return self._replicator._each._strategy.run(on_device, args=(values, batch))

    def _part(self, value, index: int):
        """What a device adds to the mean: [1, ..., 1, its value's axes]."""
        value = tf.convert_to_tensor(value)
        if not value.dtype.is_floating:  # not averaged but those of the first
            value = value if index == 0 else tf.zeros_like(value)
            value = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        return tf.reshape(value, [1] * len(self._replicator._mesh.dim_names) + value.shape)

    def _packed(self, parts):
        names = self._replicator._mesh.dim_names
        parts = list(self._replicator._each._strategy.experimental_local_results(parts))
        unsharded = [dtensor.UNSHARDED] * (parts[0].shape.rank - len(names))
        return dtensor.pack(parts, dtensor.Layout([*names, *unsharded], self._replicator._mesh))

    def _moving(self, figures, gradients):
        figures, gradients = tf.nest.map_structure(self._mean, (figures, gradients))
        weights = [v for v in self._variables if v.trainable]
        if [w.shape for w in weights] == [g.shape for g in gradients]:
            gradients = [
                dtensor.relayout(gradient, weight.layout)
                for gradient, weight in zip(gradients, weights, strict=True)
            ]
        values, outputs = self._moved(figures, gradients)
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        return _replicated(self._replicator.shelf.rules, outputs)

    def _mean(self, parts):
        axes = list(range(len(self._replicator._mesh.dim_names)))
        return (tf.reduce_mean if parts.dtype.is_floating else tf.reduce_sum)(parts, axes)


def _unpacked(values):
    """One device's tensors, which are those of all."""
    return tf.nest.map_structure(lambda v: None if v is None else dtensor.unpack(v)[0], values)


def _replicated(rules: LayoutRules, values):
    """The tensors as a whole on every device."""

    def whole(value):
        if value is None:
            return None
        value = tf.convert_to_tensor(value)
        return dtensor.relayout(value, rules.replicated(value.shape.rank))

    return tf.nest.map_structure(whole, values)


def _is_common(variable: ShardedVariable) -> bool:
    return variable.trainable or variable.shape.rank == 0


def _distinct(variables) -> list[ShardedVariable]:
    return list({v.ref(): v for v in variables if isinstance(v, ShardedVariable)}.values())


def _next(iterator):
    try:
        return next(iterator)
    except StopIteration:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None


def _rows(tensor, count: int) -> list[tf.Tensor]:
    """The rows of a tensor [rows, ...] in equal parts."""
    if tensor.shape.rank == 0:
        raise UserError("A batch must have rows; a tensor of it is a scalar.")
    if tensor.shape[0] % count:
        raise UserError(
            f"The rows of a global batch must be a multiple of {count} shards, got "
            f"{tensor.shape[0]}."
        )
    return tf.split(tensor, count)
