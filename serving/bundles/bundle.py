"""A bundle, NAME/VERSION: an exported model loaded without the code that trained it."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from serving.bundles.program import Program
from serving.bundles.signature import COMPILED, Arrays, Signature, check, example
from serving.errors import NotFound

FORMAT = 1
SPEC_FILE = "model.json"
Backend = Literal["auto", "tensorflow", "numba"]


class Bundle:
    """An exported model ready to be called; safe to call from several threads.

    name, version: where it lay, NAME/VERSION. spec: what its model.json says.

    Args:
      path: its folder. spec: of that folder. program: of that folder, checked.
      backend: what computes, see `load`.
    """

    kind: str

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        self.path, self.spec, self.backend = path, spec, backend
        self.name, self.version = path.parent.name, int(path.name)
        self.signatures = signatures_of(spec)
        self._program = program

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
        self.signature(signature)
        return self._program(signature, inputs)

    def warm(self) -> None:
        """Compiles what is served compiled, by a call of every size that it is called in."""
        for name, inputs in self.warmup_calls():
            self.call(name, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Signature and inputs of every call that `warm` makes: every bucket by every batch."""
        padded = self.serving.get("padded", {})
        buckets = sorted({bucket for pad in padded.values() for bucket in pad["buckets"]}) or [1]
        for bucket, rows in itertools.product(buckets, self.serving["allowed_batches"]):
            yield COMPILED, example(self.signature(COMPILED), rows, padded, bucket)


def signatures_of(spec: Mapping[str, Any]) -> dict[str, Signature]:
    """The signatures that a model.json declares, by name."""
    declared = spec["serving"]["signatures"]
    return {name: Signature.from_dict(stored) for name, stored in declared.items()}
