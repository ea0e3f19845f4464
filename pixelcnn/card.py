"""Measurements of a trained image model, and its model card."""

import dataclasses
from pathlib import Path

import numpy as np

from onepass import shipped
from onepass.foundation.card import (
    ExportArguments,
    Measured,
    in_two_columns,
    measure_table,
    training_lines,
)
from onepass.foundation.intervals import EXPLAINED
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.evaluation import evaluate
from pixelcnn.joining import join_runs
from pixelcnn.measures import DEEP_NAMES, NAMES
from pixelcnn.model import load

OF_THE_TEACHER = ("teacher", "teacher_weights", "targets")  # entries of config.json about a teacher
FLOW_TERMS = ("kl", "likelihood", "forward", "spectrum", "features")  # loss terms in "targets"


def measure(given: ExportArguments, stored: dict) -> Measured:
    """Evaluate a run's model on the dev split; `stored` is the content of its config.json."""
    model = load(given.run)
    if given.parts_from:
        others = tuple(shipped.model_folder(path) for path in given.parts_from)
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
    said = _flow_targets if "base_flows" in spec else _guided_targets
    return f"{first} {said(spec['targets'])}\n"


def _guided_targets(targets: dict) -> str:
    heat = " ".join(f"{temperature:g}" for temperature in targets["temperature"])
    return (
        f"with guidance {targets['guidance']:g}, temperature {heat}: classes show more clearly, "
        "and it is no longer a density of the images."
    )


def _flow_targets(targets: dict) -> str:
    weights = ", ".join(f"{name} {targets[name]:g}" for name in FLOW_TERMS if targets[name])
    how = f", which drew with guidance {targets['guidance']:g}" if targets["guidance"] else ""
    return f"by the terms {weights}{how}. The probability of an image is a bound from below."


def _captions_line(spec: dict) -> str:
    if not spec.get("captions"):
        return ""
    return f"- Captions such as: {'; '.join(spec['captions'])}\n"


def _precision(spec: dict) -> str:
    if spec.get("stored_dtype", "float16") == "float16":
        return "half precision (float16), rounded: images differ from those of the run"
    return "single precision (float32): images are those of the run"


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
    return f"""# {spec["preset"]}

A {kind} of {spec["size"]}x{spec["size"]} images with {spec["channels"]} channels,
{spec["weights"]:,} weights{condition}{base}.

- Data: {spec["data"]}. {spec["data_licence"]}
- Classes: {", ".join(spec["classes"]) or "none"}
{_captions_line(spec)}- Weights are stored, and were measured, in {_precision(spec)}.
{_teacher_line(spec)}{training_lines(spec)}

Measured on {quality["dev"]["pictures"]} dev images that it was not trained on (the best of its
checkpoints was chosen on them). Over images, {EXPLAINED}:

| | mean | interval |
|---|---|---|
{measure_table({"model": quality["measures"]}, in_two_columns)}
{codecs}
{timed}"""
