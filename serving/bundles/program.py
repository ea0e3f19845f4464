"""The exported program of a bundle, run in a TensorFlow session: exactly what was checked runs.

`tf.saved_model.load` would read the file again, and create Python objects of all functions.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError

VARIABLES = Path("variables") / "variables"
Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class Program:
    """The signatures of a checked MetaGraphDef as functions; thread-safe.

    Until `restore` or the first call it is a few MB of bytes, and TensorFlow is not initialised.

    Args:
      folder: folder of the bundle, which holds the variables.
      graph: see `check_program`.
    """

    def __init__(self, folder: Path, graph: Any):
        self._folder, self._stored = folder, graph.SerializeToString()
        self._lock = threading.Lock()
        self._calls: dict[str, Call] = {}

    def __call__(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a signature by name; raise UserError as `restore` does."""
        self.restore()
        return self._calls[signature](inputs)

    def restore(self) -> None:
        """Prepare the program for calls; raise UserError if it cannot be loaded."""
        with self._lock:
            if not self._calls:
                self._calls = self._restored()
                self._stored = b""

    def _restored(self) -> dict[str, Call]:
        import tensorflow as tf

        graph, stored = tf.Graph(), tf.compat.v1.MetaGraphDef.FromString(self._stored)
        saver, options = stored.saver_def, tf.compat.v1.ConfigProto()
        # It would process the whole function library once per signature.
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        try:
            with graph.as_default():
                tf.graph_util.import_graph_def(stored.graph_def, name="")
            session = tf.compat.v1.Session(graph=graph, config=options)
            filename = {saver.filename_tensor_name: str(self._folder / VARIABLES)}
            session.run(graph.get_operation_by_name(saver.restore_op_name), filename)
            return {
                name: _call(session, s) for name, s in stored.signature_def.items() if s.outputs
            }
        except (MemoryError, tf.errors.ResourceExhaustedError):
            raise
        except Exception as error:  # of many types, depending on the corrupted byte
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{self._folder} cannot be loaded: {first}") from error


def _call(session: Any, signature: Any) -> Call:
    names = list(signature.inputs)
    run = session.make_callable(
        {name: info.name for name, info in signature.outputs.items()},
        [signature.inputs[name].name for name in names],
    )
    return lambda inputs: run(*(inputs[name] for name in names))
