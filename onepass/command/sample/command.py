"""The command `onepass sample MODEL ...`: parse options, load the model, draw, write files."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onepass.command.sample import options
from onepass.command.sample.drawing import Drawing, write_out
from onepass.foundation.errors import UserError
from onepass.foundation.locations import is_url

KINDS: dict[str, type[options.Options]] = {
    "sound": options.SoundOptions,
    "images": options.ImageOptions,
    "arrays": options.ArrayOptions,
    "served sound": options.ServedSoundOptions,
    "served picture": options.ServedImageOptions,
    "served array": options.ServedArrayOptions,
}
"""The option class for each kind of model; "served" marks models on a server."""


def run_sample(makes: str, words: list[str], parse: Callable, prepare: Callable[[], None]) -> int:
    """Run `onepass sample` for a local model of a kind of `KINDS`, and return the exit status."""
    given = parse(KINDS[makes], words, "onepass sample")
    options.check(given)
    prepare()
    return write_out(_drawing(given, _model_here(makes, given)))


def run_served(words: list[str], parse: Callable) -> int:
    """Run `onepass sample URL ...` for the server's kind of model; return the exit status."""
    from onepass.remote_model import RemoteModel

    logging.getLogger("stamina").setLevel(logging.ERROR)  # only the final error is reported
    url = next(filter(is_url, words))
    with contextlib.closing(RemoteModel(url)) as model:
        kind = KINDS[_served_kind(model)]
    given: Any = parse(kind, words, "onepass sample")
    options.check(given)
    limits: Any = {"timeout_seconds": given.timeout, "retries": given.retries}
    with contextlib.closing(RemoteModel(url, **limits)) as model:
        return write_out(_drawing(given, model))


def _served_kind(model: Any) -> str:
    from onepass.bundles.signature import has_named

    kind = f"served {'array' if has_named(model.spec) else model.spec.get('kind')}"
    if kind not in KINDS:
        states = [str(version.get("state")) for version in model.spec.get("versions", ())]
        state = " and ".join(states).lower() or "not served"
        raise UserError(f"The model `{model.name}` cannot be sampled now; it is {state}.")
    return kind


def _model_here(makes: str, given: Any) -> Any:
    """Load a local model from a folder or by shipped name.

    A bundle of one of this library's models also contains the model folder, which is loaded instead
    of the exported program: the program supports only one size and one sampler, while the model
    supports all options.
    """
    from onepass.models import load, load_trained

    if makes == "arrays":
        return load(given.model)
    if getattr(given, "draft", None) is not None:
        from distill.teacher import load_teacher

        return load_teacher(Path(given.model))
    return load_trained(Path(given.model))


def _drawing(given: options.Options, model: Any) -> Drawing:
    arguments = options.arguments_of(given)
    if isinstance(given, options.Arrays):
        from onepass.command.sample.arrays import ArrayDrawing

        return ArrayDrawing(given, model, arguments)
    if isinstance(given, options.Images):
        from onepass.command.sample.images import image_drawing

        return image_drawing(given, model, arguments)
    from onepass.command.sample.sound import ServedSound, SoundHere

    is_served = isinstance(given, options.Served)
    return (ServedSound if is_served else SoundHere)(given, model, arguments)
