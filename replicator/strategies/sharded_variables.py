"""Variables that are stored in shards on a mesh, and read where and as a computation needs them."""

import contextlib
import enum
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.experimental import dtensor

from replicator.strategies.layouts import LayoutRules


class Reading(enum.Enum):
    """What it means, at the moment, to read or set a sharded variable."""

    STORED = "its shards, as they lie"
    STEP = "its shards, or, without layouts of the user's, all of it on every device"
    LOCAL = "this device's copy of all of it"
    WHOLE = "a copy of all of it on the first device"


class Shelf:
    """All sharded variables of a replicator, and how they are read at the moment.

    Args:
      rules: their layouts.
      devices: of the mesh, in its order.
      local_index: gives the place in `devices` of the one that a LOCAL computation is traced for.
    """

    def __init__(self, rules: LayoutRules, devices: list[str], local_index: Callable[[], int]):
        self.rules, self.devices, self.local_index = rules, devices, local_index
        self.reading = Reading.STORED
        self._variables: list[ShardedVariable] = []
        self._makes_copies = False

    @contextlib.contextmanager
    def read_as(self, reading: Reading) -> Iterator[None]:
        """A context in which sharded variables are read so."""
        before, self.reading = self.reading, reading
        try:
            yield
        finally:
            self.reading = before

    def create(self, next_creator, **options):
        """A variable creator; for tf.variable_creator_scope."""
        if self._makes_copies:
            return next_creator(**options)
        value = options["initial_value"]
        value = tf.convert_to_tensor(value() if callable(value) else value, options.get("dtype"))
        scope, name = tf.get_current_name_scope(), options.get("name") or "Variable"
        like = dtensor.fetch_layout(value) if dtensor.is_dtensor(value) else None
        path = f"{scope}/{name}" if scope else name
        layout = self.rules.of(path, value.shape.as_list(), like)
        variable = ShardedVariable(self, self.laid_out(value, layout), options)
        self._variables.append(variable)
        return variable

    def laid_out(self, value, layout: dtensor.Layout):
        """A tensor, whole or in shards, in shards of a layout."""
        if tf.executing_eagerly() and not dtensor.is_dtensor(value):
            value = dtensor.copy_to_mesh(value, self.rules.replicated(value.shape.rank))
        return dtensor.relayout(value, layout)

    def whole_value(self, value) -> tf.Tensor:
        """All of a tensor in shards, as a plain tensor."""
        replicated = dtensor.relayout(value, self.rules.replicated(value.shape.rank))
        return dtensor.unpack(replicated)[0]

    def copy(self, variable: "ShardedVariable", device: int) -> tf.Variable:
        """A new plain variable of the same shape, on a device, with nothing of worth in it."""
        self._makes_copies = True
        try:
            with tf.init_scope(), tf.device(self.devices[device]):
                zeros = tf.zeros(variable.shape, variable.dtype)
                return tf.Variable(zeros, trainable=variable.trainable)
        finally:
            self._makes_copies = False

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """A context in which every variable is a plain one; afterwards it is cut up again."""
        if self.reading is Reading.WHOLE:
            yield
            return
        for variable in self._variables:
            variable.fill_copy()
        try:
            with self.read_as(Reading.WHOLE):
                yield
        finally:
            for variable in self._variables:
                variable.take_copy()


class ShardedVariable(dtensor.DVariable):
    """A variable in shards; within `Shelf.read_as` its copies stand in for it."""

    def __init__(self, shelf: Shelf, value, options: dict):
        # The constructor of the base class reads the handle.
        self._shelf = shelf
        self._copies: dict[int, tf.Variable] = {}
        super().__init__(value, trainable=options.get("trainable"), name=options.get("name"))

    @property
    def handle(self):
        """The resource of the shards, or of a copy; everything that reads or sets goes by it."""
        reading = self._shelf.reading
        if reading is Reading.WHOLE:
            if 0 not in self._copies:
                with tf.init_scope():
                    self.make_copies([0])
                    self._fill()
            return self._copies[0].handle
        if reading is Reading.LOCAL:
            return self.local_copy(self._shelf.local_index()).handle
        return self._handle

    def make_copies(self, devices) -> None:
        """Makes the copies on devices of these places, where there are none."""
        for device in devices:
            if device not in self._copies:
                self._copies[device] = self._shelf.copy(self, device)

    def local_copy(self, device: int) -> tf.Variable:
        """The copy on a device; ValueError where there is none."""
        if device not in self._copies:
            raise ValueError(f"`{self.name}` is read on each device and not among `reads`.")
        return self._copies[device]

    def fill_copy(self) -> None:
        """Sets the copy on the first device, if there is one, from the shards."""
        if 0 in self._copies:
            self._fill()

    def take_copy(self) -> None:
        """Sets the shards from the copy on the first device, if there is one."""
        if 0 in self._copies:
            self.assign(self._copies[0].read_value())

    def _fill(self) -> None:
        with self._shelf.read_as(Reading.STORED):
            self._copies[0].assign(self._shelf.whole_value(self.read_value()))

    def _read_variable_op(self, no_copy=False):
        value = super()._read_variable_op(no_copy)
        shelf = self._shelf
        if shelf.reading is Reading.STEP and shelf.rules.is_automatic and self.trainable:
            value = dtensor.relayout(value, shelf.rules.replicated(value.shape.rank))
        return value

    def sparse_read(self, indices, name=None):
        """Rows of the value; in a step they are taken from the value that `read_value` gives."""
        if self._is_copied():
            return super().sparse_read(indices, name)
        return tf.gather(self.read_value(), indices, name=name)

    def numpy(self):
        """All of the value."""
        if self._is_copied():
            return super().numpy()
        return self._shelf.whole_value(self.read_value()).numpy()

    def assign(self, value, use_locking=None, name=None, read_value=True):
        """Sets the variable to a tensor, whole or in shards of any layout."""
        return super().assign(self._fitting(value), use_locking, name, read_value)

    def assign_add(self, delta, use_locking=None, name=None, read_value=True):
        """Adds a tensor, whole or in shards of any layout."""
        return super().assign_add(self._fitting(delta), use_locking, name, read_value)

    def assign_sub(self, delta, use_locking=None, name=None, read_value=True):
        """Subtracts a tensor, whole or in shards of any layout."""
        return super().assign_sub(self._fitting(delta), use_locking, name, read_value)

    def _fitting(self, value):
        if self._is_copied():
            return value
        return self._shelf.laid_out(tf.convert_to_tensor(value, self.dtype), self.layout)

    def _is_copied(self) -> bool:
        return self._shelf.reading in (Reading.LOCAL, Reading.WHOLE)
