"""A bundle, NAME/VERSION: an exported model loaded without the code that trained it."""

import importlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.allowed_operations import check_program
from serving.bundles.manifest import verify
from serving.bundles.signature import Arrays, Signature, check, example
from serving.errors import NotFound

FORMAT = 1
SPEC_FILE = "model.json"
COMPILED, PLAIN = "compiled", "serving_default"
CLASSES = {
    "wavenet": ("serving.bundles.audio_bundle", "SoundBundle"),
    "parallel-wavenet": ("serving.bundles.audio_bundle", "SoundBundle"),
    "pixelcnn": ("serving.bundles.image_bundle", "PictureBundle"),
    "multiscale": ("serving.bundles.image_bundle", "PictureBundle"),
}
Backend = Literal["auto", "tensorflow", "numba"]


class Bundle:
    """An exported model ready to be called; safe to call from several threads.

    name, version: where it lay, NAME/VERSION. spec: what its model.json says.

    Args:
      path: its folder. spec: of that folder. program: what TensorFlow loaded from it.
      backend: what computes, see `load`.
    """

    kind: ClassVar[str]

    def __init__(self, path: Path, spec: dict[str, Any], program: Any, backend: Backend = "auto"):
        self.path, self.spec, self.backend = path, spec, backend
        self.name, self.version = path.parent.name, int(path.name)
        self.signatures = signatures_of(spec)
        self._program = program  # owns the variables that the functions read
        self._functions = {name: program.signatures[name] for name in self.signatures}

    @property
    def serving(self) -> dict[str, Any]:
        """What model.json says of serving it: batches, buckets, limits."""
        return self.spec["serving"]

    def signature(self, name: str) -> Signature:
        """The signature of that name; NotFound if there is none."""
        if name not in self.signatures:
            known = ", ".join(self.signatures)
            raise NotFound(f"`{self.name}` has no signature `{name[:40]}`; it has {known}.")
        return self.signatures[name]

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """The inputs of a signature as `call` takes them, see `serving.bundles.signature.check`.

        Raises InvalidInput, which names the field and the rule; NotFound for the signature.
        """
        return check(self.signature(signature), inputs)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """What a signature gives for inputs as `check` gives them."""
        import tensorflow as tf

        infos = self.signature(signature).inputs
        tensors = {name: tf.constant(inputs[name], info.dtype) for name, info in infos.items()}
        outputs = self._functions[signature](**tensors)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def warm(self) -> None:
        """Compiles what is served compiled, by a call of every size that it is called in."""
        for name, inputs in self.warming():
            self.call(name, inputs)

    def warming(self) -> Iterator[tuple[str, Arrays]]:
        """Signature and inputs of every call that `warm` makes: every bucket by every batch."""
        padded = self.serving.get("padded", {})
        buckets = sorted({bucket for pad in padded.values() for bucket in pad["buckets"]}) or [1]
        for bucket, rows in itertools.product(buckets, self.serving["allowed_batches"]):
            yield COMPILED, example(self.signature(COMPILED), rows, padded, bucket)


def load(path: Path | str, backend: Backend = "auto") -> Any:
    """The SoundBundle or PictureBundle of a folder, checked before anything in it runs.

    Args:
      path: VERSION folder; or a NAME folder, for its highest version.
      backend: what computes: "tensorflow" runs the exported program; "numba" is the engine for
        this processor that students have (it needs the package `distill`); "auto" takes the engine
        where it can.

    Raises UserError, in one line, for what is no bundle, was changed since it was exported, has an
    operation that bundles may not have, or is of another version of the format.
    """
    folder = version_folder(Path(path))
    verify(folder)
    spec = read_spec(folder)
    check_program(folder, signatures_of(spec))
    module, name = CLASSES[spec["kind"]]
    return getattr(importlib.import_module(module), name)(folder, spec, _loaded(folder), backend)


def version_folder(path: Path) -> Path:
    """The folder of a bundle: `path` itself, or its highest version; UserError for neither."""
    path = path.resolve()
    if not path.is_dir():
        raise UserError(f"{path} is no folder.")
    if path.name.isdecimal() and (path / SPEC_FILE).exists():
        return path
    if (path / SPEC_FILE).exists():
        raise UserError(f"The folder of a bundle is called by its version, got {path}.")
    versions = [p for p in path.iterdir() if p.name.isdecimal() and p.is_dir()]
    if not versions:
        raise UserError(f"{path} is no bundle, and holds no version of one.")
    return max(versions, key=lambda version: int(version.name))


def read_spec(folder: Path) -> dict[str, Any]:
    """What model.json of a bundle says; UserError where that cannot be served."""
    path = folder / SPEC_FILE
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(spec, dict) or spec.get("kind") not in CLASSES:
        raise UserError(f"{path} must be of a {', '.join(CLASSES)}.")
    serving = spec.get("serving")
    if not isinstance(serving, dict):
        raise UserError(f"{folder} has no program; onepass export {folder} --out DIR makes one.")
    if serving.get("format") != FORMAT:
        raise UserError(
            f"{path} is of format {serving.get('format')}; this version reads {FORMAT}."
        )
    try:
        if COMPILED not in signatures_of(spec) or not serving["allowed_batches"]:
            raise KeyError(COMPILED)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} does not say how to serve it: {error}.") from error
    return spec


def signatures_of(spec: Mapping[str, Any]) -> dict[str, Signature]:
    """The signatures that a model.json declares, by name."""
    declared = spec["serving"]["signatures"]
    return {name: Signature.from_dict(said) for name, said in declared.items()}


def _loaded(folder: Path) -> Any:
    import tensorflow as tf

    try:
        return tf.saved_model.load(str(folder))
    except MemoryError:
        raise
    except Exception as error:  # TensorFlow has one of its own for almost every byte that can flip
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{folder} cannot be loaded: {first}") from error
