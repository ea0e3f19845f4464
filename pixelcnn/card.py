"""Cards of image models, and models joined of parts that several runs trained.

The parts are independent, except that each part with captions needs the text encoder with which it
was trained. Word encoders are concatenated into a single wider one, and every part reads only its
own encoder's channels. This is possible since a caption's vector is a sum over words, and its map
is linear in the vector.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onepass.foundation import model_folders
from onepass.foundation.card import (
    ExportArguments,
    Measured,
    in_two_columns,
    measure_table,
    training_lines,
)
from onepass.foundation.files import Arrays
from onepass.foundation.measures import EXPLAINED
from onepass.foundation.model_folders import read_stored_model
from onepass.foundation.rules import UserError, to_json
from onepass.trained import Trained
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.evaluation import evaluate
from pixelcnn.measures import DEEP_NAMES, NAMES
from pixelcnn.model import load, model_of, spec_of

OF_THE_MODEL = ("kind", "network", "output", "conditioning", "class_names", "statistics")
OF_THE_BASE = ("base", "base_flows")  # settings that may differ between runs
OF_THE_IMAGES = ("size", "channels", "reduce")
TABLE, PAINTED = "conditioner/text/table", "conditioner/painted/kernel"
SHALLOW = "/shallow/"  # in names of weights that read a factor's units instead of a condition
# {name of a weight that reads a condition: axis of the condition's channels}
READS_VECTOR = {"vector_kernel": 0}
READS_MAP = {"map_kernel": 0, "map_prediction": 0, "map_front": 2}


class _Run(NamedTuple):
    path: Path
    stored: dict[str, Any]
    weights: Arrays
    parts: tuple[str, ...]
    is_encoded: bool


class _Channels(NamedTuple):
    first: int
    own: int
    all_: int

    def pad_weight(self, weight: np.ndarray, axis: int) -> np.ndarray:
        own, behind = np.split(weight, [self.own], axis)
        sizes = [(0, 0)] * weight.ndim
        sizes[axis] = (self.first, self.all_ - self.first - self.own)
        return np.concatenate([np.pad(own, sizes), behind], axis)


def join_runs(run: Path, others: Sequence[Path]) -> tuple[dict, Trained]:
    """Return the configuration and the model that combine the parts of several runs or folders.

    A part that was trained more than once is taken from the first run. A run that distilled a base
    into flows counts as having trained only the base; parts that it copied from its teacher are
    used if no other run has them. The architectures of the bases and the dropout rates may differ.
    """
    given = [_read(path) for path in (run, *others)]
    for other in given[1:]:
        _check_alike(given[0], other)
    taken = _divide_parts(given)
    first = taken[0].stored
    network = first["network"] | _settings(taken, OF_THE_BASE, is_base=True)
    network |= _settings(taken, ("factor",), is_base=False)
    every = (part for each in taken for part in each.parts)
    parts = sorted(every, key=lambda part: (int(part.split(".")[0]), part))
    whole = {**first, "network": network, "parts": parts}
    if any(each.is_encoded for each in taken):
        conditioning, weights = _side_by_side(taken)
        whole["conditioning"] = first["conditioning"] | conditioning
    else:
        weights = {name: w for each in taken for name, w in _own(each).items()}
    return whole, model_of(whole, weights, {**spec_of(whole, run), "step": None}, run)


def _read(path: Path) -> _Run:
    stored, weights, _ = read_stored_model(model_folders.model_folder(path), spec_of)
    model = load(path)
    if model.network.multiscale is None:
        raise UserError(f"{path} holds a PixelCNN, which has no parts.")
    stored = {**stored, **to_json(model.config)}
    floats = {name: weight.astype(np.float32) for name, weight in weights.items()}
    is_encoded = bool(model.network.conditioner.trainable_variables)
    if is_encoded and TABLE not in weights:
        raise UserError(f"{path} trained its own encoder; its parts cannot be joined.")
    return _Run(path, stored, floats, model.network.multiscale.parts, is_encoded)


def _divide_parts(given: Sequence[_Run]) -> list[_Run]:
    own = []
    for n, each in enumerate(given):
        is_flow = "teacher" in each.stored and each.stored["network"]["base_flows"]
        own += [(part, n) for part in (each.parts[:1] if is_flow else each.parts)]
    kept = [(part, n) for n, each in enumerate(given) for part in each.parts]
    owners = dict(reversed(own + kept))  # a part's first run wins
    taken = [
        tuple(part for part in each.parts if owners[part] == n) for n, each in enumerate(given)
    ]
    return [e._replace(parts=parts) for e, parts in zip(given, taken, strict=True) if parts]


def _settings(taken: Sequence[_Run], names: Sequence[str], is_base: bool) -> dict[str, Any]:
    for each in taken:
        network = each.stored["network"]
        if any((part == str(network["base_size"])) == is_base for part in each.parts):
            return {name: network[name] for name in names}
    return {}


def _check_alike(first: _Run, other: _Run) -> None:
    known, network = first.stored["network"], other.stored["network"]
    factor = network["factor"] | {"dropout": known["factor"]["dropout"]}
    network = network | {name: known[name] for name in OF_THE_BASE} | {"factor": factor}
    like = {**other.stored, "network": network}
    different = [k for k in OF_THE_MODEL if like.get(k) != first.stored.get(k)]
    here, there = other.stored.get("data") or {}, first.stored.get("data") or {}
    different += [f"data.{k}" for k in OF_THE_IMAGES if here.get(k) != there.get(k)]
    if different:
        raise UserError(f"{other.path} and {first.path} differ in {', '.join(different)}.")


def _own(each: _Run) -> Arrays:
    base = str(each.stored["network"]["base_size"])

    def part_of(weight: str) -> str:
        _, kind, part, *_ = weight.split("/")
        return part if kind == "factors" else base

    return {
        name: weight
        for name, weight in each.weights.items()
        if not name.startswith("conditioner/") and part_of(name) in each.parts
    }


def _side_by_side(taken: list[_Run]) -> tuple[dict[str, int], Arrays]:
    vectors = _channels([each.stored["conditioning"]["text_channels"] for each in taken])
    maps = _channels([each.stored["conditioning"]["text_map_channels"] for each in taken])
    tables = [each.weights[TABLE] for each in taken]
    weights: Arrays = {TABLE: np.concatenate(tables, -1)}
    painted: Any = 0.0
    for each, vector, map_ in zip(taken, vectors, maps, strict=True):
        for name, weight in _own(each).items():
            kind = "" if SHALLOW in name else name.rpartition("/")[2]
            if kind in READS_VECTOR:
                weight = vector.pad_weight(weight, READS_VECTOR[kind])
            elif kind in READS_MAP:
                weight = map_.pad_weight(weight, READS_MAP[kind])
            weights[name] = weight
        if map_.own:
            kernel = each.weights[PAINTED].reshape(vector.own, -1, map_.own)
            painted = painted + map_.pad_weight(vector.pad_weight(kernel, 0), 2)
    if maps[0].all_:
        weights[PAINTED] = painted.reshape(vectors[0].all_, -1)
    return {"text_channels": vectors[0].all_, "text_map_channels": maps[0].all_}, weights


def _channels(sizes: list[int]) -> list[_Channels]:
    return [_Channels(sum(sizes[:i]), own, sum(sizes)) for i, own in enumerate(sizes)]


OF_THE_TEACHER = ("teacher", "teacher_weights", "targets")  # entries of config.json about a teacher
FLOW_TERMS = ("kl", "likelihood", "forward", "spectrum", "features")  # loss terms in "targets"


def measure(given: ExportArguments, stored: dict) -> Measured:
    """Evaluate a run's model on the dev split; `stored` is the content of its config.json."""
    model = load(given.run)
    if given.parts_from:
        others = tuple(model_folders.model_folder(path) for path in given.parts_from)
        given = dataclasses.replace(given, parts_from=others)
        stored, model = join_runs(given.run, others)
    if "teacher" in stored:
        stored["teacher"] = Path(stored["teacher"]).name
    dtype = np.float16 if given.float16 else np.float32
    for variable in model.network.trainable_variables:  # evaluate at the stored precision
        variable.assign(variable.numpy().astype(dtype).astype(np.float32))
    data = stored["data_folder"]
    dataset = ImageDataset.for_evaluation(
        data, model.config, model.front.classes, model.front.statistics
    )
    figures = evaluate(model, dataset)
    facts = {"quality": figures, "stored_dtype": np.dtype(dtype).name}
    facts |= {name: stored[name] for name in OF_THE_TEACHER if name in stored}
    if model.network.multiscale is not None and model.network.multiscale.has_flow:
        facts["base_flows"] = list(model.network.multiscale.config.base_flows)
    if model.config.conditioning.kind == "text":
        facts["captions"] = list(dataset.captions)
    rounded = "; weights rounded to float16: images differ from the run's" if given.float16 else ""
    summary = f"{figures['bits_per_dim']:.3f} bits per dimension on dev{rounded}"
    return Measured(given, model, stored, facts, summary, dtype=dtype)


def _teacher_line(spec: dict) -> str:
    if "teacher" not in spec:
        return ""
    first = f"- Distilled from `{spec['teacher']}` (weights {spec['teacher_weights']})"
    targets, guidance = spec["targets"], f"guidance {spec['targets']['guidance']:g}"
    if "base_flows" in spec:
        weights = ", ".join(f"{name} {targets[name]:g}" for name in FLOW_TERMS if targets[name])
        how = f", which drew with {guidance}" if targets["guidance"] else ""
        bound = "The probability of an image is a bound from below."
        return f"{first} by the terms {weights}{how}. {bound}\n"
    heat = " ".join(f"{temperature:g}" for temperature in targets["temperature"])
    so = "classes show more clearly, and it is no longer a density of the images."
    return f"{first} with {guidance}, temperature {heat}: {so}\n"


def card(spec: dict) -> str:
    """Return the model card, as Markdown; `spec` is the content of model.json."""
    quality = spec["quality"]
    seconds = quality["seconds_per_picture"]
    timed = "" if seconds is None else f"| seconds an image, batch 1 | {seconds:.3f} | |\n"
    kind = "PixelCNN" if spec["kind"] == "pixelcnn" else "multiscale PixelCNN"
    base = ", its base drawn in one pass by flows" if "base_flows" in spec else ""
    codecs = "\n".join(
        f"| lossless {(NAMES | DEEP_NAMES)[name]}, bits per dimension | {bits:.3f} | |"
        for name, bits in quality["codec"].items()
    )
    condition = "" if spec["condition"] == "none" else f", conditioned on {spec['condition']}"
    named = "; ".join(spec.get("captions") or ())
    captions = f"- Captions such as: {named}\n" if named else ""
    precision = "single precision (float32): images are those of the run"
    if spec.get("stored_dtype", "float16") == "float16":
        precision = "half precision (float16), rounded: images differ from those of the run"
    return f"""# {spec["preset"]}

A {kind} of {spec["size"]}x{spec["size"]} images with {spec["channels"]} channels,
{spec["weights"]:,} weights{condition}{base}.

- Data: {spec["data"]}. {spec["data_licence"]}
- Classes: {", ".join(spec["classes"]) or "none"}
{captions}- Weights are stored, and were measured, in {precision}.
{_teacher_line(spec)}{training_lines(spec)}

Measured on {quality["dev"]["pictures"]} dev images that it was not trained on (the best of its
checkpoints was chosen on them). Over images, {EXPLAINED}:

| | mean | interval |
|---|---|---|
{measure_table({"model": quality["measures"]}, in_two_columns)}
{codecs}
{timed}"""
