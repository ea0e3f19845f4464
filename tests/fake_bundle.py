"""Bundles that cost nothing and can be slow, held or broken on purpose, without TensorFlow."""

import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bundles.signature import Signature, TensorInfo, check, scale_name
from pixelcnn.data.captions import MAX_CAPTION_CHARACTERS, NUM_CODES

HOP, CHANNELS, RATE = 4, 3, 16_000
SIDES = (8, 16)
SPEAKERS = ("anna", "ben")


@dataclasses.dataclass
class Control:
    """A test's decisions about a bundle, and the bundle's notes for the test.

    open: calls and chunks wait for it. seconds: that each call takes. fails_on: a seed that makes a
    call raise. endless: streams go on for ever, in chunks of 256 KiB. calls: (signature, rows,
    padded length or None, seeds) of each. chunks: made by streams. closed: streams that ended
    early. entered: set by each call that begins.
    """

    seconds: float = 0.0
    chunk_seconds: float = 0.0
    endless: bool = False
    fails_on: int | None = None
    warm_fails: bool = False
    load_fails: bool = False
    open: threading.Event = dataclasses.field(default_factory=threading.Event)
    entered: threading.Event = dataclasses.field(default_factory=threading.Event)
    warm_open: threading.Event = dataclasses.field(default_factory=threading.Event)
    calls: list = dataclasses.field(default_factory=list)
    seeds: list = dataclasses.field(default_factory=list)  # of calls and chunks, in [0, 2^64)
    chunks: int = 0
    closed: int = 0
    warmed: int = 0

    def __post_init__(self):
        self.open.set()
        self.warm_open.set()

    def call(self, signature, inputs):
        """Notes a call, waits and fails as its control says."""
        seeds = [int(seed) % 2**64 for seed in inputs["seed"]]
        frames = inputs.get("frames")
        length = None if frames is None else frames.shape[1]
        self.calls.append((signature, len(seeds), length, seeds))
        self._enter(seeds, self.seconds)

    def chunk(self, seed):
        """Notes a chunk, waits and fails as its control says."""
        self.chunks += 1
        self._enter([seed], self.chunk_seconds)

    def _enter(self, seeds, seconds):
        self.seeds += seeds
        self.entered.set()
        if not self.open.wait(30):
            raise RuntimeError("held for too long")
        if seconds:
            time.sleep(seconds)
        if self.fails_on in seeds:
            raise RuntimeError(f"secret detail of the seed {self.fails_on}")

    @property
    def rows(self):
        return [call[1] for call in self.calls]


def info(dtype, *shape, **rest):
    return TensorInfo(np.dtype(dtype), (None, *shape), **rest)


DRAWN = {"seed": info(np.int64, default=0), "row": info(np.int32, low=0, high=2**31 - 1, default=0)}
SOUND = Signature(
    {
        "frames": info(np.float32, None, CHANNELS, low=-1e4, high=1e4),
        "num_frames": info(np.int32, low=1, high=12_000),
        **DRAWN,
        "temperature": info(np.float32, low=0.0, high=2.0, default=1.0),
        "speaker": info(np.int32, low=0, high=1, default=0),
    },
    {"sound": info(np.float32, None), "num_samples": info(np.int32)},
)
IMAGE = Signature(
    {
        **DRAWN,
        "temperature": info(np.float32, len(SIDES), low=0.0, high=2.0, default=1.0),
        "label": info(np.int32, low=0, high=9, default=0),
        "guidance": info(np.float32, low=0.0, high=20.0, default=0.0),
    },
    {f"picture_{side}": info(np.uint8, side, side, 3) for side in SIDES}
    | {"picture": info(np.uint8, SIDES[-1], SIDES[-1], 3)},
)


START = {"start": info(np.uint8, SIDES[0], SIDES[0], 3)}
IMAGE_SIGNATURES = {"serving_default": IMAGE, "compiled": IMAGE} | {
    scale_name(side): Signature(IMAGE.inputs | more, {"picture": info(np.uint8, side, side, 3)})
    for side, more in zip(SIDES, ({}, START), strict=True)
}


class Fake:
    kind = ""

    def __init__(self, name="fake", version=1, control=None, path=None, signatures=None, **serving):
        self.name, self.version = name, version
        self.path = Path(path or f"/nowhere/{name}/{version}")
        self.control = control or Control()
        self.signatures = signatures
        serving = {"format": 2, "allowed_batches": [1, 2, 4, 8], **serving}
        self.spec: dict[str, Any] = {"kind": self.kind, "serving": serving}

    def check(self, signature, inputs):
        """The inputs with their defaults, or InvalidInput."""
        return check(self.signatures[signature], inputs)

    def warm(self):
        self.control.warm_open.wait(30)
        if self.control.warm_fails:
            raise RuntimeError("secret detail of the warming")
        self.control.warmed += 1


class FakeSound(Fake):
    """A sound bundle: a sample is its frame's mean plus a number that seed and place name."""

    kind = "sound"
    sample_rate_hz, hop_samples = RATE, HOP
    known_speakers = SPEAKERS

    def __init__(self, *arguments, **rest):
        rest.setdefault("signatures", {"serving_default": SOUND, "compiled": SOUND})
        rest.setdefault("buckets", [8, 32, 128, 1024, 12_000])
        super().__init__(*arguments, **rest)
        self.spec |= {
            "sample_rate_hz": RATE,
            "hop_samples": HOP,
            "frame_channels": CHANNELS,
            "speakers": list(SPEAKERS),
        }

    def call(self, signature, inputs):
        """Zeros behind each row's own length, as the real ones."""
        self.control.call(signature, inputs)
        frames, lengths = inputs["frames"], inputs["num_frames"] * HOP
        sound = np.zeros([len(frames), frames.shape[1] * HOP], np.float32)
        for n, length in enumerate(lengths):
            row = {name: value[n] for name, value in inputs.items()}
            sound[n] = self._sound(row["frames"], row["seed"], row["row"], row["temperature"])
            sound[n, length:] = 0
        return {"sound": sound, "num_samples": lengths.astype(np.int32)}

    def _sound(self, frames, seed, row, temperature):
        place = np.arange(len(frames) * HOP)
        noise = np.sin(place * (1.0 + int(seed) % 2**64 % 97 + int(row))) * 0.1 * float(temperature)
        return (np.repeat(frames.mean(axis=1), HOP) * 0.1 + noise).clip(-1, 1).astype(np.float32)

    def sample(self, num=1, length=None, seed=0, condition=None, **rest):
        return np.stack(self._rows(condition, num, length, seed, **rest))

    def _rows(self, condition, num, num_samples, seed=0, row=0, temperature=None, **unheard):
        temperature = 1.0 if temperature is None else temperature
        if condition is None:
            condition = np.zeros([-(-(num_samples or RATE) // HOP), CHANNELS], np.float32)
        sounds = [self._sound(condition, seed, row + n, temperature) for n in range(num)]
        return [sound[:num_samples] for sound in sounds]

    def stream(self, num=1, length=None, seed=0, condition=None, *, chunk=None, **rest):
        """The same in chunks float32 [num, chunk]."""
        chunk = chunk or 16
        while self.control.endless:
            self.control.chunk(seed)
            yield np.zeros([num, 2**16], np.float32)
        sound = self.sample(num, length, seed, condition, **rest)
        finished = False
        try:
            for start in range(0, sound.shape[1], chunk):
                self.control.chunk(seed)
                yield sound[:, start : start + chunk]
            finished = True
        finally:
            self.control.closed += not finished

    def frames(self, waveform):
        """float32 [frames, channels] of a waveform [samples]."""
        count = max(1, len(waveform) // HOP)
        return np.resize(np.asarray(waveform, np.float32), [count, CHANNELS])


class FakeImages(Fake):
    """An image bundle: every pixel is a number that label and seed name."""

    kind = "picture"

    def __init__(self, *arguments, **rest):
        rest.setdefault("signatures", IMAGE_SIGNATURES)
        super().__init__(*arguments, **rest)
        self.spec |= {
            "classes": [f"class {n}" for n in range(10)],
            "sizes": list(SIDES),
            "size": SIDES[-1],
            "channels": 3,
            "condition": "label",
        }

    def call(self, signature, inputs):
        """Every scale of every row, or the one that is asked for."""
        self.control.call(signature, inputs)
        values = inputs["label"] * 20 + inputs["seed"] % 7 + inputs["row"] + inputs["guidance"]
        outputs = {
            f"picture_{side}": np.broadcast_to(
                values.astype(np.uint8)[:, None, None, None], [len(values), side, side, 3]
            ).copy()
            for side in SIDES
        }
        if (name := signature.replace("scale", "picture")) in outputs:
            return {"picture": outputs[name]}
        return outputs | {"picture": outputs[f"picture_{SIDES[-1]}"]}

    def stream(self, num=1, length=None, seed=0, condition=None, **rest):
        """Yield the list of every image's scales, uint8 [1, side, side, 3]."""
        for row in range(num):
            self.control.chunk(seed)
            value = np.uint8(int(condition or 0) * 20 + seed % 7 + row)
            yield [np.full([1, side, side, 3], value) for side in SIDES]

    def sample(self, num=1, length=None, seed=0, condition=None, **rest):
        return np.concatenate([s[-1] for s in self.stream(num, length, seed, condition)])


class FakeDrawings(FakeImages):
    """An image bundle that reads captions, by the sum of their characters."""

    def __init__(self, *arguments, **rest):
        super().__init__(*arguments, signatures=_of_captions(IMAGE_SIGNATURES), **rest)
        self.spec |= {"condition": "text", "captions": ["a dog, noto", "a red heart"]}

    def call(self, signature, inputs):
        """Draw the class that the caption's characters add up to."""
        return super().call(signature, inputs | {"label": inputs["caption"].sum(-1) % 10})


def _of_captions(signatures):
    caption = {"caption": info(np.int32, MAX_CAPTION_CHARACTERS + 1, low=0, high=NUM_CODES - 1)}
    return {
        name: Signature(
            {key: value for key, value in known.inputs.items() if key != "label"} | caption,
            known.outputs,
        )
        for name, known in signatures.items()
    }


@dataclasses.dataclass
class FakeModelStore:
    """A folder of bundles on disk and the `load` that reads it; a Control for each version."""

    root: Path
    kinds: dict = dataclasses.field(default_factory=dict)
    controls: dict = dataclasses.field(default_factory=dict)
    loads: list = dataclasses.field(default_factory=list)

    def add(self, name="voice", version=1, kind=FakeSound, **control):
        folder = self.root / name / str(version)
        folder.mkdir(parents=True)
        self.kinds[name] = kind
        self.controls[name, version] = Control(**control)
        said = {"kind": kind.kind, "control": control}
        (folder / "model.json").write_text(json.dumps(said), encoding="utf-8")
        (folder / "manifest.json").write_text(json.dumps({"files": {}}), encoding="utf-8")
        return self.controls[name, version]

    def load(self, path, backend="auto", digest="", weights="float32"):
        """Stands in for `onepass.bundles.bundle.load`."""
        path = Path(path)
        name, version = path.parent.name, int(path.name)
        self.loads.append((name, version))
        control = self.controls[name, version]
        if control.load_fails:
            raise ValueError(f"{name}/{version} cannot be read: secret detail")
        return self.kinds[name](name, version, control, path)


def load_from_disk(path, backend="auto", digest="", weights="float32"):
    """A bundle of `FakeModelStore.add`, in a process that does not have the store."""
    path = Path(path)
    said = json.loads((path / "model.json").read_text(encoding="utf-8"))
    kind = {"sound": FakeSound, "picture": FakeImages}[said["kind"]]
    return kind(path.parent.name, int(path.name), Control(**said["control"]), path)
