"""Requests of clients over both protocols, and waiting for what they bring about."""

import json
import time

import numpy as np
from fake_bundle import CHANNELS

from serving.grpc.tensors import encode, message

FRAMES = 8
ROW = {"name": "frames", "shape": [1, FRAMES, CHANNELS], "datatype": "FP32"}
ROW["data"] = [0.5] * FRAMES * CHANNELS
COUNT = {"name": "num_frames", "shape": [1], "datatype": "INT32", "data": [FRAMES]}
INFER = json.dumps({"inputs": [ROW, COUNT]})
SOUND_FRAMES = 400
SPEAK = json.dumps({"frames": [[0.5] * CHANNELS] * SOUND_FRAMES, "format": "l16"})
GRPC_PREDICT = "/tensorflow.serving.PredictionService/Predict"
GRPC_SPEAK = "/onepass.Models/Speak"


def tensor(array):
    made = message("tensorflow.TensorProto")()
    encode(np.asarray(array), made)
    return made


def predict_request(name="voice", **inputs):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = name
    frames = np.full([1, FRAMES, CHANNELS], 0.5, np.float32)
    inputs = inputs or {"frames": frames, "num_frames": np.array([FRAMES], np.int32)}
    for key, value in inputs.items():
        made = tensor(value) if isinstance(value, np.ndarray) else value
        request.inputs[key].CopyFrom(made)
    return request


def method(channel, path, kind="unary_unary", answer=None):
    read = message(answer).FromString if answer else None
    return getattr(channel, kind)(path, lambda made: made.SerializeToString(), read)


def predict(channel, request, timeout=20, **options):
    asked = method(channel, GRPC_PREDICT, answer="tensorflow.serving.PredictResponse")
    return asked(request, timeout=timeout, **options)


def speak(channel, count=SOUND_FRAMES, timeout=20, name="voice", **options):
    """The call whose chunks are the sound of so many frames."""
    request = message("onepass.SpeakRequest")(**options)
    request.model_spec.name = name
    if not request.HasField("frames"):
        request.frames.CopyFrom(tensor(np.full([count, CHANNELS], 0.5, np.float32)))
    asked = method(channel, GRPC_SPEAK, "unary_stream", "onepass.SpeakResponse")
    return asked(request, timeout=timeout)


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
