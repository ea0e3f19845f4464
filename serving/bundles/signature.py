"""What a signature takes and gives, and the check of a request against it."""

import dataclasses
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from serving.errors import InvalidInput, shortened

Arrays = dict[str, np.ndarray]
COMPILED, PLAIN = "compiled", "serving_default"
LOG_PROB = "log_prob"
NUMBERS = "iuf"  # NumPy's kinds of what a tensor may be made from


def fastest(signatures: Container[str]) -> str:
    """The signature to make whole sounds or images with: the compiled one, where there is one."""
    return COMPILED if COMPILED in signatures else PLAIN


def scale_name(side: int) -> str:
    """The signature that draws a scale of an image, of that side, from the one before."""
    return f"scale_{side}"


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What an input must be, or an output is.

    shape: None where any size will do; the first axis is the batch. low, high: the least and the
    greatest value allowed. default: every value of the input where it is not given.
    """

    dtype: np.dtype
    shape: tuple[int | None, ...]
    low: float | None = None
    high: float | None = None
    default: float | None = None

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "TensorInfo":
        """What `to_dict` gave; ValueError, KeyError or TypeError for anything else."""
        shape = tuple(None if size == -1 else int(size) for size in stored["shape"])
        if not shape or shape[0] is not None:
            raise ValueError("the first axis must be the batch, -1")
        default = stored.get("optional_default")
        if default is not None and None in shape[1:]:
            raise ValueError("an input of any size can have no default")
        return cls(np.dtype(stored["dtype"]), shape, stored.get("low"), stored.get("high"), default)

    @property
    def sizes(self) -> list[int]:
        """Its shape as model.json and the protocols write it: -1 for any size."""
        return [-1 if size is None else size for size in self.shape]

    def to_dict(self) -> dict[str, Any]:
        """As model.json says it: -1 for any size, and no word of rules that there are not."""
        stored = {
            "dtype": self.dtype.name,
            "shape": self.sizes,
            "low": self.low,
            "high": self.high,
            "optional_default": self.default,
        }
        return {name: value for name, value in stored.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and the outputs of a function, by name."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Signature":
        """What `to_dict` gave; ValueError, KeyError or TypeError for anything else."""
        sides = [
            {name: TensorInfo.from_dict(info) for name, info in stored[side].items()}
            for side in ("inputs", "outputs")
        ]
        return cls(*sides)

    def to_dict(self) -> dict[str, Any]:
        """As model.json says it."""
        return {
            side: {name: info.to_dict() for name, info in getattr(self, side).items()}
            for side in ("inputs", "outputs")
        }


def check(signature: Signature, inputs: Mapping[str, Any]) -> Arrays:
    """The inputs as arrays of the signature's dtypes, every one of its names, defaults filled in.

    Whole numbers are taken for whole and for real ones, real numbers for real ones alone.

    Raises InvalidInput, which names the field and the rule, for an input that is missing, unknown,
    not rectangular, of another dtype or shape, out of range or not finite.
    """
    infos = {name: input_info(signature.inputs, name) for name in inputs}
    arrays = {name: checked(name, infos[name], inputs[name]) for name in inputs}
    rows = _rows(arrays)
    for name, info in signature.inputs.items():
        if name not in arrays:
            arrays[name] = _default(name, info, rows)
    return {name: arrays[name] for name in signature.inputs}


def input_info(inputs: Mapping[str, TensorInfo], name: str) -> TensorInfo:
    """What a signature says of an input; InvalidInput, with the names there are, if it has none."""
    if name not in inputs:
        raise InvalidInput(f"`{shortened(name)}` is no input; there are {', '.join(inputs)}.")
    return inputs[name]


def checked(name: str, info: TensorInfo, value: Any) -> np.ndarray:
    """One input as `check` gives it."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"`{name}` must be rectangular and of numbers.") from error
    array = _of_dtype(name, info.dtype, array)
    _check_shape(name, info.shape, array)
    _check_range(name, info, array)
    return array


def example(
    signature: Signature,
    rows: int,
    padded: Mapping[str, Mapping[str, Any]] | None = None,
    bucket: int = 1,
) -> Arrays:
    """Inputs that pass `check`: defaults, or else zeros moved into the range.

    Args:
      signature: whose inputs.
      rows: of the batch.
      padded: as in model.json; these inputs are as long as the bucket, and say so.
      bucket: their length; of any other axis of any size too.
    """
    lengths = {pad["length"] for pad in (padded or {}).values()}
    arrays = {}
    for name, info in signature.inputs.items():
        shape = (rows, *(bucket if size is None else size for size in info.shape[1:]))
        value = bucket if name in lengths else _value(info)
        arrays[name] = np.full(shape, value, info.dtype)
    return arrays


def _value(info: TensorInfo) -> float:
    if info.default is not None:
        return info.default
    low = -np.inf if info.low is None else info.low
    high = np.inf if info.high is None else info.high
    return min(max(0, low), high)


def _of_dtype(name: str, dtype: np.dtype, array: np.ndarray) -> np.ndarray:
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in NUMBERS or (dtype.kind in "iu" and array.dtype.kind == "f"):
        raise InvalidInput(f"`{name}` must be {dtype.name}, got {_kind(array)}.")
    if dtype.kind in "iu" and array.size:
        limits, least, greatest = np.iinfo(dtype), int(array.min()), int(array.max())
        if least < limits.min or greatest > limits.max:
            raise InvalidInput(
                f"`{name}` must be {dtype.name}, got {least if least < limits.min else greatest}."
            )
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
        return array.astype(dtype)


def _kind(array: np.ndarray) -> str:
    return "text" if array.dtype.kind in "US" else array.dtype.name


def _check_shape(name: str, shape: tuple[int | None, ...], array: np.ndarray) -> None:
    if not _fits(shape, array.shape):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        found = ", ".join(map(str, array.shape))
        turned = array.ndim > 1 and _fits(shape, np.swapaxes(array, -1, -2).shape)
        hint = ": it is transposed" if turned else ""
        raise InvalidInput(f"`{name}` must have the shape [{wanted}], got [{found}]{hint}.")
    if not array.size:
        raise InvalidInput(f"`{name}` must not be empty, got {list(array.shape)}.")


def _fits(shape: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    return len(shape) == len(found) and all(
        size in (None, there) for size, there in zip(shape, found, strict=True)
    )


def _check_range(name: str, info: TensorInfo, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InvalidInput(f"`{name}` must be finite, got {array[tuple(where)]} at {where}.")
    least, greatest = array.min(), array.max()
    if info.low is not None and least < info.low:
        raise InvalidInput(f"`{name}` must be {_span(info)}, got {_shown(least)}.")
    if info.high is not None and greatest > info.high:
        raise InvalidInput(f"`{name}` must be {_span(info)}, got {_shown(greatest)}.")


def _shown(value: Any) -> str:
    """A number of an array, in few digits where it is no whole one."""
    return f"{value:g}" if value.dtype.kind == "f" else str(value)


def _span(info: TensorInfo) -> str:
    if info.low is None:
        return f"at most {info.high:g}"
    if info.high is None:
        return f"at least {info.low:g}"
    return f"between {info.low:g} and {info.high:g}"


def _rows(arrays: Arrays) -> int:
    """The size of the batch, one where nothing is given."""
    first, rows = next(((name, len(array)) for name, array in arrays.items()), ("", 1))
    for name, array in arrays.items():
        if len(array) != rows:
            raise InvalidInput(f"`{name}` must have {rows} rows as `{first}`, got {len(array)}.")
    return rows


def _default(name: str, info: TensorInfo, rows: int) -> np.ndarray:
    if info.default is None:
        raise InvalidInput(f"`{name}` must be given.")
    shape = (rows, *(size or 0 for size in info.shape[1:]))  # of known size: it has a default
    return np.full(shape, info.default, info.dtype)
