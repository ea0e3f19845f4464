"""Needs of TensorFlow: the state of a process, and the names of its folders.

In a process that was forked after TensorFlow's threads had started, its calls never return.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from onepass.foundation.errors import UserError


@contextlib.contextmanager
def name_for_tensorflow(folder: Path) -> Iterator[str]:
    """Yield a name by which TensorFlow finds an existing folder, valid inside the block.

    Python encodes a path in the locale's encoding, or keeps bytes that are not valid text. If the
    path's UTF-8 encoding differs, TensorFlow would use a different folder; it then gets the path of
    a file descriptor that this process has open on the folder.
    """
    path = os.fspath(folder)
    if os.fsencode(path) == path.encode("utf-8", "replace"):
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


FORKED = (
    "TensorFlow cannot run in a process that was forked after it had been used: start the process"
    " by multiprocessing.get_context('spawn'), or load the model only in the child (gunicorn"
    " without --preload)."
)
_is_forked = False


def check_process() -> None:
    """Raise UserError in a process that was forked after TensorFlow had been used."""
    if _is_forked:
        raise UserError(FORKED)


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
