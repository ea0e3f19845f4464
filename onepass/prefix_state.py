"""`PrefixState`: a prefix that a model has read, to be continued any number of times."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onepass.foundation.files import open_plain
from onepass.foundation.rules import UserError

FORMAT = 1
METADATA, KEY = "__metadata__", "onepass"  # where a safetensors file keeps the description
ELEMENTS = "elements"


class Kept(NamedTuple):
    """The tensors that a sampler holds after the first `length` elements of the prefix."""

    length: int
    arrays: list[np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class PrefixState:
    """A prefix that a model has read, from `model.read`; `sample` and `stream` take it as `state`.

    Attributes:
      elements: the prefix, [n, ...].
      model: digest of the model that has read it, with its weights.
      condition: digest of the condition during the prefix.
      kept: what samplers hold after the prefix. The caches of attention have room for rows of some
        length, so rows of a much different one read the prefix once more, and add to this list.
    """

    elements: np.ndarray
    model: str
    condition: str
    kept: list[Kept] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.elements)

    def check_model(self, digest: str) -> None:
        """Raise UserError unless the model with this digest has read the prefix."""
        if self.model != digest:
            raise UserError(
                "`state` must be of the model that draws, with its present weights, got one of"
                " another model or other weights."
            )

    def check_condition(self, digest: str) -> None:
        """Raise UserError unless the prefix was read with the condition with this digest."""
        if self.condition != digest:
            raise UserError(
                f"`condition` must be, for the {len(self)} elements of `state`, the one with which"
                " they were read."
            )

    def save(self, path: Path | str) -> None:
        """Write the state to a safetensors file, whose metadata describe it as JSON."""
        import safetensors.numpy

        from onepass.foundation.files import replacing  # a bundle runs without it

        arrays = self._arrays()
        kinds = {name: array.dtype.name for name, array in arrays.items()}
        about = {
            "format": FORMAT,
            "model": self.model,
            "condition": self.condition,
            "lengths": [each.length for each in self.kept],
            "dtypes": kinds,
            "sha256": digest_of(arrays),
        }
        try:
            content = safetensors.numpy.save(arrays, {KEY: json.dumps(about)})
        except safetensors.SafetensorError as error:
            raise UserError(f"The state cannot be stored: {error}.") from error
        with replacing(path) as temporary:
            temporary.write_bytes(content)

    @classmethod
    def load(cls, path: Path | str) -> "PrefixState":
        """Return the state that `save` wrote; raise UserError for a missing or damaged file."""
        path = Path(path)
        try:
            with open_plain(path) as file:
                return cls._parse(file.read())
        except FileNotFoundError as error:
            raise UserError(f"{path}: no such file.") from error
        except (MemoryError, UserError):
            raise
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or 'it cannot be read'}.") from error
        except Exception as error:  # its type depends on the damaged byte
            raise UserError(
                f"{path} is damaged: it is not the state of a prefix that was saved."
            ) from error

    @classmethod
    def _parse(cls, content: bytes) -> "PrefixState":
        import ml_dtypes  # noqa: F401 - gives NumPy the type bfloat16
        import safetensors

        found = dict(safetensors.deserialize(content))
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header[METADATA][KEY])
        if about["format"] != FORMAT:
            raise ValueError(about["format"])
        arrays = {
            name: np.frombuffer(each["data"], np.dtype(about["dtypes"][name])).reshape(
                each["shape"]
            )
            for name, each in found.items()
        }
        if digest_of(arrays) != about["sha256"]:
            raise ValueError(about["sha256"])
        kept: list[Kept] = []
        for place, length in enumerate(about["lengths"]):
            names = sorted(int(n.split("/")[1]) for n in arrays if n.startswith(f"{place}/"))
            kept.append(Kept(int(length), [arrays[f"{place}/{n}"] for n in names]))
        return cls(arrays[ELEMENTS], str(about["model"]), str(about["condition"]), kept)

    def _arrays(self) -> dict[str, np.ndarray]:
        found = {ELEMENTS: np.ascontiguousarray(self.elements)}
        for place, each in enumerate(self.kept):
            for n, array in enumerate(each.arrays):
                # Not `ascontiguousarray`, which gives a scalar an axis.
                found[f"{place}/{n}"] = np.require(array, requirements="C")
        return found


def digest_of(arrays: Mapping[str, Any], about: str = "") -> str:
    """Return the SHA-256, in hexadecimal digits, of a text and of arrays by name."""
    whole = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        whole.update(f"\n{name} {array.dtype.name} {list(array.shape)}\n".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()
