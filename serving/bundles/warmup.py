"""Warm-up requests, with which TensorFlow Serving calls a version before serving it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from serving.bundles.signature import PLAIN, Signature, example

WARMUP = Path("assets.extra") / "tf_serving_warmup_requests"


def write_warmup(folder: Path, name: str, serving: Mapping[str, Any]) -> bool:
    """Write the requests; return False if the package tensorflow-serving-api is missing.

    They call `serving_default` alone: TensorFlow Serving is distributed without XLA, and rejects a
    version whose warm-up fails. `Bundle.warm` needs no requests.

    Args:
      folder: folder of the version.
      name: name of the model.
      serving: "serving" of model.json.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        return False
    signature = Signature.from_dict(serving["signatures"][PLAIN])
    padded = serving.get("padded", {})
    bucket = min((b for pad in padded.values() for b in pad["buckets"]), default=1)
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, PLAIN
    for key, array in example(signature, 1, padded, bucket).items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
    log = prediction_log_pb2.PredictLog(request=request)
    record = prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
    path = Path(folder) / WARMUP
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(record)
    return True
