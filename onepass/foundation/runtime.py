"""The process that computes: its processor, cores and threads, and how TensorFlow computes in it.

TensorFlow is imported when it is needed.
"""

import contextlib
import contextvars
import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from onepass.foundation.rules import UserError, require

if TYPE_CHECKING:
    import tensorflow as tf

Result = TypeVar("Result")

_HAS_AFFINITY = hasattr(os, "sched_setaffinity")


@functools.cache
def _core_of_thread() -> Callable[[], int]:
    return ctypes.CDLL(None).sched_getcpu


def cores(threads: int | None = None) -> int:
    """Return the number of cores to use, by default all that this process may run on."""
    if threads is not None:
        require(threads >= 1, "threads", "at least 1", threads)
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Apart:
    """A group of threads that work at the same time, each started on a different core.

    A woken thread often starts on the core of the thread that woke it, and the system moves it to a
    free core only after milliseconds, longer than a short task takes. Threads are moved once, when
    they start, but not bound to a core.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Return `function(*arguments)`, computed here, on a core where no other thread began."""
        if _HAS_AFFINITY:
            core = _core_of_thread()()
            if core in self._taken:
                allowed = os.sched_getaffinity(0)
                if free := allowed - self._taken:
                    with contextlib.suppress(OSError):  # forbidden in some containers
                        os.sched_setaffinity(0, free)
                        os.sched_setaffinity(0, allowed)
                    core = _core_of_thread()()
            self._taken.add(core)
        return function(*arguments)


Item = TypeVar("Item")


def in_threads(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    what: str,
    unit: str,
    workers: int | None = None,
) -> list[Result]:
    """Return [function(item) for item in items], computed in threads, and show progress.

    The error of the first item that fails is raised; items that no thread has started by then are
    skipped.
    """
    from onepass.foundation.progress import Progress  # which bundles do without

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        results = []
        with Progress(len(items), what, unit) as progress:
            for result in pool.map(function, items):
                results.append(result)
                progress.advance()
        return results
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def processor() -> str:
    """Return the name of the processor."""
    return _first_entry("model name") or platform.processor() or platform.machine()


def machine_name() -> str:
    """Return a description of this machine, such as `2 cores of AMD EPYC`."""
    return f"{os.cpu_count()} cores of {processor()}"


CPU_INFO = Path("/proc/cpuinfo")
INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})


def compute_dtype(name: str) -> "tf.DType":
    """Return the dtype of a network's arithmetic; warn on stderr where bfloat16 is slow."""
    import tensorflow as tf

    if name == "bfloat16":
        _warn_where_slow()
    return tf.as_dtype(name)


@functools.cache
def _warn_where_slow() -> None:
    import tensorflow as tf

    accelerated = any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU"))
    if accelerated or has_instructions() is not False:
        return
    print(
        "warning: this processor has no instructions for bfloat16, which takes several times as "
        "long as float32 here; set `compute_dtype` to float32 to compute faster.",
        file=sys.stderr,
        flush=True,
    )


def has_instructions() -> bool | None:
    """Return whether the processor has bfloat16 instructions; None if that is unknown."""
    flags = _first_entry("flags", "features")
    return None if flags is None else not INSTRUCTIONS.isdisjoint(flags.split())


def _first_entry(*names: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in CPU_INFO.read_text().splitlines():
            name, _, entry = line.partition(":")
            if name.strip().lower() in names:
                return entry.strip()
    return None


@contextlib.contextmanager
def name_for_tensorflow(folder: Path) -> Iterator[str]:
    """Yield a name by which TensorFlow finds an existing folder, valid inside the block."""
    path = os.fspath(folder)
    # TensorFlow encodes a path in UTF-8, Python in the locale's encoding, or as its bytes were.
    if os.fsencode(path) == path.encode("utf-8", "replace"):
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


Made = TypeVar("Made")


class Compiled:
    """A model's samplers and compiled functions, created once per name and kept with the model."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def once(self, name: Any, make: Callable[[], Made]) -> Made:
        """Return the object cached under a name; create it if there is none."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def function(
        self, name: Any, function: Callable[..., Any], jit_compile: bool = False, **options: Any
    ) -> Callable[..., Any]:
        """Return a `tf.function`, created once per name; a second function of a name is ignored."""
        import tensorflow as tf

        options = {"autograph": False, "jit_compile": jit_compile, **options}
        return self.once(name, lambda: tf.function(function, **options))


_is_rematerialising = contextvars.ContextVar("rematerialised", default=False)


@contextlib.contextmanager
def rematerialising(wanted: bool) -> Iterator[None]:
    """Switch `call_rematerialised` on or off inside the block.

    Only a layer's inputs are then stored for the gradient; the backward pass computes the layer
    again (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174).
    """
    token = _is_rematerialising.set(wanted)
    try:
        yield
    finally:
        _is_rematerialising.reset(token)


def call_rematerialised(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Call a pure layer, storing only its inputs in `rematerialising(True)`."""
    if not _is_rematerialising.get():
        return layer(*inputs)
    import tensorflow as tf

    leaves = tf.nest.flatten(inputs)
    outputs: list[Any] = []

    def flat(*tensors: "tf.Tensor") -> "list[tf.Tensor]":
        given = iter(tensors)
        known = [None if leaf is None else next(given) for leaf in leaves]
        outputs[:] = [layer(*tf.nest.pack_sequence_as(inputs, known))]
        return tf.nest.flatten(outputs[0])

    found = tf.recompute_grad(flat)(*[leaf for leaf in leaves if leaf is not None])
    return tf.nest.pack_sequence_as(outputs[0], found)


_is_forked = False


def check_process() -> None:
    """Raise UserError in a process forked after TensorFlow was used, whose calls never return."""
    if _is_forked:
        raise UserError(
            "TensorFlow cannot run in a process that was forked after it had been used: start the"
            " process by multiprocessing.get_context('spawn'), or load the model only in the child"
            " (gunicorn without --preload)."
        )


def check_eager(inside_function: bool = False) -> None:
    """Raise UserError unless TensorFlow computes here, eagerly or `inside_function`."""
    check_process()
    import tensorflow as tf

    if tf.executing_eagerly():
        return
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise UserError(
            "Models need eager execution, which is off here: leave out"
            " tf.compat.v1.disable_eager_execution() and `with tf.Graph().as_default()`."
        )
    if not inside_function:
        raise UserError(
            "This needs eager execution: call it outside of `tf.function`, in which models only"
            " have `log_prob` and `conditionals`."
        )


def check_compiler() -> None:
    """Raise UserError unless TensorFlow computes eagerly here, and can compile what it computes."""
    check_eager()
    from tensorflow.python.framework import op_callbacks  # has no public name

    if op_callbacks.should_invoke_op_callbacks():
        raise UserError(
            "Models cannot be compiled under tf.debugging.enable_check_numerics(): call"
            " tf.debugging.disable_check_numerics() first; `log_prob`, `fit` and `save` work with"
            " it."
        )


def _after_fork() -> None:
    global _is_forked
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    _is_forked = getattr(context, "_context_handle", None) is not None


os.register_at_fork(after_in_child=_after_fork)
