"""A bundle, NAME/VERSION: an exported model that loads without the code that trained it.

The engine needs the packages that trained the model. It generates the same audio as the exported
program; for a student, within one 16-bit step.

An error names the field that breaks its rule. Fields without a rule are not used.

Its program runs in a TensorFlow session, so that exactly the checked program runs:
`tf.saved_model.load` would read the file again, and create Python objects for all functions.
"""

import contextlib
import functools
import itertools
import json
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from onepass import families
from onepass.bundles.errors import InvalidInput, NotFound, shorten_text
from onepass.bundles.manifest import check_folder, folder_kind, verify, versions_of
from onepass.bundles.sampling import (
    IMAGE_OPTIONS,
    OWN_OPTIONS,
    SOUND_OPTIONS,
    ImageSampling,
    Request,
    SoundSampling,
)
from onepass.bundles.signature import (
    ARRAY,
    CHUNK,
    COMPILED,
    CONDITIONS,
    ENDED,
    FORMAT,
    FRAMES,
    IMAGE,
    LOG_PROB,
    NUM_PREFIX,
    PLAIN,
    PREFIX,
    PROMPTED,
    PROMPTED_CHUNK,
    SEED,
    SOUND,
    SPEAKER,
    STATE,
    WHOLE,
    WITH_LOG_PROB,
    Arrays,
    Signature,
    TensorInfo,
    check,
    check_program,
    example,
    is_condition,
    is_timed,
    names_of,
    without,
)
from onepass.draw import LISTS, OPTIONS, Draw
from onepass.families import installed, known_kinds
from onepass.foundation.errors import UserError, must_be
from onepass.foundation.folders import read_plain
from onepass.foundation.tensorflow_state import check_process, name_for_tensorflow
from onepass.interface import collect_images, stream_images
from onepass.replicator.training.family import ModelFamily

if TYPE_CHECKING:
    from onepass.model import Autoregressive


class Engine:
    """The functions that generate sounds with a bundle's weights, compiled by Numba."""

    def __init__(self, path: Path, family: ModelFamily, backend: str) -> None:
        try:
            from distill.model import load

            sampler: Any = family.sampler  # kinds without one have no engine
            self._generation: Any = sampler()
            loaded = load(path)
            if backend != "numba":
                self._generation.check_backend(backend)
        except ImportError as error:
            raise UserError(f"The engine `numba` needs the package {error.name}.") from error
        self._backend = backend
        self._network, self._hop = loaded.network, loaded.front.hop_samples
        self._draws_levels = not family.is_fast
        if self._draws_levels and not self._generation.is_known(self._network):
            raise UserError(f"The engine `numba` does not support the likelihood of {path}.")

    def whole(self, request: Request) -> np.ndarray:
        """Return the requested sounds, float32 [rows, num_samples]."""
        return self._whole(self._generation_request(request))

    def stream(
        self, request: Request, chunk_samples: int, ahead_samples: int = 0
    ) -> Iterator[np.ndarray]:
        """Return an iterator over the sounds of `whole` in chunks [rows, about chunk_samples].

        A student's first chunk is longer by `ahead_samples`, which its refinement needs.
        """
        made, opening = self._generation, {}
        if ahead_samples:
            opening["first_samples"] = made.FIRST_SAMPLES + ahead_samples
        return map(
            self._sound,
            made.stream(
                self._network,
                self._generation_request(request),
                self._backend,
                chunk_samples,
                **opening,
            ),
        )

    def call(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of the signature for whole sounds, which are computed row by row."""
        frames, speaker = inputs.get(FRAMES), inputs.get(SPEAKER)
        if frames is None:
            lengths = longest = inputs["num_samples"]
        else:
            lengths = inputs["num_frames"] * self._hop
            longest = frames.shape[1] * self._hop
        sound = np.zeros([len(lengths), np.max(longest)], np.float32)
        for n, length in enumerate(map(int, lengths)):
            row = self._generation.Request(
                num_samples=length,
                seed=int(inputs["seed"][n]) % 2**64,
                rows=(int(inputs["row"][n]),),
                frames=None if frames is None else frames[n : n + 1, : length // self._hop],
                speaker=None if speaker is None else speaker[n : n + 1],
                temperature=float(inputs["temperature"][n]),
            )
            sound[n, :length] = self._whole(row)[0]
        return {SOUND: sound, "num_samples": lengths.astype(np.int32)}

    def _generation_request(self, request: Request) -> Any:
        return self._generation.Request(
            num_samples=request.shape[0],
            seed=request.seed,
            rows=tuple(range(request.first_row, request.first_row + request.num)),
            frames=request.conditions.get(FRAMES),
            speaker=request.conditions.get(SPEAKER),
            temperature=float(request.temperature[0]),
        )

    def _whole(self, request: Any) -> np.ndarray:
        return self._sound(self._generation.generate(self._network, request, self._backend))

    def _sound(self, output: np.ndarray) -> np.ndarray:
        return self._network.codec.decode(output).numpy() if self._draws_levels else output


def prepare() -> None:
    """Import and compile what the engines of all kinds need, if the packages are installed.

    Compiled in a confined process, the kernels could be neither cached nor shared with others.
    """
    with contextlib.suppress(ImportError):
        import distill.model  # noqa: F401 - for `Engine`
        from distill.cpu.engine import compile_kernels

        for family in families.every_family():
            if family.sampler:
                family.sampler()
        compile_kernels()


def engine_for(path: Path, spec: Mapping[str, Any], backend: str) -> Engine | None:
    """Return the engine if `backend` requests it or, for "auto", if it is faster; else None.

    With "auto", it is used for a float32 student if there is no GPU and the packages are installed.
    """
    family = families.installed(spec["kind"])
    compiled = backend.startswith("numba")
    if family is None:
        if compiled:
            raise UserError(f"The engine `{backend}` needs the code of {spec['kind']} models.")
        return None
    if compiled and not (family.sampler and (family.is_fast or backend == "numba")):
        makers = "WaveNets and their students" if backend == "numba" else "students"
        raise UserError(f"{path}: the engine `{backend}` is for {makers}.")
    if not family.sampler or backend == "tensorflow" or (backend == "auto" and not family.is_fast):
        return None
    is_float32 = spec["config"][family.network]["compute_dtype"] == "float32"
    if compiled:
        if not is_float32:
            raise UserError(f"The engine `{backend}` needs float32, {path} has another type.")
        return Engine(path, family, backend)
    import tensorflow as tf

    if not is_float32 or tf.config.list_physical_devices("GPU"):
        return None
    with contextlib.suppress(UserError):
        return Engine(path, family, "numba")
    return None


MOST_ROWS = 2**12  # rows of one call
MOST_SAMPLES = 2**31 - 1  # longest sequence, as lengths are int32
MOST_PIECE = 2**20  # elements that are compiled as one piece
MOST_CALL_BYTES = 2**30  # size of an input in a warm-up call
MOST_LIST = 2**10  # entries of a list of numbers or names
TEXT_CHARACTERS = 10_000


class Rule(NamedTuple):
    """A rule for a JSON value."""

    holds: Callable[[Any], bool]
    words: str
    needed: bool = True


def whole(low: int, high: int) -> Rule:
    """Return the rule that a value is an integer from `low` to `high`."""
    return Rule(lambda x: type(x) is int and low <= x <= high, f"a whole number in [{low}, {high}]")


def one_of(*values: Any) -> Rule:
    """Return the rule that a value is one of the given values."""
    known = " or ".join(map(repr, values))
    return Rule(lambda x: any(x is v or (type(x) is type(v) and x == v) for v in values), known)


def list_rule(rule: Rule, least: int = 0) -> Rule:
    """Return the rule that a value is a list of at least `least` items that obey `rule`."""
    return Rule(
        lambda x: isinstance(x, list) and least <= len(x) <= MOST_LIST and all(map(rule.holds, x)),
        f"a list of at least {least}, each {rule.words}",
    )


def optional(rule: Rule) -> Rule:
    """Return the rule for a field that may also be missing or null."""
    return Rule(lambda x: x is None or rule.holds(x), f"{rule.words}, or null", needed=False)


TEXT = Rule(lambda x: isinstance(x, str) and len(x) <= TEXT_CHARACTERS, "a text")
FINITE = Rule(
    lambda x: type(x) in (int, float) and abs(x) < 1e300 and math.isfinite(x), "a finite number"
)
FLAG = Rule(lambda x: type(x) is bool, "true or false")
NAMES = Rule(
    lambda x: (
        isinstance(x, dict)
        and len(x) <= MOST_LIST
        and all(TEXT.holds(name) and TEXT.holds(each) for name, each in x.items())
    ),
    "an object of texts",
)
OBJECT = Rule(lambda x: isinstance(x, dict) and len(x) <= MOST_LIST, "an object")
RATE = whole(1, 10**7)
ROWS = list_rule(whole(1, MOST_ROWS), least=1)  # the sizes of a batch
LENGTH = whole(1, MOST_SAMPLES)
# The rules, by the path of the field.
FIELDS: dict[str, Rule] = {
    "makes": one_of(ARRAY, SOUND, IMAGE),
    "order": optional(one_of("time", "raster")),
    "condition": optional(one_of("none", "frames")),
    "condition_channels": optional(whole(0, 2**16)),
    CONDITIONS: optional(NAMES),
    "codec": optional(TEXT),
    "distribution": optional(TEXT),
    "temperature": optional(FINITE),
    "elements": OBJECT,
    "elements.dtype": one_of("int32", "float32"),
    "elements.levels": optional(whole(1, 2**31)),
    "serving.allowed_batches": ROWS,
    "serving.limits": OBJECT,
    "serving.limits.max_batch": whole(1, MOST_ROWS),
}
OF_SOUND = {"sample_rate_hz": RATE}
OF_IMAGES = {
    "size": whole(1, 2**16),
    "channels": one_of(1, 3),
    "classes": list_rule(TEXT),
    "captions": optional(list_rule(TEXT)),
}
OF_SEQUENCES = {
    "hop_samples": one_of(1),
    "speakers": Rule(lambda x: x == [], "an empty list"),
    "max_length": LENGTH,
    "unit_samples": LENGTH,
    "serving.limits.max_frames": LENGTH,
    "serving.streaming": OBJECT,
    "serving.streaming.signature": one_of(CHUNK),
    "serving.streaming.side_frames": one_of(0),
    "serving.streaming.hop_samples": one_of(1),
    "serving.streaming.unit_samples": LENGTH,
    "serving.streaming.pieces": list_rule(whole(1, MOST_PIECE), least=1),
    "serving.streaming.rows_alone": FLAG,
    "serving.streaming.state": OBJECT,
    "serving.cropped": OBJECT,
}
ROW = ("seed", "row", "temperature")
CROPPING = {"axis": one_of(1), "length": one_of("num_samples")}
PADDING = {"axis": one_of(1), "length": one_of("num_frames"), "buckets": list_rule(LENGTH, least=1)}
TIMED = PADDING | {"length": one_of("num_samples")}
LISTED = {name: PADDING | {"length": one_of(count)} for name, count in LISTS.items()}
STATES = {"dtype": TEXT, "fill": FINITE}


def check_own_spec(
    path: Path, spec: Mapping[str, Any], signatures: Mapping[str, Signature]
) -> None:
    """Raise UserError, naming the field, if the model in a model.json could not be served."""
    try:
        _check_fields(spec, FIELDS)
        makes, streams = spec["makes"], CHUNK in signatures
        if streams and makes == IMAGE:
            raise _Broken("makes", one_of(ARRAY, SOUND).words, makes)
        if not streams and makes == SOUND:
            raise _Broken("makes", one_of(ARRAY, IMAGE).words, makes)
        nothing = {"sample_rate_hz": optional(one_of(None))}
        _check_fields(spec, OF_SOUND if makes == SOUND else nothing)
        _check_fields(spec, OF_IMAGES if makes == IMAGE else {})
        _check_signatures(signatures, streams)
        _check_conditions(spec, signatures)
        if streams:
            _check_sequences(spec, signatures)
        elif PROMPTED in signatures:
            _check_rules("padded", spec["serving"].get("padded"), _lists(signatures[PROMPTED]))
        _check_sizes(spec, signatures)
    except _Broken as error:
        raise UserError(
            f"{path}/model.json does not describe a model that can be served: {error}"
        ) from None


class _Broken(Exception):  # noqa: N818 - always caught here
    def __init__(self, field: str, words: str, value: Any):
        super().__init__(must_be(field, words, shorten_text(repr(value))))


def _check_fields(values: Mapping[str, Any], rules: Mapping[str, Rule], above: str = "") -> None:
    for field, rule in rules.items():
        *parents, name = field.split(".")
        holder: Any = values
        for parent in parents:
            holder = holder[parent]
        if name not in holder and not rule.needed:
            continue
        if name not in holder or not rule.holds(holder[name]):
            raise _Broken(f"{above}{field}", rule.words, holder.get(name))


def _check_signatures(signatures: Mapping[str, Signature], streams: bool) -> None:
    needed: dict[str, tuple[str, ...]] = {COMPILED: ROW, PLAIN: ROW}
    outputs: dict[str, str] = {}
    if streams:
        counted = "num_frames" if "frames" in signatures[COMPILED].inputs else "num_samples"
        needed |= {name: (*ROW, counted) for name in (COMPILED, PLAIN)}
        needed[CHUNK] = (*ROW, counted, "start")
    if LOG_PROB in signatures:
        needed[LOG_PROB], outputs[LOG_PROB] = ("elements",), LOG_PROB
    if PROMPTED in signatures:
        needed[PROMPTED], outputs[PROMPTED] = (*needed[COMPILED], WITH_LOG_PROB), LOG_PROB
        if streams:
            needed[PROMPTED] += (PREFIX, NUM_PREFIX)
            needed[PROMPTED_CHUNK] = (*needed[CHUNK], PREFIX, NUM_PREFIX)
            outputs[PROMPTED_CHUNK] = ENDED
    for name, inputs in needed.items():
        known = signatures[name].inputs if name in signatures else {}
        for each in inputs:
            if each not in known:
                raise _Broken(f"serving.signatures.{name}.inputs.{each}", "there", None)
        if not [output for output in signatures[name].outputs if output != "num_samples"]:
            raise _Broken(f"serving.signatures.{name}.outputs", "there", None)
    for name, output in outputs.items():
        if output not in signatures[name].outputs:
            raise _Broken(f"serving.signatures.{name}.outputs.{output}", "there", None)


def _check_conditions(spec: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    for name in (COMPILED, PLAIN, CHUNK, LOG_PROB, PROMPTED, PROMPTED_CHUNK):
        known = signatures[name].inputs if name in signatures else {}
        named = set(names_of(spec, known).values()) if known else set()
        for each in sorted(named - known.keys()):
            raise _Broken(f"serving.signatures.{name}.inputs.{each}", "there", None)
        for each in known:
            if each not in named and (is_condition(each) or each == FRAMES):
                raise _Broken(f"{CONDITIONS}", f"with the input `{each}`", spec.get(CONDITIONS))


def _check_sequences(spec: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    _check_fields(spec, OF_SEQUENCES)
    serving, has_prompts = spec["serving"], PROMPTED in signatures
    cropped = set(signatures[COMPILED].outputs) - {"num_samples"}
    cropped |= {LOG_PROB} if has_prompts else set()
    _check_rules("cropped", serving.get("cropped"), dict.fromkeys(cropped, CROPPING))
    known = signatures[COMPILED].inputs
    padded = {"frames": PADDING} if "frames" in known else {}
    padded |= {n: TIMED for n, info in known.items() if is_condition(n) and is_timed(info)}
    padded |= _lists(signatures[PROMPTED]) if has_prompts else {}
    _check_rules("padded", serving.get("padded"), padded)
    states = {name for name in signatures[CHUNK].inputs if name.startswith(STATE)}
    stored = serving["streaming"]["state"]
    _check_rules("streaming.state", stored, dict.fromkeys(states, STATES))
    for signature in (CHUNK, PROMPTED_CHUNK) if has_prompts else (CHUNK,):
        for name, rule in (stored or {}).items():
            _check_state(rule, signature, signatures[signature], name)


def _lists(signature: Signature) -> dict[str, dict[str, Rule]]:
    return {name: rule for name, rule in LISTED.items() if name in signature.inputs}


def _check_rules(field: str, found: Any, wanted: Mapping[str, Mapping[str, Rule]]) -> None:
    found = found or {}
    if not isinstance(found, dict) or set(found) != set(wanted):
        raise _Broken(f"serving.{field}", f"of {', '.join(sorted(wanted)) or 'nothing'}", found)
    for name, rules in wanted.items():
        above = f"serving.{field}.{name}"
        if not isinstance(found[name], dict):
            raise _Broken(above, OBJECT.words, found[name])
        _check_fields(found[name], rules, f"{above}.")


def _check_state(stored: Mapping[str, Any], signature: str, chunk: Signature, name: str) -> None:
    info, out = chunk.inputs.get(name), chunk.outputs.get(name)
    if info is None:
        raise _Broken(f"serving.signatures.{signature}.inputs.{name}", "there", None)
    if stored.get("shape") != info.sizes or stored["dtype"] != info.dtype.name:
        wanted = f"{info.dtype.name} {info.sizes}, as the input"
        raise _Broken(f"serving.streaming.state.{name}", wanted, stored)
    if out is None or (out.dtype, out.shape) != (info.dtype, info.shape):
        raise _Broken(f"serving.signatures.{signature}.outputs.{name}", "as the input", None)


def _check_sizes(spec: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    serving = spec["serving"]
    streaming = serving.get("streaming") or {}
    rows = max(serving["allowed_batches"])
    if streaming.get("rows_alone"):
        rows = min(serving["allowed_batches"])
    length = sum(set(streaming.get("pieces", [1])))
    for name in (COMPILED, CHUNK, PROMPTED):
        for key, info in (signatures[name].inputs if name in signatures else {}).items():
            sizes = [length if size is None else size for size in info.shape[1:]]
            bytes_ = rows * info.dtype.itemsize * math.prod(sizes)
            if bytes_ > MOST_CALL_BYTES:
                rule = f"smaller: {rows:,} rows of it take {bytes_:,} bytes"
                raise _Broken(f"serving.signatures.{name}.inputs.{key}", rule, info.sizes)


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
