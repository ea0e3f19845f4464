"""Loads bundles, after verifying the files and checking the program."""

import json
import shlex
from pathlib import Path
from typing import Any

from onepass.bundles.bundle import FORMAT, SPEC_FILE, Backend, Bundle, Program, signatures_of
from onepass.bundles.declared_program import check_program, without
from onepass.bundles.errors import shorten_text
from onepass.bundles.folder_kind import folder_kind, versions_of
from onepass.bundles.manifest import verify
from onepass.bundles.names import check_folder
from onepass.bundles.own_spec import ROWS, check_own_spec
from onepass.bundles.signature import COMPILED, PLAIN
from onepass.families import known_kinds, registered
from onepass.foundation.errors import UserError
from onepass.foundation.plain_files import read_plain

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
    spec = read_spec(folder)
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
        if registered(spec["kind"]).makes == "arrays":
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


def read_spec(folder: Path) -> dict[str, Any]:
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
