"""The models that are put through the laws: a new one is one row of `MODELS`.

Own networks at toy size, with all that may be asked of them, in Keras, TensorFlow and PyTorch; each
kind of this library's models at toy size, and some of those that it ships; flows and what is
bundled and served.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import image_bundles
import numpy as np
import own_models
import sound_bundles
from laws import own_networks

from onepass.testing import Subject

LENGTH = 30  # of sequences
HAS_TORCH = importlib.util.find_spec("torch") is not None


@dataclasses.dataclass(frozen=True)
class Row:
    """A model by how it is made, how it is judged, and the laws that do not apply to it.

    Attributes:
      make: returns the model.
      lacks: names of the laws that have nothing to compare in it.
      asked: arguments of `Subject`.
    """

    make: Callable[[], Any]
    lacks: tuple[str, ...] = ()
    asked: dict[str, Any] = dataclasses.field(default_factory=dict)


def own(name: str, **asked: Any) -> Row:
    """A row of a network of one's own."""

    return Row(functools.partial(own_networks.model, name), (), {"length": LENGTH} | asked)


RANDOM = np.random.default_rng(6)
NUM = own_networks.NUM
FRAMES = 0.6 + 0.2 * RANDOM.random((12, 7), np.float32)  # as flat as speech
LOOSE = ("recurrent", "scale", "stereo", "attention of channels", "reals")  # real numbers
STEP = 1.0 / 32768.0  # of 16 bits

MODELS = {name: own(name) for name in own_networks.MODELS}
for name in ("windowed", "linear", "mini gpt"):  # whose windows and blocks are longer
    MODELS[name] = own(name, length=66)
for name in LOOSE:
    MODELS[name] = own(name, atol=2e-5)
for name, condition in own_networks.CONDITIONS.items():
    MODELS[name] = own(name, condition=condition)
for name, channels in {"images": 1, "images of channels": 2, "images on a scale": 1}.items():
    MODELS[name] = own(name, length=(4, 3, channels))
for name, options in own_networks.PROMPTS.items():
    MODELS[f"rotary, {name}"] = own("rotary", options=options)
MODELS |= {
    "stereo, lengths": own("stereo", atol=2e-5, options={"prefix": own_networks.SHORT}),
    "forbidden, top-k": own("forbidden", options={"top_k": 6, "temperature": [0.0, 0.5, 1.5]}),
    "codes, rows": own("codes", options={"top_k": 2, "temperature": [1.0, 0.0, 0.5]}),
    "flow": Row(lambda: own_models.model("student"), (), {"length": LENGTH, "atol": 1e-5}),
}

# Exported ones, and asked over HTTP.
MODELS |= {
    f"bundle of {name}": Row(
        lambda name=name: own_models.bundle(name), (), {"length": own_models.length(name)} | asked
    )
    for name, asked in {
        "tokens": {},
        "own": {},
        "pairs": {},
        "real": {"atol": 1e-4},
        "tiles": {},
        "picture": {},
        "student": {"atol": 1e-4},
    }.items()
}

# This library's.
MODELS |= {
    f"sound: {kind}": Row(lambda kind=kind: sound_bundles.model(kind), (), asked)
    for kind, asked in {
        "plain": {"length": 160, "condition": FRAMES, "atol": STEP},
        "residual": {"length": 160, "condition": FRAMES, "atol": STEP},
        "plain, speakers": {
            "length": 160,
            "condition": FRAMES,
            "atol": STEP,
            "options": {"speaker": "ben"},
        },
        "softmax, frames": {"length": 160, "condition": FRAMES},
        "mixture, context, speakers": {
            "length": 96,
            "options": {"speaker": "cleo"},
            "atol": 8 * STEP,
            "block": 16,
        },
        "vocoder": {"length": 160, "condition": FRAMES, "atol": 8 * STEP, "block": 4},
    }.items()
}
MODELS |= {
    f"images: {kind}": Row(lambda kind=kind: image_bundles.model(kind), (), asked)
    for kind, asked in {
        "pixelcnn": {"condition": ["cat", "dog", "eel"]},
        "multiscale": {"condition": [2, 0, 1]},
        "caption": {"condition": "stripes"},
        "text": {"condition": ["a slope", "stripes", "a bright half"]},
    }.items()
}


@functools.cache
def made(name: str) -> Any:
    """The model of a row, which keeps the samplers that were compiled for it."""
    return MODELS[name].make()


@functools.cache
def subject_of(name: str) -> Subject:
    """The model of a row with what is asked of it; its draws are made once."""
    return Subject(made(name), **MODELS[name].asked)
