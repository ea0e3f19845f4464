"""The kinds of models in bundles, by the entry `kind` of model.json."""

from collections.abc import Callable
from typing import Any, NamedTuple


def _teacher_sampler() -> Any:
    from wavenet.samplers import generation

    return generation


def _student_sampler() -> Any:
    from distill import generation

    return generation


class Kind(NamedTuple):
    """The properties of one kind of models that exporting and computing them need.

    Attributes:
      makes: "sound" or "images"; "" for a user's model, whose model.json says what it generates.
      network: key of the configuration under which the network's dtype is stored; "" for images,
        which are drawn in float32.
      sampler: function that returns the module with the Numba sampler; None: there is none.
      is_fast: whether that sampler is faster than the program if there is no accelerator.
    """

    makes: str = ""
    network: str = ""
    sampler: Callable[[], Any] | None = None
    is_fast: bool = False


KINDS = {
    "autoregressive": Kind(),
    "flow-student": Kind(),
    "wavenet": Kind("sound", "network", _teacher_sampler),
    "parallel-wavenet": Kind("sound", "student", _student_sampler, is_fast=True),
    "pixelcnn": Kind("images"),
    "multiscale": Kind("images"),
}
