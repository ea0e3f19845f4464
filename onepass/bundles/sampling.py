"""Sampling and log probabilities by a model's signatures, in this process or on a server."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from onepass.bundles.errors import InvalidInput, shorten_text
from onepass.bundles.signature import (
    STATE,
    Arrays,
    Signature,
    TensorInfo,
    check_input,
    condition_arrays,
    first_states,
    has_named,
    is_timed,
    names_of,
    scale_name,
)
from onepass.foundation.rules import (
    UserError,
    check_draw_length,
    check_flag,
    check_seed,
    check_unmasked,
    dataclass_from,
    must_be,
    whole_number,
)
from onepass.interface import LISTS, OPTIONS, Draw, Model

LAST_ROW = 2**31 - 1  # largest row number of a seed


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of a call that generates rows of a model, in a bundle or on a server.

    A row has the `shape` (time,) or (height, width, channels); the elements of a segment depend on
    up to `side_frames` frames before and after it.
    """

    num: int
    shape: tuple[int, ...]
    seed: int
    conditions: Arrays
    draw: Draw
    first_row: int
    hop_samples: int
    side_frames: int

    @property
    def temperature(self) -> np.ndarray:
        """The temperature of each row, float32 [num]."""
        return np.broadcast_to(np.asarray(self.draw.temperature, np.float32), [self.num])

    def inputs(
        self, known: Mapping[str, TensorInfo], rows: np.ndarray, first: int, count: int
    ) -> Arrays:
        """Return a signature's inputs for rows, with `count` elements starting at `first`."""
        size = len(rows)
        heat = self.temperature[rows].reshape([size] + [1] * (len(known["temperature"].shape) - 1))
        inputs = noise_inputs(known, self.seed, rows + self.first_row, heat)
        for name, array in self.conditions.items():
            if name == "frames":
                inputs |= self._frames(known, array[rows], first, first + count)
            else:
                timed = name in known and is_timed(known[name])
                inputs[name] = array[rows, first : first + count] if timed else array[rows]
        for name, value in (("num_samples", count), ("start", first)):
            if name in known:
                inputs[name] = np.full([size], value, np.int32)
        for name, kind in self.draw.asked().items():
            if kind.is_prompted and name in known:
                given = kind.arrays(getattr(self.draw, name), name, rows, first, count)
                for each, array in given.items():
                    inputs[each] = as_elements(known[each], array, each) if each in LISTS else array
        return inputs

    def _frames(self, known: Mapping[str, TensorInfo], frames: Any, first: int, end: int) -> Arrays:
        low, high = first // self.hop_samples, -(-end // self.hop_samples)
        before = min(low, self.side_frames)
        after = max(0, min(frames.shape[1] - high, self.side_frames))
        counts = {"frames_before": before, "num_frames": high - low, "frames_after": after}
        if "frames_before" not in known:  # a whole row, whose neighbours are part of it
            counts = {"num_frames": sum(counts.values())}
        window = frames[:, low - before : high + after]
        arrays = {name: np.full([len(frames)], value, np.int32) for name, value in counts.items()}
        return {"frames": window, **arrays}


def noise_inputs(known: Mapping[str, TensorInfo], seed: int, rows: Any, temperature: Any) -> Arrays:
    """Return the noise's inputs; the temperature is [rows], [rows, 1], [scales] or [1]."""
    sides = [len(rows), *(side or 1 for side in known["temperature"].shape[1:])]
    return {
        "seed": np.full([len(rows)], seed, np.uint64),
        "row": np.array(rows, np.int32),
        "temperature": np.full(sides, temperature, np.float32),
    }


def as_elements(info: TensorInfo, elements: Any, name: str = "elements") -> np.ndarray:
    """Return elements in the input's dtype; text, and floats for integers, stay for the check."""
    check_unmasked(elements, name)
    array = np.asarray(elements)
    if array.dtype.kind in "iu" and info.dtype.kind == "i" and array.size:
        limits, least, greatest = np.iinfo(info.dtype), array.min(), array.max()
        if least < limits.min or greatest > limits.max:
            raise ValueError(f"`{name}` must be {info.dtype}, got {least} to {greatest}.")
    is_real = array.dtype.kind not in "iu" and info.dtype.kind == "i"
    return array if is_real or array.dtype.kind in "USO" else array.astype(info.dtype)


BATCHES = range(1, 9)  # numbers of rows in a call to a server, which batches them itself
OTHERS = ("num_samples", "log_prob", "ended")  # outputs other than the elements and the state
OWN_OPTIONS = frozenset({*OPTIONS, "row", "return_log_prob"})  # of a user's model


class Sampling(Model):
    """Base class of models that generate by calling signatures, here or on a server.

    `spec` is model.json or the server's description; `problem`, the error for invalid arguments.
    """

    name: str
    spec: dict[str, Any]
    problem: ClassVar[type[Exception]] = UserError

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise a ValueError or InvalidInput of the block as an error of type `problem`."""
        try:
            yield
        except (ValueError, InvalidInput) as error:
            raise self.problem(str(error)) from error

    def check_options(self, **options: Any) -> None:
        """See `Model.check_options`; the error has the type `problem`."""
        with self._own_errors():
            super().check_options(**options)

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as the program takes them."""
        raise NotImplementedError

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        raise NotImplementedError

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        raise NotImplementedError

    def _draw_rows(self, draw: Draw, for_all: bool = False) -> Any:
        """Return whole rows, and their log-probabilities if the draw asks for them."""
        with self._own_errors():
            return_log_prob = check_flag(draw.return_log_prob, "return_log_prob")
        elements, nats = self._elements(self._request(draw, for_all), return_log_prob)
        if not return_log_prob:
            return elements
        return elements, self.log_prob(elements, draw.condition) if nats is None else nats

    def _elements(self, request: Request, with_nats: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return whole rows, and their log-probabilities where a program has both."""
        signature = self._signature_for(request, "compiled", "prompted")
        with_nats &= signature == "prompted"
        known, outputs = self._inputs_of(signature), []
        for rows, count in self._groups(request.num):
            with self._own_errors():
                inputs = request.inputs(known, rows, 0, request.shape[0])
            if with_nats:
                inputs["return_log_prob"] = np.ones([len(rows)], np.int32)
            made = self._outputs_of_request(signature, inputs, request)
            outputs.append({name: array[:count] for name, array in made.items()})
        elements = np.concatenate([only_output(each) for each in outputs]).astype(self._dtype)
        if request.hop_samples > 1:  # of whole frames
            elements = elements[:, : request.shape[0]]
        if elements.shape[1:] != request.shape:  # a program of one shape reads no length
            wanted = elements.shape[1:] if elements.ndim > 2 else elements.shape[1]
            got = request.draw.length
            raise self.problem(f"`length` must be {wanted}, as exported, got {got}.")
        return elements, np.concatenate([x["log_prob"] for x in outputs]) if with_nats else None

    def _request(self, draw: Draw, for_all: bool = False) -> Request:
        """Return a checked request, for all of whose rows one of a condition may stand."""
        if draw.length is None and "picture" in (self.spec.get("makes"), self.spec.get("kind")):
            size, channels = self.spec["size"], self.spec["channels"]  # fixed by the export
            draw = dataclasses.replace(draw, length=(size, size, channels))
        order = self.spec.get("order", "time" if np.ndim(draw.length) == 0 else "raster")
        side = self._inputs_of("chunk").get("frames_before")
        side_frames = 0 if side is None else int(side.high or 0)
        with self._own_errors():
            num, shape = whole_number(draw.num, "num"), check_draw_length(draw.length, order)
            row = whole_number(draw.row, "row", 0)
            if row + num - 1 > LAST_ROW:
                raise ValueError(must_be("row", f"at most {LAST_ROW} for the last row", row))
            seed, draw = check_seed(draw.seed), draw.checked(num, shape[0], order)
            conditions = self._conditions(draw, num, shape[0], for_all)
        hop = self.spec.get("hop_samples", 1)
        return Request(num, shape, seed, conditions, draw, row, hop, side_frames)

    def _conditions(self, draw: Draw, rows: int, length: int, for_all: bool) -> Arrays:
        known = self._inputs_of("compiled")
        names = names_of(self.spec, known)
        return condition_arrays(draw.condition, names, known, rows, length, for_all)

    def log_prob(
        self,
        elements: Any,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
        weights: str = "float32",
    ) -> np.ndarray:
        """See `Model.log_prob`; only a user's model has the signature."""
        known = self._inputs_of("log_prob")
        if not known:
            raise UserError(f"The model `{self.name}` has no log-probabilities.")
        narrow = None if weights == "float32" else weights
        self.check_options(lengths=lengths, speaker=speaker, weights=narrow)
        self._check_weights(weights)
        with self._own_errors():
            given = {"elements": as_elements(known["elements"], elements)}
            sizes = np.shape(given["elements"])[:2]
            if len(sizes) == 2:
                names = names_of(self.spec, known)
                given |= condition_arrays(condition, names, known, sizes[0], sizes[1])
        most = BATCHES[-1]
        parts = [
            self._outputs("log_prob", {n: x[first : first + most] for n, x in given.items()})
            for first in range(0, max(1, len(given["elements"])), most)
        ]
        return np.concatenate([part["log_prob"] for part in parts])

    def _check_weights(self, weights: str) -> None:
        """Raise UserError for other weights than a server's; the default stands for those."""

    def stream_chunks(self, request: Request, chunk: int, opening: int = 0) -> Iterator[np.ndarray]:
        """Return an iterator over the next elements of sequences [num, n], as they are generated.

        It ends early once all rows have ended. `chunk`, and `opening` for the first one, are
        rounded up to a multiple of the model's unit.
        """
        if not self._inputs_of("chunk"):
            raise self.problem(f"The model `{self.name}` cannot stream: call `sample`.")
        signature = self._signature_for(request, "chunk", "prompted_chunk")
        with self._own_errors():
            chunk = whole_number(chunk, "chunk")
        length, most = request.shape[0], self.spec.get("max_length", request.shape[0])
        if length > most:
            raise self.problem(f"`length` must be at most {most}, as exported, got {length}.")
        unit, known = int(self.spec["unit_samples"]), self._inputs_of(signature)
        opening, chunk = (-(-size // unit) * unit for size in (opening or chunk, chunk))
        groups = [_Following(known, rows, count) for rows, count in self._groups(request.num)]

        def parts() -> Iterator[np.ndarray]:
            first, size = 0, opening
            while first < length and not all(group.ended.all() for group in groups):
                count, made = min(size, length - first), []
                for group in groups:
                    with self._own_errors():
                        inputs = request.inputs(known, group.rows, first, count)
                    outputs = self._outputs(signature, inputs | group.state)
                    made.append(group.keep_chunk(outputs, count))
                yield np.concatenate(made).astype(self._dtype)
                first, size = first + count, chunk

        return parts()

    @property
    def _dtype(self) -> str:
        return (self.spec.get("elements") or {}).get("dtype", "float32")

    @property
    def _is_own(self) -> bool:
        return isinstance(self.spec.get("elements"), dict)

    def _groups(self, num: int) -> Iterator[tuple[np.ndarray, int]]:
        sizes = sorted(self.spec.get("serving", {}).get("allowed_batches", BATCHES))
        for first in range(0, num, sizes[-1]):
            count = min(sizes[-1], num - first)
            size = next(size for size in sizes if size >= count)
            rows = np.arange(first, first + size, dtype=np.int32)
            yield np.minimum(rows, first + count - 1), count

    def _outputs_of_request(self, signature: str, inputs: Arrays, request: Request) -> Arrays:
        return self._outputs(signature, inputs)

    def _signature_for(self, request: Request, plain: str, prompted: str) -> str:
        asked = request.draw.asked().items()
        words = [f"`{name}`" for name, kind in asked if kind.is_prompted]
        if not words:
            return plain
        known = self._inputs_of(prompted)
        if not known:
            raise self.problem(
                f"`{self.name}` takes no {' and no '.join(words)}: its bundle has no"
                f" signature `{prompted}`. Export the model again with this version; a student,"
                " and a model in raster order that is not over tokens, has none."
            )
        for name, kind in asked:
            if name not in known and kind.needs_tokens:
                raise self.problem(f"`{name}` needs a distribution over tokens.")
            if name not in known and kind.needs_levels:
                needed = "a model of integer symbols, got one of real numbers."
                raise self.problem(f"`{name}` needs {needed}")
        return prompted


class _Following:
    """A call's rows in a stream, `count` of them requested and the rest repeats of the last."""

    def __init__(self, known: Mapping[str, TensorInfo], rows: np.ndarray, count: int):
        self.rows, self._count = rows, count
        self.state = first_states(known, len(rows))
        self.ended = np.zeros([count], bool)
        self._last = np.zeros([count, 1])

    def keep_chunk(self, outputs: Arrays, count: int) -> np.ndarray:
        """Return the next elements [rows, count]; a row that has ended repeats its last element."""
        self.state = {name: outputs[name] for name in self.state}
        made = only_output(outputs)[: self._count, :count]
        made = np.where(self.ended[:, np.newaxis], self._last.astype(made.dtype), made)
        self._last = made[:, -1:]
        if "ended" in outputs:
            self.ended |= outputs["ended"][: self._count].astype(bool)
        return made


def only_output(outputs: Arrays) -> np.ndarray:
    """Return the elements, of images the largest scale, among a signature's unordered outputs."""
    if "picture" in outputs:
        return outputs["picture"]
    (name,) = (n for n in outputs if n not in OTHERS and not n.startswith(STATE))
    return outputs[name]


CONDITIONS = {"label": "class", "caption": "caption", "map": "map"}  # name in requests per input
NUMBER = re.compile(r"[0-9]{1,9}")


def image_inputs(
    known: Mapping[str, TensorInfo],
    seed: int,
    rows: Sequence[int] | np.ndarray,
    temperature: float | Sequence[float] = 1.0,
    guidance: float = 0.0,
    condition: Mapping[str, np.ndarray] | None = None,
) -> Arrays:
    """Return the inputs of a batch of images; raise InvalidInput, or ValueError for the seed."""
    count, scales = len(rows), known["temperature"].shape[1] or 1
    each = np.atleast_1d(temperature)
    if len(each) not in (1, scales):
        raise InvalidInput(f"`temperature` must be one number or {scales}, got {len(each)}.")
    inputs = noise_inputs(known, check_seed(seed), rows, each)
    if "guidance" in known:
        inputs["guidance"] = np.full([count], guidance, np.float32)
    elif guidance:
        raise InvalidInput("`guidance` must be 0: the model has no null condition.")
    for name, value in (condition or {}).items():
        inputs[name] = np.repeat(value, count // len(value), 0)
    return inputs


def condition_rows(
    name: str,
    values: Sequence[Any],
    classes: Sequence[str] = (),
    info: TensorInfo | None = None,
    field: str = "label",
) -> Arrays:
    """Return the conditions of images as an input by its name, with one row per image.

    A value is a class (name or index), a caption, or a map int [side, side]; `info`, of the input
    in the signature, limits the index of a class.
    """
    if name == "label":
        labels = [_label_index(field, each, classes, info) for each in values]
        return {name: np.array(labels, np.int32)}
    if name != "caption":
        return {name: np.stack(values)}
    from pixelcnn.data.captions import encode_caption

    try:
        return {name: np.stack([encode_caption(str(each)) for each in values])}
    except UserError as error:
        raise InvalidInput(str(error)) from error


def scales_of(outputs: Mapping[str, np.ndarray], row: int) -> list[np.ndarray]:
    """Return the scales of image `row` of a batch, smallest first; the last is the whole image."""
    whole = outputs["picture"][row]
    scales = [value[row] for name, value in outputs.items() if name.startswith("picture_")]
    smaller = [pixels for pixels in scales if len(pixels) < len(whole)]
    return [*sorted(smaller, key=len), whole]


def _label_index(field: str, value: Any, classes: Sequence[str], info: TensorInfo | None) -> int:
    """Return the index of a class, given by name (in upper or lower case) or by index."""
    value = int(value) if isinstance(value, np.integer) else value
    word = str(value).strip()
    if word in classes:
        return classes.index(word)
    names = {name.casefold(): index for index, name in reversed(list(enumerate(classes)))}
    if word.casefold() in names:
        return names[word.casefold()]
    high = len(classes) - 1 if classes or info is None else int(info.high or 0)
    if type(value) in (int, str) and NUMBER.fullmatch(word) and (int(word) <= high or high < 0):
        return int(word)
    got = f"got `{shorten_text(word)}`; {classes_of(classes)}."
    raise InvalidInput(f"`{field}` must be a class, {got}")


def classes_of(classes: Sequence[str]) -> str:
    """Return a clause for messages that lists the known classes."""
    return f"there are {', '.join(classes)}" if classes else "the classes have numbers"


Condition = int | str | np.ndarray | Arrays | None
# For each kind of condition: its description, its input, and its types.
NEEDS: dict[str, tuple[str, str, Any]] = {
    "class": ("a class", "label", int | np.integer | str),
    "text": ("a caption", "caption", str),
    "map": ("a map of labels", "map", np.ndarray),
    "video": ("a dict of its `past`, `action` and `state`", "past", dict),
}

IMAGE_OPTIONS = frozenset({"temperature", "prefix", "guidance", "row", "scales"})


class ImageSampling(Sampling):
    """Methods of a bundle whose signatures have the output `picture`."""

    signatures: dict[str, Signature]

    @property
    def size(self) -> int:
        """Height and width of the images, in pixels."""
        return self.spec["size"]

    @property
    def channels(self) -> int:
        """Number of channels: 1 for grey, 3 for RGB."""
        return self.spec["channels"]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes by index; empty if they have no names."""
        return tuple(self.spec["classes"])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Height and width of each scale, smallest first; a PixelCNN has one scale."""
        outputs = self.signatures["compiled"].outputs.values()
        return tuple(sorted({info.shape[1] or self.size for info in outputs}))

    def _images(self, draw: Draw) -> Iterator[list[np.ndarray]]:
        if "picture" not in self.signatures["compiled"].outputs:
            raise InvalidInput(f"The model `{self.name}` draws no images.")
        if draw.length not in (None, self.size, (self.size, self.size, self.channels)):
            raise InvalidInput(f"`length` must be {self.size}, as exported, got {draw.length}.")
        with self._own_errors():
            num, first = whole_number(draw.num, "num"), whole_number(draw.row, "row", 0)
        given = draw.condition
        conditions = list(given) if isinstance(given, list | tuple) else [given] * num
        if len(conditions) != num:
            raise InvalidInput(f"`condition` must be one or {num}, got {len(conditions)}.")
        heat = 1.0 if draw.temperature is None else draw.temperature
        calls = [
            self.inputs(value, draw.seed, row, heat, draw.prefix, draw.guidance)
            for row, value in enumerate(conditions, first)
        ]
        return (self._scales(signature, inputs) for signature, inputs in calls)

    def inputs(
        self,
        condition: Condition = None,
        seed: int = 0,
        row: int = 0,
        temperature: float | Sequence[float] = 1.0,
        prefix: np.ndarray | None = None,
        guidance: float = 0.0,
    ) -> tuple[str, Arrays]:
        """Return the name of the signature that draws an image, and its checked inputs for one row.

        A prefix is a small image [side, side, channels] to enlarge (multiscale), or pixels [n,
        channels] or rows [rows, size, channels] to begin with (PixelCNN), uint8.
        """
        known, given = self.signatures["compiled"].inputs, self.condition(condition)
        signature, begun = "compiled", dict[str, Any]()
        if prefix is not None:
            signature, begun = self._continue_prefix(np.asarray(prefix))
        with self._own_errors():
            inputs = image_inputs(known, seed, [row], temperature, guidance, given)
        return signature, self.check(signature, inputs | begun)

    def _continue_prefix(self, prefix: np.ndarray) -> tuple[str, dict[str, Any]]:
        channels, size = self.channels, self.size
        if sides := self.sizes[:-1]:
            if prefix.ndim != 3 or prefix.shape[0] != prefix.shape[1] or len(prefix) not in sides:
                raise InvalidInput(
                    f"The image to start from must be square with a side of "
                    f"{' or '.join(map(str, sides))} pixels, got {list(prefix.shape)}."
                )
            return scale_name(2 * len(prefix)), {"start": prefix[None]}
        if "complete" not in self.signatures:
            raise InvalidInput("Only a PixelCNN can complete an image from its first pixels.")
        if prefix.ndim == 3 and prefix.shape[1] != size:
            raise InvalidInput("A PixelCNN cannot enlarge an image; a multiscale model can.")
        if prefix.ndim not in (2, 3) or prefix.shape[-1] != channels:
            rule = f"[n, {channels}], or [rows, {size}, {channels}]"
            raise InvalidInput(f"`prefix` must be pixels {rule}, got {list(prefix.shape)}.")
        pixels = prefix.reshape(-1, channels)
        if len(pixels) > size**2:
            raise InvalidInput(f"`prefix` must have at most {size**2} pixels, got {len(pixels)}.")
        image = np.zeros([size**2, channels], prefix.dtype)
        image[: len(pixels)] = pixels
        whole = image.reshape(1, size, size, channels)
        return "complete", {"given": whole, "given_count": [len(pixels)]}

    def condition(self, value: Condition) -> Arrays:
        """Return the inputs for the condition of one image, with a batch axis."""
        if has_named(self.spec):
            raise InvalidInput(f"`{self.name}` has conditions by name: call `sample`.")
        kind = self.spec["condition"]
        if kind == "none":
            if value is not None:
                raise InvalidInput("The model draws without a condition.")
            return {}
        words, name, types = NEEDS[kind]
        if not isinstance(value, types):
            raise InvalidInput(f"The model needs {words}.")
        if isinstance(value, dict):
            return {each: np.asarray(array)[None] for each, array in value.items()}
        info = self.signatures["compiled"].inputs[name]
        return condition_rows(name, [value], self.classes, info, "condition")

    def _scales(self, signature: str, inputs: Arrays) -> list[np.ndarray]:
        if "start" not in inputs:
            return scales_of(self._outputs(signature, inputs), 0)
        scales = [inputs["start"][0]]
        while len(scales[-1]) < self.size:
            enlarged = inputs | {"start": scales[-1][None]}
            outputs = self._outputs(scale_name(2 * len(scales[-1])), enlarged)
            scales.append(outputs["picture"][0])
        return scales


CHUNK_SAMPLES = 32_000  # approximate
SOUND_OPTIONS = frozenset({"temperature", "speaker", "refine", "row"})


def check_speaker(known: Sequence[str], name: str | None) -> None:
    """Raise InvalidInput if the model has no speaker called `name`; None is always valid."""
    if name is not None and name not in known:
        rule = f"one of {', '.join(known)}, got `{shorten_text(name)}`"
        one_voice = "`speaker` must not be given: the model has one voice."
        raise InvalidInput(f"`speaker` must be {rule}." if known else one_voice)


def restore_level(sound: np.ndarray, condition: Any) -> np.ndarray:
    """Scale a sound to its recording's level, if `condition` consists of a recording's frames."""
    if not (gain_db := getattr(condition, "gain_db", 0.0)):
        return sound
    # Such frames come from `wavenet`, which a bundle does not need otherwise.
    from wavenet.data.audio import at_recorded_level

    return at_recorded_level(sound, gain_db)


def front_of(spec: Mapping[str, Any]) -> Any:
    """Return the `SoundFront` of the model that a bundle's model.json describes."""
    from wavenet.config import DataConfig
    from wavenet.data.audio import level_of
    from wavenet.front import SoundFront

    data = dataclass_from(DataConfig, spec["config"]["data"])
    speakers, level_db = tuple(spec["speakers"]), level_of(spec)
    return SoundFront(data, spec["hop_samples"], spec["gain_db"], speakers, level_db)


def check_convention(spec: Mapping[str, Any], frames: np.ndarray) -> None:
    """Raise InvalidInput if frames [frames, channels] are unlike those of the training data.

    Nothing is checked for a model without mel frames or, as in older bundles, their statistics.
    """
    from wavenet.config import MelConvention
    from wavenet.features.frames import read_statistics, unlike

    trained, stored = read_statistics(spec), (spec.get("features") or {}).get("mel")
    if trained is None or not stored or not frames.size:
        return
    mel = MelConvention.from_dict(stored)
    why = unlike(frames[:, : mel.bands], trained, mel)
    if why:
        raise InvalidInput(
            f"`frames` are of another convention: {why}; as 1 - mel / {mel.silence:.3f}. Use "
            "`force` to speak them anyway."
        )


def check_rows(spec: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> None:
    """Apply `check_convention` to each row's first `num_frames` of the input `frames`."""
    for frames, count in zip(inputs.get("frames", ()), inputs.get("num_frames", ()), strict=False):
        check_convention(spec, frames[:count])


class SoundSampling(Sampling):
    """Methods of a bundle that has the signature `chunk`."""

    _engine: Any  # an `Engine`, or None

    @property
    def sample_rate_hz(self) -> Any:
        """Sample rate of the model's sound, in Hz; None if it does not generate sound."""
        return self.spec.get("sample_rate_hz")

    @property
    def hop_samples(self) -> int:
        """Hop length of the frames, in samples; 1 for a model without frames."""
        return self.spec.get("hop_samples", 1)

    @property
    def conditional(self) -> bool:
        """True if the model generates sound from frames."""
        return "frames" in self._inputs_of("compiled")

    @property
    def known_speakers(self) -> tuple[str, ...]:
        """Names of the model's speakers, by index; empty for a model without speakers."""
        info = self._inputs_of("compiled").get("speaker")
        return () if info is None else tuple(self.spec["speakers"][: int(info.high or 0) + 1])

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames of a recording, float32 [samples], at its stored level and rate.

        The frames, float32 [frames, channels], keep that level, and `sample` scales its audio to
        it. This method needs the package `wavenet`.
        """
        if not self.conditional or "config" not in self.spec:  # the condition is the user's own
            raise UserError(f"`{self.name}` reads no frames of a recording.")
        try:
            front = front_of(self.spec)
        except ImportError as error:
            raise UserError(f"Features of a recording need the package {error.name}.") from error
        return front.frames(waveform)

    def _draw_sounds(self, draw: Draw) -> np.ndarray:
        draw = self._read_recording(draw)
        refine, _ = self._refinement(draw)
        sound = refine(iter([self._draw_rows(draw, for_all=True)]))
        return restore_level(np.concatenate(list(sound), axis=1), draw.condition)

    def _elements(self, request: Request, with_nats: bool) -> tuple[np.ndarray, np.ndarray | None]:
        if self._engine is not None:
            return self._engine.whole(request), None
        return super()._elements(request, with_nats)

    def _stream_rows(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        """Return an iterator over sounds in chunks, of which the first is short to arrive early.

        The refining passes run after the program, whose signatures return unrefined audio. A single
        row may be given for all rows even in a condition with a time axis.
        """
        if not self._inputs_of("chunk"):
            raise InvalidInput(f"The model `{self.name}` cannot stream: call `sample`.")
        draw = self._read_recording(draw)
        request = self._request(draw, for_all=True)
        with self._own_errors():
            samples = whole_number(CHUNK_SAMPLES if chunk is None else chunk, "chunk")
        refine, ahead = self._refinement(draw)
        if self._engine is not None:
            sound = self._engine.stream(request, samples, ahead)
        else:
            opening = self.spec["serving"]["streaming"]["pieces"][0] + ahead
            sound = self.stream_chunks(request, samples, opening)
        return (restore_level(part, draw.condition) for part in refine(sound))

    def _read_recording(self, draw: Draw) -> Draw:
        recording = draw.condition
        if self._is_own or not isinstance(recording, np.ndarray) or recording.ndim != 1:
            return draw
        length = len(recording) if draw.length is None else draw.length
        return dataclasses.replace(draw, condition=self.frames(recording), length=length)

    def _request(self, draw: Draw, for_all: bool = False) -> Request:
        if not self._inputs_of("chunk"):
            return super()._request(draw, for_all)
        info = self._inputs_of("compiled")["temperature"]
        heat: Any = info.default if draw.temperature is None else draw.temperature
        if np.ndim(heat) and self._engine is not None:
            raise InvalidInput("`temperature` must be one number for the engine `numba`.")
        most, condition = None, draw.condition
        if not has_named(self.spec):
            if self.conditional and condition is None:
                raise InvalidInput(f"`condition` must be given for {self.name}.")
            most = np.shape(condition)[-2] * self.hop_samples if np.ndim(condition) > 1 else None
        with self._own_errors():
            (length,) = check_draw_length(most if draw.length is None else draw.length, "time")
        if most is not None and length > most:
            raise InvalidInput(f"`length` must be between 1 and {most}, got {length}.")
        draw = dataclasses.replace(draw, length=length, temperature=heat)
        request = super()._request(draw, for_all)
        check_input("temperature", info, request.temperature)
        return request

    def _conditions(self, draw: Draw, rows: int, length: int, for_all: bool) -> Arrays:
        found, known = super()._conditions(draw, rows, length, for_all), self._inputs_of("compiled")
        check_speaker(self.known_speakers, draw.speaker)
        if "frames" in found:
            found["frames"] = check_input("frames", known["frames"], found["frames"])
        if "speaker" in known:
            index = self.known_speakers.index(draw.speaker or self.known_speakers[0])
            found["speaker"] = np.full([rows], index, np.int32)
        return found

    def _refinement(self, draw: Draw) -> tuple[Callable[[Any], Iterator[np.ndarray]], int]:
        """Return a function that refines chunks, and by how much it has the first one longer."""
        condition, mel = draw.condition, (self.spec.get("features") or {}).get("mel")
        passes = int(self.spec.get("refine", 0)) if hasattr(condition, "gain_db") else 0
        if draw.refine is not None:
            with self._own_errors():
                passes = whole_number(draw.refine, "refine", least=0)
        if passes and (not mel or self.spec.get("kind") == "wavenet"):
            rule = "0 for a model that is not a student of a mel"
            raise InvalidInput(f"`refine` must be {rule}, got {passes}.")
        if not passes or not mel or condition is None:
            return iter, 0
        # Imported here because a bundle needs neither package for anything else.
        from wavenet.config import MelConvention
        from wavenet.features.frames import Refiner, refine_chunks

        refiner, frames = Refiner(MelConvention.from_dict(mel), passes), np.asarray(condition)
        ahead = refiner.reach_frames * refiner.convention.hop_samples
        return functools.partial(refine_chunks, frames=frames, refiner=refiner), ahead
