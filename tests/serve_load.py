"""Requests of clients over both protocols, and waiting for what they bring about."""

import json

import numpy as np
from fake_bundle import CHANNELS
from processes import wait_until

from onepass.bundles.signature import V2_NAMES
from serving.grpc.tensors import encode, message

FRAMES = 8
ROW = {"name": "frames", "shape": [1, FRAMES, CHANNELS], "datatype": "FP32"}
ROW["data"] = [0.5] * FRAMES * CHANNELS
COUNT = {"name": "num_frames", "shape": [1], "datatype": "INT32", "data": [FRAMES]}
INFER = json.dumps({"inputs": [ROW, COUNT]})
SOUND_FRAMES = 400
SPEAK = json.dumps({"frames": [[0.5] * CHANNELS] * SOUND_FRAMES, "format": "l16"})
GRPC_PREDICT = "/tensorflow.serving.PredictionService/Predict"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC_SPEAK = "/onepass.Models/Speak"


def tensor(array):
    made = message("tensorflow.TensorProto")()
    encode(np.asarray(array), made)
    return made


INPUTS = {
    "frames": np.full([1, FRAMES, CHANNELS], 0.5, np.float32),
    "num_frames": np.array([FRAMES], np.int32),
}


def predict_request(name="voice", **inputs):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = name
    for key, value in (inputs or INPUTS).items():
        made = tensor(value) if isinstance(value, np.ndarray) else value
        request.inputs[key].CopyFrom(made)
    return request


def infer_request(name="voice", **inputs):
    request = message("inference.ModelInferRequest")(model_name=name, id="mine")
    for key, value in (inputs or INPUTS).items():
        request.inputs.add(name=key, datatype=V2_NAMES[value.dtype], shape=value.shape)
        request.raw_input_contents.append(value.tobytes())
    return request


def method(channel, path, kind="unary_unary", answer=None):
    read = message(answer).FromString if answer else None
    return getattr(channel, kind)(path, lambda made: made.SerializeToString(), read)


def predict(channel, request, timeout=20, **options):
    asked = method(channel, GRPC_PREDICT, answer="tensorflow.serving.PredictResponse")
    return asked(request, timeout=timeout, **options)


def infer(channel, request, timeout=20, **options):
    asked = method(channel, GRPC_INFER, answer="inference.ModelInferResponse")
    return asked(request, timeout=timeout, **options)


def speak_request(count=SOUND_FRAMES, name="voice", **options):
    """A request for the sound of so many frames."""
    request = message("onepass.SpeakRequest")(**options)
    request.model_spec.name = name
    if not request.HasField("frames"):
        request.frames.CopyFrom(tensor(np.full([count, CHANNELS], 0.5, np.float32)))
    return request


def speak(channel, count=SOUND_FRAMES, timeout=20, **options):
    """The call whose chunks are the sound of so many frames."""
    asked = method(channel, GRPC_SPEAK, "unary_stream", "onepass.SpeakResponse")
    return asked(speak_request(count, **options), timeout=timeout)


def until(condition, seconds=10):
    wait_until(condition, seconds)
