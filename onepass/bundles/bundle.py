"""A bundle, NAME/VERSION: an exported model that loads without the code that trained it.

Its program runs in a TensorFlow session, so that exactly the checked program runs:
`tf.saved_model.load` would read the file again, and create Python objects for all functions.
"""

import functools
import itertools
import json
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from onepass.bundles.errors import InvalidInput, NotFound, shorten_text
from onepass.bundles.folder_kind import folder_kind, versions_of
from onepass.bundles.image_sampling import IMAGE_OPTIONS, ImageSampling
from onepass.bundles.manifest import check_folder, verify
from onepass.bundles.numba_engine import engine_for
from onepass.bundles.own_spec import ROWS, check_own_spec
from onepass.bundles.sampling import OWN_OPTIONS
from onepass.bundles.signature import (
    ARRAY,
    CHUNK,
    COMPILED,
    FORMAT,
    IMAGE,
    NUM_PREFIX,
    PLAIN,
    PROMPTED,
    SEED,
    SOUND,
    WHOLE,
    Arrays,
    Signature,
    TensorInfo,
    check,
    check_program,
    example,
    without,
)
from onepass.bundles.sound_sampling import SOUND_OPTIONS, SoundSampling
from onepass.draw import OPTIONS, Draw
from onepass.families import installed, known_kinds
from onepass.foundation.errors import UserError
from onepass.foundation.plain_files import read_plain
from onepass.foundation.tensorflow_state import check_process, name_for_tensorflow
from onepass.interface import collect_images, stream_images

if TYPE_CHECKING:
    from onepass.model import Autoregressive

VARIABLES = Path("variables") / "variables"
Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
SPEC_FILE = "model.json"
MODEL_FOLDER = "autoregressive"  # folder in a bundle with the model as `onepass.save` writes it
Backend = Literal["auto", "tensorflow", "numba", "numba-bfloat16"]


class Servable(Protocol):
    """A loaded model NAME/VERSION, called by signature, with its model.json; thread-safe."""

    name: str
    version: int
    path: Path
    spec: dict[str, Any]
    signatures: dict[str, Signature]

    @property
    def kind(self) -> str:
        """The kind of data that the model generates: "sound", "picture" or "array"."""

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as `call` takes them; raise InvalidInput if invalid."""

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for checked inputs."""

    def warm(self) -> None:
        """Compile the served programs."""

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames float32 [frames, channels] of a waveform [samples]."""

    @property
    def stream(self) -> Callable[..., Iterator[np.ndarray]]:
        """A method with the keyword arguments of `Model.stream`."""


class Program:
    """The program of a bundle, whose signatures are called by name; thread-safe.

    Until `restore` or the first call, it takes only a few MB, and TensorFlow is not initialised.
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
        check_process()
        with self._lock:
            if not self._calls:
                self._calls = self._restore_calls()
                self._stored = b""

    def _restore_calls(self) -> dict[str, Call]:
        import tensorflow as tf

        graph, stored = tf.Graph(), tf.compat.v1.MetaGraphDef.FromString(self._stored)
        saver, options = stored.saver_def, tf.compat.v1.ConfigProto()
        # The optimizer would process the whole function library once per signature.
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        try:
            with graph.as_default():
                tf.graph_util.import_graph_def(stored.graph_def, name="")
            session = tf.compat.v1.Session(graph=graph, config=options)
            with name_for_tensorflow(self._folder) as name:
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


class Bundle(SoundSampling, ImageSampling):
    """An exported model; several threads may call it.

    What it can do depends on its signatures: `stream` of sequences and all sounds need `chunk`, and
    `log_prob` the signature of that name, which a user's model has. The program has been checked.

    Attributes:
      name: name of the model, the first part of its path, NAME/VERSION.
      version: the version, the second part of the path.
      spec: content of model.json.
      kind: what the model generates: "sound", "picture" or "array".
      signatures: the signatures by name.
      engine: the backend that computes whole rows and streams.
    """

    problem = InvalidInput

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        self.path, self.spec = path, spec
        self.name, self.version = path.parent.name, int(path.name)
        self.signatures, self._program = signatures_of(spec), program
        made = [kind for kind in (SOUND, IMAGE) if kind in self.signatures[COMPILED].outputs]
        self.kind: str = spec.get("makes") or (made or [ARRAY])[0]
        if self.kind == SOUND or CHUNK in self.signatures:
            streaming = spec["serving"]["streaming"]
            self._pieces: list[int] = list(dict.fromkeys(streaming["pieces"]))
            self._alone: bool = streaming["rows_alone"]
        self._engine = engine_for(path, spec, backend)
        self.engine: Literal["tensorflow", "numba"] = "numba" if self._engine else "tensorflow"

    @property
    def serving(self) -> dict[str, Any]:
        """The entry "serving" of model.json: batches, buckets, limits."""
        return self.spec["serving"]

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The exported user's model, trainable, with the weights at the time of the export.

        Unlike the bundle's signatures, it gives access to the network, its step and its density,
        with gradients.

        Raises:
          UserError: the bundle has no such model, as for a student; or the
            program has a disallowed operation.
        """
        from onepass.storage.load import load

        stored = self.path / MODEL_FOLDER
        if not stored.is_dir():
            raise UserError(
                f"{self.path} holds no model, only its sampler; export it again, or save it."
            )
        return load(stored)

    @property
    def options(self) -> frozenset[str]:
        """Names of the options of `Draw` that the bundle has; its program is its only method."""
        if self._is_own:
            return OWN_OPTIONS
        return SOUND_OPTIONS if self.kind == SOUND else IMAGE_OPTIONS

    def _sample(self, draw: Draw) -> Any:
        if self._is_own:
            return self._own_sample(draw)
        if self.kind == SOUND:
            return self._sounds(draw)
        return collect_images(self._images(draw), draw.scales)

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        if self._is_own or self.kind == SOUND:
            return self._sound_chunks(draw, chunk)
        if chunk is not None:
            raise InvalidInput("`chunk` must be None: images come one after another.")
        return stream_images(self._images(draw), draw.scales)

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

        A call of `serving_default` runs `compiled`; if there is a Numba engine, it computes both.
        """
        self.signature(signature)
        if self._engine is not None and signature in WHOLE:
            return self._engine.call(inputs)
        return self._program(COMPILED if signature == PLAIN else signature, inputs)

    def warm(self) -> None:
        """Compile the served programs by making the calls of `warmup_calls`."""
        for name, inputs in self.warmup_calls():
            self.call(name, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield the signature and inputs of each call that `warm` makes.

        Without the signature `chunk`, there is one call for a whole image or array: batches of all
        sizes run the same program, and other signatures are compiled when first called. With
        `chunk`, the calls run every piece in every batch size that is compiled. With a Numba
        engine, there is only one call of the engine. A model over tokens adds a call with a prompt.
        """
        if CHUNK not in self.signatures:
            yield COMPILED, example(self.signatures[COMPILED], 1)
            return
        # A long piece and a short one: no other length is ever compiled.
        samples = sum(self._pieces)
        names: tuple[str, ...] = (COMPILED, CHUNK)
        batches = sorted(self.serving["allowed_batches"])[: 1 if self._alone else None]
        if self._engine is not None:
            names, batches = (COMPILED,), [1]
        for rows, name in itertools.product(batches, names):
            yield name, self._example(name, rows, -(-samples // self.hop_samples))
        if any(OPTIONS[n].needs_tokens for n in OPTIONS.keys() & self._inputs_of(PROMPTED).keys()):
            inputs = self._example(PROMPTED, 1, samples)
            # All elements but one, so that both reading a prompt and drawing are compiled.
            inputs[NUM_PREFIX][:] = samples - 1
            yield PROMPTED, inputs

    def _example(self, signature: str, rows: int, frames: int) -> Arrays:
        infos = self.signature(signature)
        arrays: Arrays = example(infos, rows, self.serving.get("padded"), frames)
        if not self.conditional:
            arrays["num_samples"][:] = frames
        return arrays

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        return self.signatures[signature].inputs if signature in self.signatures else {}

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        # Requests to other models are checked as a whole, and may be longer than on a server.
        checked = inputs | {SEED: inputs[SEED].view(np.int64)} if SEED in inputs else inputs
        return self.call(signature, self.check(signature, inputs) if self._is_own else checked)


def signatures_of(spec: Mapping[str, Any]) -> dict[str, Signature]:
    """Return the signatures that a model.json declares, by name."""
    declared = spec["serving"]["signatures"]
    return {name: Signature.from_dict(stored) for name, stored in declared.items()}


MOST_SPEC_BYTES = 2**24


def load(path: Path | str, backend: Backend = "auto", manifest_digest: str = "") -> Bundle:
    """Load a bundle from a folder, which is checked before anything in it runs.

    Args:
      path: folder of a version, NAME/VERSION; or the folder NAME, for its highest version.
      backend: "tensorflow" runs the exported program; "numba" is the CPU engine for WaveNets and
        students (needs the packages `wavenet` and `distill`), "numba-bfloat16" the same with
        bfloat16 products, for students; "auto" uses "numba" for students if there is no GPU.
      manifest_digest: SHA-256 of the signed manifest, in hexadecimal; "": any manifest.

    Raises:
      UserError: the folder is not a bundle, or has files of two kinds of models; it was changed
        since its export, has a disallowed operation, or has an unknown format version; or the
        backend cannot run the model.
    """
    folder = version_folder(Path(path))
    folder_kind(folder)
    verify(folder, manifest_digest)
    spec = read_model_spec(folder)
    # `serving_default` is for TensorFlow Serving; here, `compiled` replaces it.
    graph = check_program(folder, signatures_of(spec))
    if PLAIN in graph.signature_def:
        graph = without(graph, PLAIN)
    program = Program(folder, graph)
    bundle = make_bundle(folder, spec, program, backend)
    if bundle.engine == "tensorflow":
        program.restore()
    return bundle


def make_bundle(folder: Path, spec: dict[str, Any], program: Any, backend: Backend) -> Bundle:
    """Return the bundle of a program; raise UserError if model.json does not describe its model."""
    try:
        family = installed(spec["kind"])
        if family is not None and family.makes == "arrays":
            check_own_spec(folder, spec, signatures_of(spec))
        return Bundle(folder, spec, program, backend)
    except UserError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        line = shorten_text(str(error) or type(error).__name__)
        raise UserError(f"{folder}/{SPEC_FILE} does not describe its model: {line}") from error


def version_folder(path: Path) -> Path:
    """Return `path` if it is a bundle, else its highest version, as an absolute path."""
    path = path.resolve()
    if not path.is_dir():
        raise UserError(f"{path} is not a folder.")
    if not (path / SPEC_FILE).exists():
        versions = versions_of(path)
        if not versions:
            raise UserError(f"{path} is not a bundle, and holds no version of one.")
        path = versions[-1]
    check_folder(path, "The folder of a bundle")
    return path


def read_model_spec(folder: Path) -> dict[str, Any]:
    """Return a bundle's model.json; raise UserError if it lacks what loading and serving need."""
    path = folder / SPEC_FILE
    try:
        spec = json.loads(read_plain(path, MOST_SPEC_BYTES))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(spec, dict) or spec.get("kind") not in known_kinds():
        raise UserError(f"{path} must have a `kind` among {', '.join(known_kinds())}.")
    serving = spec.get("serving")
    if not isinstance(serving, dict):
        quoted = shlex.quote(str(folder))
        raise UserError(f"{folder} has no program; add one by `onepass export {quoted} --out DIR`.")
    if serving.get("format") != FORMAT:
        raise UserError(
            f"{path} is of format {serving.get('format')}; this version reads {FORMAT}."
        )
    try:
        if COMPILED not in signatures_of(spec):
            raise KeyError(COMPILED)
        if not ROWS.holds(serving["allowed_batches"]):
            raise ValueError(f"`allowed_batches` must be {ROWS.words}")
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} lacks what is needed to serve it: {error}.") from error
    return spec
