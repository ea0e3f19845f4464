"""Synchronous replicas with tf.distribute: one device, many devices, workers or a TPU."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.rules import UserError, first_line
from onepass.replicator import collectives
from onepass.replicator.collectives import CollectiveRecord
from onepass.replicator.launch.tf_config import Task, read_tf_config
from onepass.replicator.strategies import base, coordination
from onepass.replicator.strategies.base import StepFn

Devices = list[list[str]]
Combine = Callable[[Any], Any]


class SynchronousReplicator(base.Replicator):
    """A tf.distribute strategy whose replicas run every step and every collective together."""

    def __init__(
        self,
        name: str,
        strategy: tf.distribute.Strategy,
        devices: Devices | None = None,
        **attributes: Any,
    ):
        """Store the strategy and each local replica's logical devices; None: one device each."""
        super().__init__(
            name,
            num_replicas=strategy.num_replicas_in_sync,
            num_logical_devices=len(devices[0]) if devices else 1,
            **attributes,
        )
        self._strategy, self._devices = strategy, devices
        # Otherwise some replicas would get an empty batch, with mean NaN, at the end of the data.
        strategy.extended.experimental_enable_get_next_as_optional = False

    def scope(self) -> contextlib.AbstractContextManager:
        """See `Replicator.scope`."""
        return self._strategy.scope()

    def dataset(self, input_fn: base.InputFn) -> Iterable[Any]:
        """See `Replicator.dataset`; each worker has one input pipeline."""
        return self._strategy.distribute_datasets_from_function(input_fn)

    def batches(self, dataset: tf.data.Dataset | base.ShardFn) -> Iterable[Any]:
        """See `Replicator.batches`; every worker computes all rows of a plain dataset."""
        made = base.whole(dataset)
        base.check_divisible(made.element_spec, self.num_replicas)
        if self.num_replicas == 1:
            return self.dataset(lambda context: made)
        local = among = self.num_replicas // self.num_workers
        first = 0
        if callable(dataset):
            made = dataset(self.worker_index, self.num_workers)
        else:
            first, among = self.worker_index * local, self.num_replicas

        def rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return base.replica_batches(made, first, local, among).prefetch(2 * local)

        return self.dataset(rows)

    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> base.Call:
        """See `Replicator.compile`; the steps are one tf.function."""
        return self._compile(step_fn, steps_per_call, self._combined_outputs)

    def compile_training(
        self, gradients_fn: StepFn, update_fn: Callable, variables: Sequence, reads: Sequence = ()
    ) -> base.Call:
        """Return a compiled update in which no collective runs after the variables are set."""
        step = self._training_step(gradients_fn, update_fn, variables)
        return self._compile(step, 1, lambda outputs: outputs)

    def _compile(self, step_fn: StepFn, steps_per_call: int, combine: Combine) -> base.Call:
        """Return one or more steps as one function of what `combine` makes of the last outputs."""
        base.check_steps_per_call(steps_per_call)
        records: list[CollectiveRecord] = []
        is_compared = False

        def one_step(iterator: Iterator[Any], combine: Combine) -> Any:
            records.append(CollectiveRecord())
            return self._one_step(step_fn, iterator, records[-1], combine)

        @functools.partial(tf.function, autograph=False)
        def steps(iterator: Iterator[Any]) -> Any:
            if steps_per_call > 1:

                def advance(step: tf.Tensor) -> list[tf.Tensor]:
                    one_step(iterator, lambda outputs: None)
                    return [step + 1]

                last = steps_per_call - 1
                tf.while_loop(lambda step: step < last, advance, [0], parallel_iterations=1)
            return one_step(iterator, combine)

        def call(iterator: Iterator[Any]) -> Any:
            nonlocal is_compared
            if not is_compared:
                records.clear()
                try:
                    steps.get_concrete_function(iterator)
                except Exception as error:
                    if explained := base.variables_in_step_error(error):
                        raise explained from None
                    raise
                self._compare_calls([each for record in records for each in record.calls()])
                is_compared = True
            try:
                with coordination.explaining_peer_errors(self):
                    return steps(iterator)
            # An input error in one replica ends the input of the others: either may be raised.
            except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
                uneven = base.uneven_rows_error(error, self.num_replicas)
                raise (uneven or collectives.shape_mismatch_error(error) or error) from None

        return call

    def _one_step(
        self, step_fn: StepFn, iterator: Iterator[Any], record: CollectiveRecord, combine: Combine
    ) -> Any:
        # Other arguments are closed over, because a TPU converts all arguments to tensors.
        def replica_step(batch: Any) -> Any:
            with self._step(int(tf.get_static_value(self._replica_id()) or 0), record):
                return combine(step_fn(batch))

        outputs = self._strategy.run(replica_step, args=(next(iterator),))
        local = self._strategy.experimental_local_results
        return tf.nest.map_structure(lambda v: None if v is None else local(v)[0], outputs)

    def _combined_outputs(self, outputs: Any) -> Any:
        leaves = [x if x is None else tf.convert_to_tensor(x) for x in tf.nest.flatten(outputs)]
        floating = [t for t in leaves if t is not None and t.dtype.is_floating]
        others = [t for t in leaves if t is not None and not t.dtype.is_floating]
        means = iter(collectives.mean(self, floating) if floating else [])
        firsts = iter(collectives.broadcast_from(0)(self, others) if others else [])
        sources = [t if t is None else means if t.dtype.is_floating else firsts for t in leaves]
        combined = [None if source is None else next(source) for source in sources]
        return tf.nest.pack_sequence_as(outputs, combined)

    def _replica_id(self) -> int | tf.Tensor:
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def _sum(self, tensors: list) -> list:
        context = tf.distribute.get_replica_context()
        # Copies, because multi-worker collectives reject the output of a variable read.
        copies = [tf.identity(tensor) for tensor in tensors]
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, copies))

    def _compare_calls(self, calls: list[str]) -> None:
        """Raise CollectiveOrderError unless all workers traced the same calls."""

    def _device_scope(self, index: int) -> contextlib.AbstractContextManager:
        if not self._devices:
            return contextlib.nullcontext()
        context = tf.distribute.get_replica_context()
        if context is not None and context.strategy is self._strategy:
            local = int(tf.get_static_value(context.replica_id_in_sync_group))
            return tf.device(self._devices[local][index])
        return self._variables_on([replica[index] for replica in self._devices])

    @contextlib.contextmanager
    def _variables_on(self, devices: list[str]) -> Iterator[None]:
        if tf.distribute.get_strategy() is not self._strategy:
            raise RuntimeError("`logical_device` may only be used in a step or in `scope()`.")
        # A mirrored variable uses only `_devices` of the object that it is colocated with.
        devices_like = types.SimpleNamespace(_devices=tuple(devices))

        def creator(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            return next_creator(**options | {"colocate_with": devices_like})

        with tf.variable_creator_scope(creator), tf.device(devices[0]):
            yield


def single(
    device: str | None = None, logical_devices: list[str] | None = None
) -> SynchronousReplicator:
    """Return a replicator with one replica.

    Args:
      device: name of the replica's device; None: the first GPU, else the CPU.
      logical_devices: several devices for the replica (`logical_device`) instead of one.
    """
    if device and logical_devices:
        raise ValueError("`device` must be None if `logical_devices` are given.")
    if logical_devices:
        strategy = _mirror_devices(logical_devices[:1])
        return SynchronousReplicator("single", strategy, [list(logical_devices)])
    if device is None:
        return SynchronousReplicator("single", tf.distribute.get_strategy())
    return SynchronousReplicator("single", tf.distribute.OneDeviceStrategy(device))


def local(
    devices: list[str] | int | None = None, devices_per_replica: int = 1
) -> SynchronousReplicator:
    """Return a replicator of synchronous replicas on this machine's devices.

    Args:
      devices: names of the devices, or their number (without GPUs, that many logical CPUs are
        created if TensorFlow has not started yet); None: every GPU, else every logical CPU.
      devices_per_replica: number of consecutive devices in a replica (`logical_device`).
    """
    names = devices if isinstance(devices, list) else local_devices(devices)
    size, rule = devices_per_replica, f"divide the number of devices ({len(names)})"
    if size < 1 or not names or len(names) % size:
        raise UserError(f"`devices_per_replica` must {rule}, got {size}.")
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    strategy = _mirror_devices([group[0] for group in groups])
    return SynchronousReplicator("local", strategy, groups if size > 1 else None)


def local_devices(count: int | None) -> list[str]:
    """Return the names of `count` devices (None: all) of this machine: GPUs, else logical CPUs."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "CPU" and count and count > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        if len(tf.config.get_logical_device_configuration(cpu) or []) < count:
            with contextlib.suppress(RuntimeError):
                logical = [tf.config.LogicalDeviceConfiguration()] * count
                tf.config.set_logical_device_configuration(cpu, logical)
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if count is None:
        return names
    if not 1 <= count <= len(names):
        hint = "; logical CPUs can only be created before TensorFlow starts" * (kind == "CPU")
        raise UserError(f"`devices` must be 1 to {len(names)} ({kind}), got {count}{hint}.")
    return names[:count]


def _mirror_devices(devices: list[str]) -> tf.distribute.Strategy:
    on_gpu = all("GPU" in device.upper() for device in devices)
    # With its default reduction on CPUs, TensorFlow fails in a process that has mirrored
    # strategies of several sizes.
    operations = None if on_gpu else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)


class MultiWorkerReplicator(SynchronousReplicator):
    """Synchronous replicas on the devices of all workers in TF_CONFIG."""

    def __init__(self, strategy: tf.distribute.Strategy, task: Task):
        super().__init__(
            "multi_worker", strategy, num_workers=task.num_workers, worker_index=task.worker_index
        )
        # Traced before any step, because TensorFlow numbers collectives in the order of tracing,
        # and steps that differ between workers would change the numbers of these two functions.
        spec = tf.TensorSpec([None], tf.int32)
        self._gather_sums, self._gather_texts = (
            tf.function(self._rows, autograph=False).get_concrete_function(spec) for _ in range(2)
        )

    def _rows(self, numbers: tf.Tensor) -> tf.Tensor:
        def replica(numbers: tf.Tensor) -> tf.Tensor:
            own_row = tf.range(self.num_replicas) == self._replica_id()
            rows = tf.where(own_row[:, tf.newaxis], tf.cast(numbers, tf.int64)[tf.newaxis], 0)
            return self._sum([rows])[0]

        gathered = self._strategy.run(replica, args=(numbers,))
        rows = self._strategy.experimental_local_results(gathered)[0]
        return tf.cast(rows[:: self.num_replicas // self.num_workers], tf.int32)

    def _compare_calls(self, calls: list[str]) -> None:
        sums = self._gather_sums(collectives.digest(calls))
        if tf.reduce_all(sums == sums[:1]):
            return
        text = "\n".join(calls).encode()
        sizes = self._gather_sums(tf.fill([8], len(text)))[:, 0]
        longest = int(tf.reduce_max(sizes))
        padded = tf.constant(list(text.ljust(longest)), tf.int32)
        rows = self._gather_texts(padded).numpy()
        collectives.compare_workers([bytes(row.tolist()).decode().rstrip() for row in rows])


def multi_worker(
    timeout_seconds: float = 60.0, join_seconds: float = 600.0
) -> MultiWorkerReplicator:
    """Return a replicator of synchronous replicas on all devices of all workers in TF_CONFIG.

    Call this before TensorFlow does anything else. A collective that waits for workers fails after
    `timeout_seconds`; the workers have `join_seconds` to start.
    """
    task = read_tf_config()
    if task is None:
        raise UserError("The strategy multi_worker requires TF_CONFIG; `onepass launch` sets it.")
    if task.cluster.get("ps"):
        raise UserError(
            "TF_CONFIG has parameter servers: use the strategy parameter_server, not multi_worker."
        )
    coordination.wait_for_all(task, join_seconds)
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_seconds)
    try:
        with coordination.interruptible_startup():
            strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        text = "`multi_worker` must be called before TensorFlow does anything else."
        raise UserError(text) from None
    except tf.errors.OpError as error:
        failed = f"{task.kind} {task.index} could not join the cluster of TF_CONFIG"
        raise UserError(f"{failed}: {first_line(error.message)}.") from None
    return MultiWorkerReplicator(strategy, task)
