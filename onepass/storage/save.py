"""`save`: write a model to a folder, as data: a graph, weights and a description."""

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.arguments import whole_number
from onepass.foundation.atomic_files import write_errors, write_text
from onepass.foundation.errors import UserError
from onepass.foundation.folders import make_folder, sweep
from onepass.foundation.model_spec import PROGRAM_FOLDERS, SAVED_FILE, program_name
from onepass.likelihoods.distribution import (
    Distribution,
    closed_form,
    is_normal,
    pixel_channels,
    tempers,
    with_density,
)
from onepass.model import Autoregressive
from onepass.networks.conditions import ONLY, Frames, Memory, is_at_rate, only_rate
from onepass.networks.elements import filler
from onepass.networks.symbols import settings_of
from onepass.networks.trainable import frozen_among
from onepass.samplers.fixed_point import MOVED
from onepass.storage.files import GRAPH_FILE, read_program, write_program
from onepass.storage.freezing import Frozen
from onepass.storage.frozen import FrozenProgram
from onepass.storage.load import network_of
from onepass.storage.program import check_calls, difference, freeze


def save(model: Autoregressive, folder: str | Path, *, sample_rate_hz: int | None = None) -> Path:
    """Write a model as data that runs without the code that defined it.

    Args:
      sample_rate_hz: sample rate in Hz of an audio model; None: the model's, if it has one.

    Returns:
      The folder, which `load` reads. Its `program` has a graph of the functions `call`, `log_prob`,
      `draw`, `noise`, `encode`, `decode` and `scale`, and others, such as `mode`, if the model has
      them; and the weights.
    """
    model.follow(by_trace=True)
    network = model.symbol_network
    # A step whose state depends on a length or on conditions is derived after loading instead.
    fixed = [each for each in model.conditions.values() if not is_at_rate(each)]
    with_step = network.has_step and not getattr(network, "has_horizon", False) and not fixed
    spec = _spec(model) | {"sample_rate_hz": rate_of(model, sample_rate_hz)}
    check = functools.partial(check_written, model)
    return write(lambda: freeze(model, with_step), model, spec, Path(folder), check)


def check_written(model: Autoregressive, program: FrozenProgram, spec: dict[str, Any]) -> None:
    """Raise UserError unless a program gives the network's outputs, log-probabilities and draws."""
    network, own = network_of(program, spec), model.symbol_network
    specs = [own.inputs, *model.conditions.values()]
    check_calls([own.call], [network], specs, 1 if model.order == "time" else 2)
    if model.layout.rank != 2:
        return
    sizes = [2, 5]
    symbols = tf.zeros(sizes, tf.int32 if model.distribution.levels else tf.float32)
    dtype = program["log_prob"].specs[0].dtype
    parameters = tf.cast(
        tf.random.stateless_normal([*sizes, model.distribution.num_parameters], [0, 1]), dtype
    )
    noise = model.distribution.noise(0, tf.range(sizes[0]), 0, sizes[1])
    pairs: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
        "log-probability": (model.distribution.log_prob, program["log_prob"], (symbols,)),
        "draw": (model.distribution.sample, program["draw"], (noise, tf.constant(1.0))),
    }
    for name, (live, stored, given) in pairs.items():
        moved = MOVED if name == "draw" else 0.0
        fault = difference(live(parameters, *given), stored(parameters, *given), moved=moved)
        if fault:
            raise UserError(f"The model cannot be stored: read back, its {name} {fault}.")


def rate_of(model: Any, sample_rate_hz: int | None) -> int | None:
    """Return the sample rate in Hz to store with a model; None if none is given or known."""
    rate_hz = model.sample_rate_hz if sample_rate_hz is None else sample_rate_hz
    if rate_hz is not None:
        rate_hz = whole_number(rate_hz, "sample_rate_hz")
    if rate_hz is not None and model.order != "time":
        raise ValueError(f"`sample_rate_hz` must be None for images, got {rate_hz}.")
    if sample_rate_hz is not None and filler(model.codec).dtype.kind in "iu":
        raise ValueError(
            f"`sample_rate_hz` must be None for a model of integers, got {sample_rate_hz}; an audio"
            " model has codec=onepass.likelihoods.Linear or MuLaw."
        )
    return rate_hz


def write(
    make: Callable[[], tuple[Frozen, dict[str, Any]]],
    model: Any,
    spec: dict[str, Any],
    folder: Path,
    check: Callable[[FrozenProgram, dict[str, Any]], None],
) -> Path:
    """Write a frozen graph and its specification, to which `make` may add, and return the folder.

    The program is written next to the one that the folder has, and read back. Last, one rename
    replaces the specification, which names the program. A process that ends before or after it
    leaves a whole model, and what is not named is removed by the next call.
    """
    made, before = not folder.exists(), program_name(folder)
    name = next(each for each in PROGRAM_FOLDERS if each != before)
    place = folder / name
    try:
        with write_errors(folder), _in_graphs(), named_reasons("stored"):
            shutil.rmtree(make_folder(folder) / name, ignore_errors=True)
            sweep(folder)
            frozen, more = make()
            spec = spec | more | {"program": name, "weights": _weights(frozen, model)}
            spec["functions"] = {n: dataclasses.asdict(x) for n, x in frozen.functions.items()}
            spec["sha256"] = write_program(make_folder(place), frozen)
            spec = json.loads(json.dumps(spec))
            check(_read_back(place, spec), spec)
            write_text(folder / SAVED_FILE, json.dumps(spec, indent=2) + "\n")
    except BaseException:
        shutil.rmtree(folder if made else place, ignore_errors=True)
        raise
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
    return folder


def _weights(frozen: Frozen, model: Any) -> list[tuple[str, str]]:
    """Return the kind of each weight, "trained", "frozen" or "constant", and a variable's name."""
    variables = [each for each in frozen.weights if isinstance(each, tf.Variable)]
    not_trained = set(frozen_among(variables, model))
    kinds = ["frozen" if n in not_trained else "trained" for n in range(len(variables))]
    names = [each.name.partition(":")[0] for each in variables]
    found = iter(zip(kinds, names, strict=True))
    is_variable = (isinstance(each, tf.Variable) for each in frozen.weights)
    return [next(found) if each else ("constant", "") for each in is_variable]


def _read_back(place: Path, spec: dict[str, Any]) -> FrozenProgram:
    try:
        return read_program(place, spec)
    except UserError as error:
        reason = str(error).removeprefix(f"{place / GRAPH_FILE} ")
        raise UserError(f"The model cannot be stored: it {reason}") from error


@contextlib.contextmanager
def _in_graphs() -> Iterator[None]:
    """Let functions run as graphs inside the block, also where they run eagerly to be debugged."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def named_reasons(verb: str) -> Iterator[None]:
    """Convert an error raised inside the block to a UserError, "The model cannot be {verb}"."""
    try:
        yield
    except UserError:
        raise
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise UserError(f"The model cannot be {verb}: {line}") from error


def _spec(model: Autoregressive) -> dict[str, Any]:
    network, distribution = model.symbol_network, model.distribution
    condition = only_rate(model.conditions) if model.order == "time" else None
    named = {} if condition is not None and ONLY in model.conditions else model.conditions
    described = {name: _describe_spec(each) for name, each in named.items()}
    return {
        "kind": model.kind,
        "order": model.order,
        "inputs": _describe_spec(network.inputs),
        "condition": None if condition is None else _describe_spec(condition),
        **({"conditions": described} if described else {}),
        **settings_of(network),
        "distribution": {
            "name": type(distribution).__name__,
            "levels": distribution.levels,
            "num_parameters": distribution.num_parameters,
            "noise_channels": distribution.noise_channels,
            "channels": pixel_channels(distribution),
            "density": _density(distribution) if model.layout.rank != 3 else "none",
            "tempers": tempers(distribution),
            **closed_form(distribution),
        },
        "log_unit": model.codec.log_unit,
    }


def _density(distribution: Distribution) -> str:
    if with_density(distribution) is None:
        return "none"
    return "normal" if is_normal(distribution) else "any"


def _describe_spec(spec: tf.TensorSpec) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": "memory"} if isinstance(spec, Memory) else {}
    if isinstance(spec, Frames):
        kind = {"kind": "frames", "hop": spec.hop, "extra": spec.extra}
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name, **kind}
