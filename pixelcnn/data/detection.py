"""Detection of the format of a source's images: grey or colour, and bits per level."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from onepass.foundation.files import list_files
from pixelcnn.config import SOFTMAX, AnyTrainConfig
from pixelcnn.data.image_file import ARRAY, EIGHT, depth_of, formats, min_log_scale_of, suffixes
from pixelcnn.data.sources import pair

GREY_MODES = {"1", "L", "LA", "La"}
LOOKED_AT = 200  # maximum number of images to inspect, evenly spaced by name


class Stored(NamedTuple):
    """The format of a source's images: 3 channels if any has colour, and bits per level."""

    channels: int
    bits: int


def detect_format(source: str | Path) -> Stored | None:
    """Return the format of a source's images, by up to `LOOKED_AT` of them, or None if unknown."""
    path = Path(source)
    if str(source).startswith("tfds:") or not path.exists():
        return None
    with contextlib.suppress(Exception):  # errors are reported when the images are read later
        files = [path] if path.is_file() else list(pair(path) or ())
        found = [_of_array(each) for each in files] if files else _of_folder(path)
        if found:
            highest = max(each for _, each in found)
            return Stored(max(channels for channels, _ in found), depth_of(highest))
    return None


def _of_folder(folder: Path) -> list[tuple[int, int]]:
    names, _ = list_files(folder)
    names = sorted(name for name in names if Path(name).suffix.lower() in suffixes())
    chosen = np.linspace(0, len(names) - 1, min(LOOKED_AT, len(names))).astype(int)
    found = []
    for place in chosen:
        with contextlib.suppress(Exception):  # a broken image is left out when it is read
            found.append(_of_image(folder / names[place]))
    return found


def _of_image(path: Path) -> tuple[int, int]:
    if path.suffix.lower() == ARRAY:
        return _of_array(path, single=True)
    with Image.open(path, formats=formats()) as opened:
        if opened.mode.startswith("I"):
            return 1, int(np.asarray(opened).max())
        return (1 if opened.mode in GREY_MODES else 3), 2**EIGHT - 1


def _of_array(path: Path, single: bool = False) -> tuple[int, int]:
    stored: Any = np.load(path, allow_pickle=False, mmap_mode="r")
    images = stored["images"] if path.suffix == ".npz" else stored
    channels = 1 if images.ndim == (2 if single else 3) else images.shape[-1]
    return channels, int(images.max()) if images.dtype != np.uint8 else 2**EIGHT - 1


def detect_options(config: AnyTrainConfig, arguments: Sequence[str]) -> list[str]:
    """Return the options for channels and bits that a preset's command line leaves out.

    A value for `--data.channels` or `--output.channels` applies to both. Otherwise the values come
    from the run to resume, or are detected: grey if no image has colour, and the depth of grey
    images if the output is a mixture of logistics.
    """
    said = _parse_options(arguments)
    if "data" not in said or config.conditioning.kind == "video":
        return []
    found = _of_run(said.get("workdir")) or detect_format(said["data"]) or Stored(3, EIGHT)
    channels = config.data.channels if config.data.channels == 1 else found.channels
    channels = int(said.get("data.channels", said.get("output.channels", channels)))
    linear = said.get("output.likelihood", config.output.likelihood) != SOFTMAX
    bits = config.data.bits
    if "output.levels" not in said:
        bits = int(said.get("data.bits", found.bits if channels == 1 and linear else bits))
    wanted: dict[str, tuple[Any, Any]] = {
        "data.channels": (config.data.channels, channels),
        "output.channels": (config.output.channels, channels),
        "data.bits": (config.data.bits, bits),
        "output.levels": (config.output.levels, 2**bits),
    }
    if bits > EIGHT:
        wanted["output.min-log-scale"] = (None, round(min_log_scale_of(bits), 3))
    changed = {name: new for name, (old, new) in wanted.items() if old != new and name not in said}
    return [word for name, value in changed.items() for word in (f"--{name}", str(value))]


def _parse_options(arguments: Sequence[str]) -> dict[str, str]:
    said = {}
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            said[name[2:].replace("_", "-")] = value if equals else following
    return said


def _of_run(workdir: str | None) -> Stored | None:
    with contextlib.suppress(OSError, RecursionError, ValueError, KeyError, TypeError):
        data = json.loads((Path(workdir or "") / "config.json").read_text(encoding="utf-8"))["data"]
        return Stored(int(data["channels"]), int(data.get("bits", EIGHT)))
    return None
