"""A bundle, NAME/VERSION: an exported model that loads without its training code."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from serving.bundles.program import Program
from serving.bundles.signature import COMPILED, Arrays, Signature, check, example
from serving.errors import NotFound

FORMAT = 1
SPEC_FILE = "model.json"
Backend = Literal["auto", "tensorflow", "numba"]


class Bundle:
    """An exported model that can be called from several threads.

    name, version: from its path, NAME/VERSION. spec: its model.json.

    Args:
      path: the bundle's folder.
      spec: content of its model.json.
      program: its checked program.
      backend: see `load`.
    """

    kind: str
    compresses: ClassVar[bool] = False

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        self.path, self.spec, self.backend = path, spec, backend
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
        """Return the inputs of a signature as `call` takes them, see `signature.check`.

        Raises:
          InvalidInput: an input breaks a rule; the message names both.
          NotFound: the signature is unknown.
        """
        return check(self.signature(signature), inputs)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for inputs that `check` returned."""
        self.signature(signature)
        return self._program(signature, inputs)

    def warm(self) -> None:
        """Compile the served programs by a call of each size."""
        for name, inputs in self.warmup_calls():
            self.call(name, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield signature and inputs of each call of `warm`: every bucket by every batch."""
        padded = self.serving.get("padded", {})
        buckets = sorted({bucket for pad in padded.values() for bucket in pad["buckets"]}) or [1]
        for bucket, rows in itertools.product(buckets, self.serving["allowed_batches"]):
            yield COMPILED, example(self.signature(COMPILED), rows, padded, bucket)


def signatures_of(spec: Mapping[str, Any]) -> dict[str, Signature]:
    """Return the signatures that a model.json declares, by name."""
    declared = spec["serving"]["signatures"]
    return {name: Signature.from_dict(stored) for name, stored in declared.items()}
