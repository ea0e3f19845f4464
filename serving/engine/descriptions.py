"""Descriptions of a model: its facts, and its signatures as TensorFlow Serving and v2 have them."""

import importlib.metadata
from typing import Any

from onepass.bundles.sampling import CONDITIONS
from onepass.bundles.signature import PLAIN, TENSORFLOW_NAMES, V2_NAMES, TensorInfo
from serving.engine.drawing import condition_input, scales
from serving.engine.drawing import signature as drawing_signature
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.engine.speech import is_conditional, max_seconds, speakers, supports_text

METHOD = "tensorflow/serving/predict"
PLATFORM = "tensorflow_savedmodel"
SERVER_VERSION = importlib.metadata.version("onepass")
FACTS = (
    *("preset", "data_licence", "quality", "size", "channels", "sample_rate_hz", "hop_samples"),
    *("temperature", "order", "elements", "conditions", "codec", "distribution"),
    *("max_length", "unit_samples", "weights"),
)


def describe_signatures(served: ServedModel) -> dict[str, Any]:
    """Return the model's signatures as a SignatureDefMap in JSON form."""

    def tensors(infos: dict[str, TensorInfo]) -> dict[str, Any]:
        return {
            name: {
                "dtype": TENSORFLOW_NAMES[info.dtype],
                "tensor_shape": {
                    "dim": [{"size": str(size), "name": ""} for size in info.sizes],
                    "unknown_rank": False,
                },
                "name": f"{name}:0",
            }
            for name, info in infos.items()
        }

    definitions = {
        name: {"inputs": tensors(s.inputs), "outputs": tensors(s.outputs), "method_name": METHOD}
        for name, s in served.signatures.items()
    }
    return {"signature_def": definitions}


def metadata_of(registry: ModelRegistry, served: ServedModel) -> dict[str, Any]:
    """Return the inputs and outputs of a model's `serving_default`, and the versions served."""

    def tensors(infos: dict[str, TensorInfo]) -> list[dict[str, Any]]:
        known = infos.items()
        return [{"name": n, "datatype": V2_NAMES[x.dtype], "shape": x.sizes} for n, x in known]

    signature, statuses = served.signature(PLAIN), registry.versions(served.name)
    return {
        "name": served.name,
        "versions": [str(s.version) for s in statuses if s.state == "AVAILABLE"],
        "platform": PLATFORM,
        "inputs": tensors(signature.inputs),
        "outputs": tensors(signature.outputs),
    }


def facts_of(served: ServedModel) -> dict[str, Any]:
    """Return what model.json says about a model, and what may be asked of it."""
    facts = {"created": served.created, "kind": served.kind, "version": served.version}
    facts |= {name: served.spec[name] for name in FACTS if served.spec.get(name) is not None}
    if "data_licence" in facts:
        facts["licence"] = facts.pop("data_licence")
    if served.kind == "picture":
        return facts | {
            "condition": CONDITIONS.get(condition_input(served) or ""),
            "classes": served.spec.get("classes") or [],
            "captions": served.spec.get("captions") or [],
            "guidance": "guidance" in drawing_signature(served).inputs,
            "sizes": [side for side, _ in scales(served)],
        }
    facts["condition"] = "frames" if is_conditional(served) else None
    if served.kind != "sound":
        return facts
    return facts | {
        "text": is_conditional(served) and supports_text(served),
        "speakers": speakers(served),
        "max_seconds": max_seconds(served),
    }
