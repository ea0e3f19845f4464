"""Descriptions of a model's signatures in the words of TensorFlow Serving and the v2 protocol."""

import importlib.metadata
from typing import Any

from onepass.bundles.signature import PLAIN, TENSORFLOW_NAMES, V2_NAMES, TensorInfo
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel

METHOD = "tensorflow/serving/predict"
PLATFORM = "tensorflow_savedmodel"
SERVER_VERSION = importlib.metadata.version("onepass")


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
        return [
            {"name": name, "datatype": V2_NAMES[info.dtype], "shape": info.sizes}
            for name, info in infos.items()
        ]

    signature, statuses = served.signature(PLAIN), registry.versions(served.name)
    return {
        "name": served.name,
        "versions": [str(s.version) for s in statuses if s.state == "AVAILABLE"],
        "platform": PLATFORM,
        "inputs": tensors(signature.inputs),
        "outputs": tensors(signature.outputs),
    }
