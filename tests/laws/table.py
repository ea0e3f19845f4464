"""The models that are put through the laws: a new one is one row of `MODELS`.

Own networks at toy size, with all that may be asked of them, in Keras, TensorFlow and PyTorch; each
kind of this library's models at toy size, and some of those that it ships; flows and what is
bundled and served.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import image_bundles
import numpy as np
import own_models
import sound_bundles
from laws import own_networks

from onepass.testing import Subject

LENGTH = 30  # of sequences


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


# What models lack, and so the laws that do not apply to them.
SMALL_TABLE = ("only_allowed_tokens_are_drawn", "probabilities_sum_to_one")
NO_DRAFT, NO_STOP = "a_draft_changes_nothing", "a_stop_ends_rows"
NOT_ALONE = ("what_is_exported_is_the_model", "compression_loses_nothing")
OF_SYMBOLS = (NO_DRAFT, NO_STOP, *SMALL_TABLE, "compression_loses_nothing")  # real numbers
VECTORS = (NO_DRAFT, NO_STOP, "probabilities_sum_to_one", *NOT_ALONE)
CONDITIONED = (
    *("a_shorter_draw_is_a_beginning", "padding_changes_no_score", "compression_loses_nothing"),
)
IMAGES = (
    *(NO_DRAFT, NO_STOP, "a_shorter_draw_is_a_beginning", "a_prefix_is_continued"),
    *("padding_changes_no_score", "probabilities_sum_to_one"),
)
IMAGES_OF_ONES_OWN = (*IMAGES, "chunks_are_the_whole", "only_allowed_tokens_are_drawn")
COPIED = ("what_is_saved_is_the_model", *NOT_ALONE)
TRAINED = (*COPIED, *SMALL_TABLE, NO_STOP, NO_DRAFT, "scores_are_those_of_draws")
NO_DENSITY = (
    *("scores_are_those_of_draws", "scores_are_causal", "scores_of_a_row_depend_on_no_other_row"),
    *("padding_changes_no_score", "probabilities_sum_to_one", "compression_loses_nothing"),
)
IN_ONE_PASS = (
    *(*NO_DENSITY, NO_DRAFT, NO_STOP, "a_prefix_is_continued", "only_allowed_tokens_are_drawn"),
)
BUNDLES = ("methods_agree", NO_DRAFT, "probabilities_sum_to_one", *COPIED)
LACKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mixture", "scan", "scale"), SMALL_TABLE),
    **dict.fromkeys(("mu-law", "speaker", "one length, conditioned"), CONDITIONED),
    **dict.fromkeys(("memory", "conditions"), (*CONDITIONED, "what_is_exported_is_the_model")),
    **dict.fromkeys(("integers", "integers of channels"), (*CONDITIONED, SMALL_TABLE[0])),
    **dict.fromkeys(
        ("one length, mixed", "one length, subclassed", "one length, Subclassed"),
        (NO_DRAFT, "chunks_are_the_whole"),
    ),
    "one length, masked": (NO_DRAFT,),
    "frames": (*CONDITIONED, *SMALL_TABLE, NO_DRAFT),
    "rates": (SMALL_TABLE[0],),
    "recurrent": OF_SYMBOLS,
    **dict.fromkeys(("stereo", "attention of channels", "reals"), (*VECTORS, SMALL_TABLE[0])),
    "codes": VECTORS,
}


def own(name: str, lacks: tuple[str, ...] = (), **asked: Any) -> Row:
    """A row of a network of one's own, with what is asked of it."""
    options, lacks = asked.get("options", {}), {*LACKS.get(name, ()), *lacks}
    if "prefix" in options:
        lacks |= {"a_shorter_draw_is_a_beginning", "a_prefix_is_continued"}
        lacks |= {NO_STOP, "only_allowed_tokens_are_drawn"}
    if "stop" in options:
        lacks |= {"scores_are_those_of_draws"}
    if "allowed" in options:
        lacks |= {"only_allowed_tokens_are_drawn"}
    if "temperature" in options:
        lacks |= {"temperature_zero_leaves_no_chance"}
        lacks |= {"a_seed_decides"} if 0.0 in np.ravel(options["temperature"]) else set()
    make = functools.partial(own_networks.model, name)
    return Row(make, tuple(sorted(lacks)), {"length": LENGTH} | asked)


RANDOM = np.random.default_rng(6)
FRAMES = 0.6 + 0.2 * RANDOM.random((12, 7), np.float32)  # as flat as speech
LOOSE = ("recurrent", "scale", "stereo", "attention of channels", "reals")  # real numbers
STEP = 1.0 / 32768.0  # of 16 bits

MODELS = {name: own(name) for name in own_networks.MODELS}
for name in ("windowed", "linear", "mini gpt"):  # whose windows and blocks are longer
    MODELS[name] = own(name, length=66)
for name in LOOSE:
    MODELS[name] = own(name, atol=2e-5)
for name in MODELS:
    if name.startswith("one length"):
        MODELS[name] = own(name, length=18)
for name, condition in own_networks.CONDITIONS.items():
    MODELS[name] = own(name, condition=condition)
for name, channels in {"images": 1, "images of channels": 2, "images on a scale": 1}.items():
    MODELS[name] = own(name, IMAGES_OF_ONES_OWN, length=(4, 3, channels))
for name, options in own_networks.PROMPTS.items():
    MODELS[f"rotary, {name}"] = own("rotary", options=options)
MODELS |= {
    "stereo, lengths": own("stereo", atol=2e-5, options={"prefix": own_networks.SHORT}),
    "forbidden, top-k": own("forbidden", options={"top_k": 6, "temperature": [0.0, 0.5, 1.5]}),
    "codes, rows": own("codes", options={"top_k": 2, "temperature": [1.0, 0.0, 0.5]}),
    "flow": Row(
        functools.partial(own_models.model, "student"),
        (*IN_ONE_PASS, "methods_agree"),
        {"length": LENGTH, "atol": 1e-5},
    ),
}

REAL = (NO_STOP, "only_allowed_tokens_are_drawn")
DRAWN_AT_ONCE = (*IMAGES, "chunks_are_the_whole")
OF_BUNDLES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "tokens": (("padding_changes_no_score",), {}),
    "own": (("padding_changes_no_score",), {}),
    "pairs": (("padding_changes_no_score",), {}),
    "real": (("padding_changes_no_score", *REAL), {"atol": 1e-4}),
    "tiles": (DRAWN_AT_ONCE, {}),
    "picture": ((*DRAWN_AT_ONCE, "only_allowed_tokens_are_drawn"), {}),
    "student": (IN_ONE_PASS, {"atol": 1e-4}),
}
for name, (lacks, asked) in OF_BUNDLES.items():
    MODELS[f"bundle of {name}"] = Row(
        functools.partial(own_models.bundle, name),
        tuple({*BUNDLES, *lacks}),
        {"length": own_models.length(name)} | asked,
    )

SPOKEN = {"length": 160, "condition": FRAMES}
# A student's first chunk has 1,600 samples: these reach the next ones.
SPOKEN_LONG = {"length": 1660, "condition": 0.6 + 0.2 * RANDOM.random((83, 7), np.float32)}
TEACHER = (*TRAINED, "padding_changes_no_score")
STUDENT = (*TRAINED, *IN_ONE_PASS)
OF_SOUND: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": (STUDENT, SPOKEN_LONG | {"atol": STEP}),
    "residual": (STUDENT, SPOKEN_LONG | {"atol": STEP}),
    "plain, speakers": (STUDENT, SPOKEN_LONG | {"atol": STEP, "options": {"speaker": "ben"}}),
    "softmax, frames": (TEACHER, SPOKEN),
    "mixture, context, speakers": (
        TEACHER,
        {"length": 96, "options": {"speaker": "cleo"}, "atol": 8 * STEP, "block": 16},
    ),
    "vocoder": (TEACHER, SPOKEN | {"atol": 8 * STEP, "block": 4}),
}
for name, (lacks, asked) in OF_SOUND.items():
    make = functools.partial(sound_bundles.model, name)
    MODELS[f"sound: {name}"] = Row(make, tuple({*lacks}), asked)

OF_IMAGES: dict[str, Any] = {
    "pixelcnn": ["cat", "dog", "eel"],
    "multiscale": [2, 0, 1],
    "caption": "stripes",
    "text": ["a slope", "stripes", "a bright half"],
}
for name, condition in OF_IMAGES.items():
    make = functools.partial(image_bundles.model, name)
    lacks = tuple({*TRAINED, *IMAGES, "scores_are_causal"})
    MODELS[f"images: {name}"] = Row(make, lacks, {"condition": condition})


@functools.cache
def subject_of(name: str) -> Subject:
    """The model of a row with what is asked of it, whose draws are made once."""
    return Subject(MODELS[name].make(), **MODELS[name].asked)
