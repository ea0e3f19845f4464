"""Layout files, which users may edit: the mesh axes along which each dimension is cut.

    {"program": "0b9d...", "mesh": {"rows": 2, "model": 2},
     "batch": {"x": ["rows", null]},
     "state": {"weights/up": [null, "model"], "weights/down": ["model", null]}}

Each list has an entry per dimension: an axis, several axes as "rows+model", or null if the
dimension is whole on every device. Tensors that are not named are whole on every device.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from onepass.foundation.rules import UserError
from onepass.replicator.portable.manifest import read_manifest

ROWS, MODEL = "rows", "model"
GIB = 2**30
Cut = tuple[tuple[str, ...], ...]  # for each dimension, the axes along which it is cut


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An argument or a result of the step."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Step:
    """An exported training step; its tensors are in call order."""

    digest: str  # 16 hexadecimal digits that identify the program
    batch: list[Tensor]
    captured: list[Tensor]
    outputs: list[Tensor]
    slots: frozenset[str]  # names of the captured tensors that the step updates

    @classmethod
    def read(cls, folder: Path) -> "Step":
        """Read the training step of an exported folder; UserError: it has none."""
        manifest = read_manifest(folder)
        if "training" not in manifest:
            raise UserError(f"{folder} has no training step.")
        training = manifest["training"]
        described = manifest["functions"][training["step"]]
        artifact = (Path(folder) / described["artifact"]).read_bytes()
        batch, captured, outputs = (
            [Tensor(each["name"], tuple(each["shape"]), each["dtype"]) for each in described[kind]]
            for kind in ("inputs", "captured", "outputs")
        )
        slots = frozenset(slot["name"] for slot in training["slots"])
        digest = hashlib.sha256(artifact).hexdigest()[:16]
        return cls(digest, batch, captured, outputs, slots)

    @property
    def arguments(self) -> list[Tensor]:
        """Arguments of the program in call order: the batch, then the captured tensors."""
        return self.batch + self.captured


@dataclasses.dataclass(frozen=True)
class Layout:
    """The sizes of a mesh's axes, and a cut for every argument of a step in call order."""

    mesh: dict[str, int]
    cuts: tuple[Cut, ...]

    @property
    def num_devices(self) -> int:
        """Number of devices in the mesh."""
        return math.prod(self.mesh.values())

    def split(self, step: Step) -> tuple[tuple[Cut, ...], tuple[Cut, ...]]:
        """Return the cuts of the batch, and the cuts of the captured tensors."""
        return self.cuts[: len(step.batch)], self.cuts[len(step.batch) :]

    def write(self, path: Path, step: Step, cost: dict[str, Any]) -> None:
        """Write the layout file, one line per tensor; `cost` is only for information."""
        head = {"program": step.digest, "mesh": self.mesh, "cost": cost}
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        batch, state = self.split(step)
        for kind, tensors, cuts in (("batch", step.batch, batch), ("state", step.captured, state)):
            stored = [["+".join(axes) or None for axes in cut] for cut in cuts]
            pairs = zip(tensors, stored, strict=True)
            inner = [f"  {json.dumps(t.name)}: {json.dumps(cut)}" for t, cut in pairs]
            lines.append(f'"{kind}": {{\n' + ",\n".join(inner) + "\n }")
        Path(path).write_text("{\n " + ",\n ".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path, step: Step) -> "Layout":
        """Read a layout file; raise UserError if it does not fit the step's program."""
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            mesh = {str(axis): int(size) for axis, size in stored["mesh"].items()}
            named = {kind: dict(stored.get(kind, {})) for kind in ("batch", "state")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"The layout {path} cannot be read: {error!r}.") from error
        if stored.get("program") != step.digest:
            raise UserError(
                f"The layout {path} is for program {stored.get('program')}, got {step.digest}."
            )
        cuts = [
            _cut(path, mesh, tensor, named[kind].pop(tensor.name, []))
            for kind, tensors in (("batch", step.batch), ("state", step.captured))
            for tensor in tensors
        ]
        unknown = [*named["batch"], *named["state"]]
        if unknown:
            raise UserError(f"The layout {path} names `{unknown[0]}`, unknown to the program.")
        return cls(mesh, tuple(cuts))


def whole(step: Step) -> tuple[Cut, ...]:
    """Return cuts that leave every argument whole."""
    return tuple(((),) * len(tensor.shape) for tensor in step.arguments)


def is_possible(shape: tuple[int, ...], cut: Cut, mesh: dict[str, int]) -> bool:
    """Return whether the axes divide the dimensions and no axis is used twice."""
    used = [axis for axes in cut for axis in axes]
    return len(used) == len(set(used)) and all(
        size % math.prod(mesh[axis] for axis in axes) == 0
        for size, axes in zip(shape, cut, strict=True)
    )


def _cut(path: Path, mesh: dict[str, int], tensor: Tensor, written: Any) -> Cut:
    where = f"The layout {path} cuts `{tensor.name}` {list(tensor.shape)} as {json.dumps(written)}"
    try:
        cut = tuple(tuple(each.split("+")) if each else () for each in written)
    except (AttributeError, TypeError) as error:
        raise UserError(f"{where}: each dimension needs an axis or null.") from error
    cut += ((),) * (len(tensor.shape) - len(cut))
    unknown = {axis for axes in cut for axis in axes} - set(mesh)
    if unknown:
        raise UserError(f"{where}: the axes of the mesh are {', '.join(mesh)}.")
    if len(cut) != len(tensor.shape) or not is_possible(tensor.shape, cut, mesh):
        raise UserError(f"{where}: the mesh {json.dumps(mesh)} does not divide it.")
    return cut
