"""Replicas that step together, over tf.distribute, on one or many devices, workers or a TPU."""

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from replicator.collectives import primitives
from replicator.collectives.collective_order import OrderRecord, met_in_other_shapes
from replicator.runs.errors import UserError
from replicator.strategies.base import Call, InputFn, Replicator, StepFn
from replicator.strategies.peer_errors import peers_needed
from replicator.strategies.replica_rows import check_divisible, shares_of, uneven

Devices = list[list[str]]


class SynchronousReplicator(Replicator):
    """A tf.distribute strategy whose replicas meet in every collective."""

    def __init__(self, name: str, strategy, devices: Devices | None = None, **facts):
        """Takes the logical devices of each replica of this process, None: one each."""
        super().__init__(
            name,
            num_replicas=strategy.num_replicas_in_sync,
            num_logical_devices=len(devices[0]) if devices else 1,
            **facts,
        )
        self._strategy, self._devices = strategy, devices
        # At the end of data some replicas would get an empty batch, whose mean is not a number.
        strategy.extended.experimental_enable_get_next_as_optional = False

    def scope(self) -> contextlib.AbstractContextManager:
        """The strategy's scope."""
        return self._strategy.scope()

    def dataset(self, input_fn: InputFn):
        """The strategy's dataset; one input pipeline a worker."""
        return self._strategy.distribute_datasets_from_function(input_fn)

    def batches(self, dataset: tf.data.Dataset):
        """The replicas' shares of the rows; every worker reads all batches."""
        check_divisible(dataset.element_spec, self.num_replicas)
        if self.num_replicas == 1:
            return self.dataset(lambda context: dataset)
        local = self.num_replicas // self.num_workers
        first = self.worker_index * local

        def shares(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return shares_of(dataset, first, local, self.num_replicas).prefetch(2 * local)

        return self.dataset(shares)

    def compile(self, step_fn: StepFn, steps_per_call: int = 1) -> Call:
        """A tf.function of `steps_per_call` steps; see Replicator."""
        return _Call(self, step_fn, steps_per_call)

    def compile_training(
        self, local: StepFn, moved: Callable, variables: Sequence, reads: Sequence = ()
    ) -> Call:
        """See Replicator. Nothing is exchanged once variables are being set."""
        return _Call(self, self._training_step(local, moved, variables), 1, alike=True)

    def _replica_id(self):
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def _sum(self, tensors: list) -> list:
        context = tf.distribute.get_replica_context()
        # Copies, because a worker's collective refuses the very read of a variable.
        copies = [tf.identity(tensor) for tensor in tensors]
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, copies))

    def _agree(self, calls: list[str]) -> None:
        """Raises OrderError unless all workers traced the same calls."""

    def _placed(self, index: int) -> contextlib.AbstractContextManager:
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
        # A mirrored variable asks the object it is colocated with for nothing but its devices.
        place = types.SimpleNamespace(_devices=tuple(devices))

        def creator(next_creator, **options):
            return next_creator(**options | {"colocate_with": place})

        with tf.variable_creator_scope(creator), tf.device(devices[0]):
            yield


class _Call:
    """Several steps of a step function as one tf.function.

    alike: whether the outputs of all replicas are equal, so that they need not meet again.
    """

    def __init__(
        self,
        replicator: SynchronousReplicator,
        step_fn: StepFn,
        steps_per_call: int,
        alike: bool = False,
    ):
        if steps_per_call < 1:
            raise ValueError(f"`steps_per_call` must be at least 1, got {steps_per_call}.")
        self._replicator, self._step_fn = replicator, step_fn
        self._steps_per_call, self._alike = steps_per_call, alike
        self._records: list[OrderRecord] = []
        self._function = tf.function(self._steps, autograph=False)
        self._is_agreed = False

    def __call__(self, iterator):
        """The outputs of the last of the steps; PeerGoneError where another process is gone."""
        if not self._is_agreed:
            self._records.clear()
            self._function.get_concrete_function(iterator)
            self._replicator._agree([call for r in self._records for call in r.calls()])
            self._is_agreed = True
        try:
            with peers_needed(self._replicator):
                return self._function(iterator)
        # Where input ends at the same time, that is the first of several causes.
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise (
                uneven(error, self._replicator.num_replicas) or met_in_other_shapes(error) or error
            ) from None

    def _steps(self, iterator):
        if self._steps_per_call > 1:
            tf.while_loop(
                lambda step: step < self._steps_per_call - 1,
                lambda step: self._step_before_last(step, iterator),
                [0],
                parallel_iterations=1,
            )
        return self._one(iterator, keep=True)

    def _step_before_last(self, step, iterator):
        self._one(iterator, keep=False)
        return [step + 1]

    def _one(self, iterator, keep: bool):
        batch, record = next(iterator), OrderRecord()
        self._records.append(record)
        outputs = self._replicator._strategy.run(self._replica_step, args=(batch, record, keep))
        return tf.nest.map_structure(self._first, outputs)

    def _first(self, value):
        return (
            None
            if value is None
            else self._replicator._strategy.experimental_local_results(value)[0]
        )

    def _replica_step(self, batch, record: OrderRecord, keep: bool):
        context = tf.distribute.get_replica_context()
        index = int(tf.get_static_value(context.replica_id_in_sync_group) or 0)
        with self._replicator._step(index, record):
            outputs = self._step_fn(batch)
            if not keep:
                return None
            return outputs if self._alike else self._kept(outputs)

    def _kept(self, outputs):
        leaves = tf.nest.flatten(outputs)
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        floating = [t for t in tensors if t.dtype.is_floating]
        others = [t for t in tensors if not t.dtype.is_floating]
        means = iter(primitives.mean(self._replicator, floating) if floating else [])
        firsts = iter(primitives.broadcast_from(0)(self._replicator, others) if others else [])
        kept = iter([next(means if t.dtype.is_floating else firsts) for t in tensors])
        return tf.nest.pack_sequence_as(
            outputs, [None if leaf is None else next(kept) for leaf in leaves]
        )


def single(
    device: str | None = None, logical_devices: list[str] | None = None
) -> SynchronousReplicator:
    """A replicator of one replica.

    Args:
      device: its device; None: the first GPU, else the CPU.
      logical_devices: the devices that it is spread over (`logical_device`), instead of one.
    """
    if device and logical_devices:
        raise ValueError("`device` must be None where `logical_devices` are given.")
    if logical_devices:
        return SynchronousReplicator(
            "single", _mirrored(logical_devices[:1]), [list(logical_devices)]
        )
    if device is None:
        return SynchronousReplicator("single", tf.distribute.get_strategy())
    return SynchronousReplicator("single", tf.distribute.OneDeviceStrategy(device))


def local(
    devices: list[str] | int | None = None, devices_per_replica: int = 1
) -> SynchronousReplicator:
    """A replicator of synchronous replicas on the devices of this machine.

    Args:
      devices: their names, or how many (without GPUs so many logical CPUs are made, if TensorFlow
        has not started yet); None: every GPU, else every logical CPU.
      devices_per_replica: consecutive devices that make one replica (`logical_device`).

    Raises:
      UserError: this machine has no such devices.
    """
    names = devices if isinstance(devices, list) else local_devices(devices)
    if devices_per_replica < 1 or not names or len(names) % devices_per_replica:
        raise UserError(
            f"`devices_per_replica` must divide the number of devices ({len(names)}), got "
            f"{devices_per_replica}."
        )
    groups = [
        names[start : start + devices_per_replica]
        for start in range(0, len(names), devices_per_replica)
    ]
    strategy = _mirrored([group[0] for group in groups])
    return SynchronousReplicator("local", strategy, groups if devices_per_replica > 1 else None)


def local_devices(count: int | None) -> list[str]:
    """The names of `count` devices of this machine, None: of all: its GPUs, else logical CPUs.

    Raises:
      UserError: there are fewer.
    """
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "CPU" and count and count > 1:
        _make_logical_cpus(count)
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if count is None:
        return names
    if not 1 <= count <= len(names):
        hint = "" if kind == "GPU" else "; logical CPUs are made before TensorFlow does anything"
        raise UserError(f"{count} devices were asked for, there are {len(names)} ({kind}){hint}.")
    return names[:count]


def _make_logical_cpus(count: int) -> None:
    """Makes them, unless there are enough or TensorFlow has started."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or []) >= count:
        return
    with contextlib.suppress(RuntimeError):
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )


def _mirrored(devices: list[str]):
    on_gpu = all("GPU" in device.upper() for device in devices)
    # The collectives of CPUs break when a process has mirrored strategies of several sizes.
    operations = None if on_gpu else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)
