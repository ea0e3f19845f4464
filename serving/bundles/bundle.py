"""A bundle, NAME/VERSION: an exported model that loads without its training code.

Its program runs in a TensorFlow session, so that exactly what was checked runs:
`tf.saved_model.load` would read the file again, and create Python objects of all functions.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from foundation.errors import UserError
from foundation.tensorflow_paths import named_for_tensorflow
from serving.bundles.signature import COMPILED, PLAIN, Arrays, Signature, check, example
from serving.errors import NotFound

VARIABLES = Path("variables") / "variables"
Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
FORMAT = 1
SPEC_FILE = "model.json"
Backend = Literal["auto", "tensorflow", "numba"]


class Servable(Protocol):
    """A loaded model, called by signature; thread-safe.

    name, version: those in the path of its folder, NAME/VERSION. path: the folder. kind: "sound",
    "picture" or "array". spec: content of model.json. signatures: its signatures by name.
    """

    name: str
    version: int
    path: Path
    spec: dict[str, Any]
    signatures: dict[str, Signature]

    @property
    def kind(self) -> str:
        """The kind of data that the model makes: "sound", "picture" or "array"."""

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as `call` takes them; raise InvalidInput if bad."""

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for checked inputs."""

    def warm(self) -> None:
        """Compile the served programs."""


class SpeechServable(Servable, Protocol):
    """A model of kind "sound"."""

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames float32 [frames, channels] of a waveform [samples]."""

    @property
    def stream(self) -> Callable[..., Iterator[np.ndarray]]:
        """A method with the arguments of `AudioBundle.stream` that yields chunks [1, samples]."""


class Program:
    """The signatures of a MetaGraphDef that `check_program` returned as functions; thread-safe.

    Until `restore` or the first call it is a few MB of bytes, and TensorFlow is not initialised.
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
            with named_for_tensorflow(self._folder) as name:
                filename = {saver.filename_tensor_name: f"{name}/{VARIABLES}"}
                session.run(graph.get_operation_by_name(saver.restore_op_name), filename)
            return {
                name: _call(session, s) for name, s in stored.signature_def.items() if s.outputs
            }
        except (MemoryError, tf.errors.ResourceExhaustedError):
            raise
        except Exception as error:  # its type depends on the corrupted byte
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{self._folder} cannot be loaded: {first}") from error


def _call(session: Any, signature: Any) -> Call:
    names = list(signature.inputs)
    run = session.make_callable(
        {name: info.name for name, info in signature.outputs.items()},
        [signature.inputs[name].name for name in names],
    )
    return lambda inputs: run(*(inputs[name] for name in names))


class Bundle:
    """An exported model that can be called from several threads.

    name, version: those in its path, NAME/VERSION. spec: content of model.json. engine: the
    backend that computes all that it draws. The program has been checked.
    """

    kind: str
    engine: Literal["tensorflow", "numba"] = "tensorflow"
    compresses: ClassVar[bool] = False

    def __init__(self, path: Path, spec: dict[str, Any], program: Program):
        self.path, self.spec = path, spec
        self.name, self.version = path.parent.name, int(path.name)
        self.signatures = signatures_of(spec)
        self._program = program

    @property
    def serving(self) -> dict[str, Any]:
        """The entry "serving" of its model.json: batches, buckets, limits."""
        return self.spec["serving"]

    def signature(self, name: str) -> Signature:
        """Return a signature; raise NotFound for an unknown name."""
        if name not in self.signatures:
            known = ", ".join(self.signatures)
            raise NotFound(f"`{self.name}` has no signature `{name[:40]}`; it has {known}.")
        return self.signatures[name]

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as `call` takes them; raise InvalidInput or NotFound."""
        return check(self.signature(signature), inputs)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for inputs that `check` returned.

        `compiled` also answers for `serving_default`, so that a seed gives the same in both.
        """
        self.signature(signature)
        return self._program(COMPILED if signature == PLAIN else signature, inputs)

    def warm(self) -> None:
        """Compile the served programs by a call of each size."""
        for name, inputs in self.warmup_calls():
            self.call(name, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield signature and inputs of each call of `warm`: one whole image or array.

        All batches run its program; other signatures compile when first called.
        """
        yield COMPILED, example(self.signatures[COMPILED], 1)


def signatures_of(spec: Mapping[str, Any]) -> dict[str, Signature]:
    """Return the signatures that a model.json declares, by name."""
    declared = spec["serving"]["signatures"]
    return {name: Signature.from_dict(stored) for name, stored in declared.items()}
