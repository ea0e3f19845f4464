"""Run a step over a mesh of devices with DTensor, with sharded variables and batches.

There are two ways. A user's step function (`compile`) is one global computation, which DTensor
partitions according to the layouts of its variables and of the batch. A training step
(`compile_training`) works with any network, because DTensor need not support its operations:
variables and optimiser state are sharded, all weights are gathered on every device, each device
computes the gradients of its own rows, and their mean updates the shards. Rajbhandari et al. 2020,
"ZeRO" (arXiv 1910.02054), stage 2.
"""

import contextlib
import enum
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.ops import resource_variable_ops

from onepass.foundation.files import first_of
from onepass.foundation.rules import UserError
from onepass.replicator.collectives import CollectiveRecord
from onepass.replicator.strategies import base
from onepass.replicator.strategies.asynchronous import recorded_read
from onepass.replicator.strategies.base import StepFn
from onepass.replicator.strategies.synchronous import local, local_devices

BATCH = "batch"  # the mesh dimension along which the rows of a batch are sharded

Layouts = Mapping[str, Sequence[str | None]]


class _LayoutRules:
    """The layouts of variables by their names and shapes, as `layouts` of `sharded` says.

    The first pattern found in a name is used.
    """

    def __init__(self, mesh: dtensor.Mesh, layouts: Layouts):
        self.mesh, self.is_automatic = mesh, not layouts
        self._rules: list[tuple[re.Pattern, Sequence[str | None]]] = []
        self._used: set[str] = set()
        self._names: list[str] = []
        for pattern, dims in layouts.items():
            try:
                self._rules.append((re.compile(pattern), dims))
            except re.error as error:
                rule = f"must be a regular expression: {error}"
                raise UserError(f"`layouts`: {pattern!r} {rule}.") from error
            for dim in dims:
                if dim is not None and dim not in mesh.dim_names:
                    raise UserError(
                        f"`layouts`: {pattern!r} names {dim!r}; the dimensions of the mesh are "
                        f"{', '.join(mesh.dim_names)}."
                    )

    def replicate(self, value: tf.Tensor) -> tf.Tensor:
        """Return a sharded tensor as one that is whole on every device."""
        return dtensor.relayout(value, dtensor.Layout.replicated(self.mesh, value.shape.rank))

    def of(self, name: str, shape: Sequence[int], like: dtensor.Layout | None) -> dtensor.Layout:
        """Return a variable's layout; raise UserError if its pattern does not fit its shape.

        Without a pattern it is `like`, that of the initial value, or else whole on every device or,
        if there are no patterns at all, sharded.
        """
        self._names.append(name)
        for pattern, dims in self._rules:
            if pattern.search(name):
                self._used.add(pattern.pattern)
                return self._check_layout(pattern.pattern, dims, name, shape)
        if like is not None:
            return like
        dims = self._widest(shape) if self.is_automatic else [None] * len(shape)
        return self._layout(dims)

    def check_all_used(self) -> None:
        for pattern, _ in self._rules:
            if pattern.pattern not in self._used:
                names = first_of(list(dict.fromkeys(self._names)))
                raise UserError(
                    f"`layouts`: {pattern.pattern!r} is found in the name of no variable; names "
                    f"are {names or 'none'}."
                )

    def _check_layout(
        self, pattern: str, dims: Sequence[str | None], name: str, shape: Sequence[int]
    ) -> dtensor.Layout:
        if len(dims) != len(shape):
            raise UserError(
                f"`layouts`: {pattern!r} must have an entry for each of the {len(shape)} axes of "
                f"`{name}`, got {len(dims)}."
            )
        for axis, dim in enumerate(dims):
            if dim is not None and shape[axis] % self.mesh.dim_size(dim):
                raise UserError(
                    f"`layouts`: {pattern!r} cuts axis {axis} of `{name}`, of size {shape[axis]}, "
                    f"along {dim!r}, but its {self.mesh.dim_size(dim)} devices do not divide it."
                )
        return self._layout(dims)

    def _widest(self, shape: Sequence[int]) -> Sequence[str | None]:
        dims: list[str | None] = [None] * len(shape)
        for dim in sorted(self.mesh.dim_names, key=self.mesh.dim_size, reverse=True):
            size = self.mesh.dim_size(dim)
            free = [a for a, taken in enumerate(dims) if taken is None and not shape[a] % size]
            if size > 1 and free and math.prod(shape):
                dims[max(free, key=lambda axis: shape[axis])] = dim
        return dims

    def _layout(self, dims: Sequence[str | None]) -> dtensor.Layout:
        return dtensor.Layout([dim or dtensor.UNSHARDED for dim in dims], self.mesh)


class _ReadMode(enum.Enum):
    """The values that reading or setting a sharded variable currently refers to."""

    SHARDED = "its shards"
    STEP = "its shards; without layouts of the user, the whole value on every device"
    LOCAL = "the copy of the whole value on this device"
    GATHERED = "a copy of the whole value on the first device"


class _Store:
    """All sharded variables, and how they are read: LOCAL ones on the device `local_index`."""

    def __init__(self, rules: _LayoutRules, devices: list[str], local_index: Callable[[], int]):
        self.rules, self.devices, self.local_index = rules, devices, local_index
        self.mode = _ReadMode.SHARDED
        self._variables: list[_ShardedVariable] = []
        self._assigned: dict[int, tuple] | None = None  # while a step is traced

    @contextlib.contextmanager
    def tracing_step(self) -> Iterator[None]:
        """Make reads in a step that is traced inside the block return what the step has assigned.

        DTensor does not order assignments and reads: the read would return the previous value.
        """
        before, self._assigned = self._assigned, {}
        try:
            yield
        finally:
            self._assigned = before

    def remember(self, variable: "_ShardedVariable", value: tf.Tensor) -> None:
        """Store a value as the result of later reads of a variable in the step being traced."""
        if self.mode is _ReadMode.STEP and self._assigned is not None:
            self._assigned[id(variable)] = tf.compat.v1.get_default_graph(), value

    def assigned_value(self, variable: "_ShardedVariable") -> tf.Tensor | None:
        """Return the value that the step being traced has assigned, or None."""
        assigned = self._assigned or {}
        if self.mode is not _ReadMode.STEP or id(variable) not in assigned:
            return None
        graph, value = assigned[id(variable)]
        if graph is not tf.compat.v1.get_default_graph():
            raise UserError(
                f"`{variable.name}` is assigned and then read in another tf.cond, tf.while_loop or "
                "tf.function; under the strategy sharded both must be in the same one."
            )
        return value

    @contextlib.contextmanager
    def reading_as(self, mode: _ReadMode) -> Iterator[None]:
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before

    def create(self, next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        """Create a sharded variable; a creator for `tf.variable_creator_scope`."""
        value = options["initial_value"]
        value = tf.convert_to_tensor(value() if callable(value) else value, options.get("dtype"))
        scope, name = tf.get_current_name_scope(), options.get("name") or "Variable"
        like = dtensor.fetch_layout(value) if dtensor.is_dtensor(value) else None
        path = f"{scope}/{name}" if scope else name
        layout = self.rules.of(path, value.shape.as_list(), like)
        variable = _ShardedVariable(self, self.relayout(value, layout), options)
        self._variables.append(variable)
        return variable

    def relayout(self, value: tf.Tensor, layout: dtensor.Layout) -> tf.Tensor:
        if tf.executing_eagerly() and not dtensor.is_dtensor(value):
            whole = dtensor.Layout.replicated(self.rules.mesh, value.shape.rank)
            value = dtensor.copy_to_mesh(value, whole)
        return dtensor.relayout(value, layout)

    def gathered_value(self, value: tf.Tensor) -> tf.Tensor:
        return dtensor.unpack(self.rules.replicate(value))[0]

    @contextlib.contextmanager
    def gathered_variables(self) -> Iterator[None]:
        """Make every variable plain inside the block, and shard it again at the end."""
        if self.mode is _ReadMode.GATHERED:
            yield
            return
        for variable in self._variables:
            if 0 in variable.copies:
                variable.fill_copy()
        try:
            with self.reading_as(_ReadMode.GATHERED):
                yield
        finally:
            for variable in self._variables:
                if 0 in variable.copies:
                    variable.assign(variable.copies[0].read_value())


class _ShardedVariable(dtensor.DVariable):
    """A sharded variable, which is replaced by plain copies in some modes."""

    def __init__(self, store: _Store, value: tf.Tensor, options: dict[str, Any]):
        # The constructor of the base class reads the handle.
        self._store = store
        self.copies: dict[int, tf.Variable] = {}
        super().__init__(value, trainable=options.get("trainable"), name=options.get("name"))

    @property
    def _handle(self) -> tf.Tensor:
        """The resource that reads and assignments currently use: the shards' or a copy's."""
        mode = self._store.mode
        if mode is _ReadMode.GATHERED:
            if 0 not in self.copies:
                with tf.init_scope():
                    self.make_copies([0])
                    self.fill_copy()
            return self.copies[0].handle
        if mode is _ReadMode.LOCAL:
            return self.local_copy(self._store.local_index()).handle
        return self._shards

    @_handle.setter
    def _handle(self, resource: tf.Tensor) -> None:
        self._shards = resource

    def make_copies(self, devices: Iterable[int]) -> None:
        for device in devices:
            if device not in self.copies:
                with tf.init_scope(), tf.device(self._store.devices[device]):
                    zeros = tf.zeros(self.shape, self.dtype)
                    # Not `tf.Variable`, which `create` would shard.
                    self.copies[device] = resource_variable_ops.ResourceVariable(
                        zeros, trainable=self.trainable
                    )

    def local_copy(self, device: int) -> tf.Variable:
        """Return the copy on a device; raise ValueError if there is none."""
        if device not in self.copies:
            raise ValueError(f"`{self.name}` is read on each device but is not in `reads`.")
        return self.copies[device]

    def fill_copy(self) -> None:
        with self._store.reading_as(_ReadMode.SHARDED):
            self.copies[0].assign(self._store.gathered_value(self.read_value()))

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value, store = self._sharded_value(no_copy), self._store
        if store.mode is _ReadMode.STEP and store.rules.is_automatic and self.trainable:
            return store.rules.replicate(value)
        return value

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        if self._is_copy():
            return super().sparse_read(indices, name)
        return tf.gather(self.read_value(), indices, name=name)

    def numpy(self) -> np.ndarray:
        if self._is_copy():
            return super().numpy()
        return self._store.gathered_value(self.read_value()).numpy()

    def _sharded_value(self, no_copy: bool = False) -> tf.Tensor:
        assigned = self._store.assigned_value(self)
        if assigned is None:
            return super()._read_variable_op(no_copy)
        return recorded_read(self, assigned)

    def assign(self, value: Any, *options: Any, **named: Any) -> Any:
        """Set the variable to a tensor, plain or sharded in any layout."""
        value = self._relayout(value)
        if not self._is_assigned_in_step():
            return super().assign(value, *options, **named)
        super().assign(value, read_value=False)
        self._store.remember(self, value)
        return self

    def assign_add(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Add a tensor, plain or sharded in any layout."""
        delta = self._relayout(delta)
        if self._is_assigned_in_step():
            return self.assign(self._sharded_value() + delta)
        return super().assign_add(delta, *options, **named)

    def assign_sub(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Subtract a tensor, plain or sharded in any layout."""
        return self.assign_add(-tf.convert_to_tensor(delta, self.dtype), *options, **named)

    def _is_assigned_in_step(self) -> bool:
        return self._store.mode is _ReadMode.STEP and not tf.executing_eagerly()

    def _relayout(self, value: Any) -> tf.Tensor:
        if self._is_copy():
            return value
        return self._store.relayout(tf.convert_to_tensor(value, self.dtype), self.layout)

    def _is_copy(self) -> bool:
        return self._store.mode in (_ReadMode.LOCAL, _ReadMode.GATHERED)


class ShardedReplicator(base.Replicator):
    """The replicator of `sharded`.

    A step function is traced once for all devices: there is one replica, and the primitives return
    their argument. In the `gradients_fn` of `compile_training`, every device is a replica.
    """

    def __init__(self, mesh: Mapping[str, int], layouts: Layouts):
        super().__init__("sharded")
        for name, size in mesh.items():
            if not isinstance(size, int) or size < 1:
                raise UserError(f"`mesh` must have sizes of at least 1, got {name}={size!r}.")
        if BATCH not in mesh:
            named = ", ".join(mesh) or "none"
            raise UserError(f"`mesh` must have a dimension {BATCH!r}, got {named}.")
        names = local_devices(math.prod(mesh.values()))
        kind = tf.DeviceSpec.from_string(names[0]).device_type
        self._mesh = dtensor.create_mesh(list(mesh.items()), devices=names, device_type=kind)
        self._data_parallel = local(names, 1)
        self._rules = _LayoutRules(self._mesh, layouts)
        self.store = _Store(self._rules, names, lambda: self._current_replica("replica_id").index)

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

    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> base.Call:
        """Return a DTensor function that runs steps, each one global computation."""
        base.check_steps_per_call(steps_per_call)

        @functools.partial(tf.function, autograph=False)
        def step(batch: Any) -> Any:
            with self._step(0, CollectiveRecord()), self.store.tracing_step():
                return _replicate_values(self._rules, step_fn(batch))

        def call(iterator: Iterator[Any]) -> Any:
            self._rules.check_all_used()
            for _ in range(steps_per_call):
                batch = self._shard_for_mesh(_next(iterator))
                with self.store.reading_as(_ReadMode.STEP):
                    outputs = step(batch)
            return _unpack_values(outputs)

        return call

    def compile_training(
        self, gradients_fn: StepFn, update_fn: Callable, variables: Sequence, reads: Sequence = ()
    ) -> base.Call:
        """Return a step that gathers weights, computes gradients per device, and updates shards.

        `gradients_fn` may read `reads` and the `variables` that are trainable or scalar.
        `update_fn` consists of element-wise operations and sums, which DTensor runs on the shards.
        """
        local = [v for v in variables if v.trainable or v.shape.rank == 0]
        known = {v.ref(): v for v in (*local, *reads) if isinstance(v, _ShardedVariable)}
        read, weights = list(known.values()), [v for v in variables if v.trainable]
        for variable in read:
            variable.make_copies(range(self.num_devices))
        gather = tf.function(lambda: _replicate_values(self._rules, read), autograph=False)

        @functools.partial(tf.function, autograph=False)
        def compute(values: Any, batch: Any) -> Any:
            record = CollectiveRecord()

            def on_device(values: list[tf.Tensor], batch: Any) -> Any:
                index = int(tf.get_static_value(self._data_parallel._replica_id()) or 0)
                with self._step(index, record):
                    for variable, value in zip(read, values, strict=True):
                        variable.local_copy(index).assign(value)
                    results = gradients_fn(batch)
                    return tf.nest.map_structure(lambda x: self._summand(x, index), results)

            return self._data_parallel._strategy.run(on_device, args=(values, batch))

        @functools.partial(tf.function, autograph=False)
        def update(figures: Any, gradients: list[tf.Tensor]) -> Any:
            figures, gradients = tf.nest.map_structure(self._mean, (figures, gradients))
            if [w.shape for w in weights] == [g.shape for g in gradients]:
                pairs = zip(gradients, weights, strict=True)
                gradients = [dtensor.relayout(gradient, w.layout) for gradient, w in pairs]
            values, outputs = update_fn(figures, gradients)
            self.update(variables, values)
            return _replicate_values(self._rules, outputs)

        def call(iterator: Iterator[Any]) -> Any:
            self._rules.check_all_used()
            batch = self._shard_for_devices(_next(iterator))
            gathered = [dtensor.unpack(value) for value in gather()]
            values = self._per_replica([list(pieces) for pieces in zip(*gathered, strict=True)])
            self.num_replicas = self.num_devices
            try:
                with self.store.reading_as(_ReadMode.LOCAL):
                    results = compute(values, batch)
            finally:
                self.num_replicas = 1
            figures, gradients = tf.nest.map_structure(self._pack_pieces, results)
            return _unpack_values(update(figures, gradients))

        return call

    def _summand(self, value: Any, index: int) -> tf.Tensor:
        """Return one device's term of the mean, with an axis of size 1 per mesh dimension."""
        value = tf.convert_to_tensor(value)
        if not value.dtype.is_floating:  # not averaged; taken from the first device
            value = value if index == 0 else tf.zeros_like(value)
            value = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        return tf.reshape(value, [1] * len(self._mesh.dim_names) + value.shape)

    def _pack_pieces(self, pieces: Any) -> tf.Tensor:
        names = self._mesh.dim_names
        pieces = list(self._data_parallel._strategy.experimental_local_results(pieces))
        unsharded = [dtensor.UNSHARDED] * (pieces[0].shape.rank - len(names))
        return dtensor.pack(pieces, dtensor.Layout([*names, *unsharded], self._mesh))

    def _mean(self, pieces: tf.Tensor) -> tf.Tensor:
        axes = list(range(len(self._mesh.dim_names)))
        return (tf.reduce_mean if pieces.dtype.is_floating else tf.reduce_sum)(pieces, axes)

    def wrap_optimizer(self, optimizer: Any) -> base.WrappedOptimizer:
        """See `Replicator.wrap_optimizer`."""
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

    def _shard_for_mesh(self, batch: Any) -> Any:
        count = self._mesh.dim_size(BATCH)
        locations = [location[BATCH] for location in self._mesh.local_device_locations()]

        def shard(tensor: tf.Tensor) -> tf.Tensor:
            layout = dtensor.Layout(
                [BATCH] + [dtensor.UNSHARDED] * (tensor.shape.rank - 1), self._mesh
            )
            pieces = _rows(tensor, count)
            return dtensor.pack([pieces[location] for location in locations], layout)

        return tf.nest.map_structure(shard, batch)

    def _shard_for_devices(self, batch: Any) -> Any:
        pieces = [_rows(tensor, self.num_devices) for tensor in tf.nest.flatten(batch)]
        return self._per_replica(
            [tf.nest.pack_sequence_as(batch, [p[k] for p in pieces]) for k in range(len(pieces[0]))]
        )

    def _per_replica(self, values: list[Any]) -> Any:
        strategy = self._data_parallel._strategy
        return strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        )


def _unpack_values(values: Any) -> Any:
    return tf.nest.map_structure(lambda v: None if v is None else dtensor.unpack(v)[0], values)


def _replicate_values(rules: _LayoutRules, values: Any) -> Any:
    def replicate(value: Any) -> tf.Tensor | None:
        return None if value is None else rules.replicate(tf.convert_to_tensor(value))

    return tf.nest.map_structure(replicate, values)


def _next(iterator: Iterator[Any]) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None


def _rows(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    if tensor.shape.rank == 0:
        raise UserError("A batch must have rows; a tensor of it is a scalar.")
    if tensor.shape[0] % count:
        raise UserError(f"{base.ROWS_MUST} {count} shards, got {tensor.shape[0]}.")
    return tf.split(tensor, count)
