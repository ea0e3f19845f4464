"""Fields and tensors of requests: each rule is kept, and a refusal names it and its field."""

import base64
import math
import tracemalloc

import numpy as np
import orjson
import pytest
from fake_bundle import FakeDrawings
from http_running import Running, speak_text_with, store

from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import Signature, TensorInfo, check
from serving.engine.fields import as_model, from_columns, from_rows, json_tensor
from serving.http.generation import DrawRequest, ImagesRequest, SpeakRequest, SpeechRequest
from serving.http.routes import MAX_LISTS, json_object
from serving.http.tensors import (
    InferRequest,
    read_inputs,
    split,
)

PREDICT, INFER = "/v1/models/shapes:predict", "/v2/models/shapes/infer"
DRAW, SPEAK = "/v1/models/shapes:draw", "/v1/models/voice:speak"
IMAGES, SPEECH = "/v1/images/generations", "/v1/audio/speech"
LABEL = {"name": "label", "shape": [1], "datatype": "INT32", "data": [3]}
FRAME = {"frames": [[1, 2, 3]]}
A_CLASS = "`class` must be a text or an integer, got "
# What every request of a route has, unless it gives it itself.
GIVEN = {
    INFER: {"inputs": [LABEL]},
    IMAGES: {"prompt": "1", "model": "shapes"},
    SPEECH: {"input": "x"},
}
WRONG = [
    *(
        (INFER, {"inputs": [row]}, words)
        for row, words in (
            ({**LABEL, "shape": [0]}, "`inputs[0].shape[0]` must be at least 1, got 0."),
            ({"name": "label", "datatype": "INT32"}, "`inputs[0].shape` must be given."),
        )
    ),
    (INFER, {"inputs": None}, "`inputs` must be a list"),
    (INFER, {"inputs": []}, "`inputs` must be of length at least 1, got an empty list."),
    (INFER, {"inputs": [LABEL, LABEL]}, "`label` must be given once."),
    (INFER, {"parameters": 3}, "`parameters` must be an object"),
    (INFER, {"parameters": {"binary_data_output": 1}}, "_data_output` must be true or false"),
    (INFER, {"parameters": {"timeout": "1"}}, "timeout` must be a number"),
    (INFER, {"parameters": {"timeout": -1}}, "timeout` must be at least 0, got -1."),
    (INFER, {"outputs": [{"name": "x", "parameters": {"classification": 1}}]}, "at most 0"),
    (INFER, {"outputs": [{"name": "other"}]}, "`other` is not an output; there are"),
    (INFER, {"outputs": [{"name": ["x"]}]}, "`outputs[0].name` must be a text"),
    (INFER, {"outputs": ["picture"]}, "`outputs[0]` must be an object"),
    (INFER, {"outputs": [{"name": "x", "parameters": {"shared_memory_region": "x"}}]}, "shared"),
    (INFER, {"id": 7}, "`id` must be a text"),
    (PREDICT, {}, "either `instances` or `inputs`"),
    (PREDICT, {"instances": [{"label": 1}], "inputs": {"label": [1]}}, "either"),
    (PREDICT, {"instances": {}}, "`instances` must be a list, got an empty object."),
    (PREDICT, {"instances": {"label": 1}}, "`instances` must be a list, got an object."),
    (PREDICT, {"instances": [1], "signature_name": 3}, "`signature_name` must be"),
    (PREDICT, {"instances": [{"label": 10}]}, "`label` must be"),
    (PREDICT, {"instances": [{"label": 1.5}]}, "`label` must hold integers"),
    (PREDICT, {"instances": [{"label": "1"}]}, "`label` must hold integers"),
    (PREDICT, {"instances": [{"label": [1]}]}, "`label` must hold integers"),
    (PREDICT, {"inputs": {"label": [1, 2], "seed": [1]}}, "rows"),
    (PREDICT, {"inputs": {"temperature": [[1e39, 1]]}}, "`temperature` must be finite"),
    (PREDICT, {"instances": [{"temperature": [1]}]}, "`temperature` must have the shape"),
    (DRAW, {}, "`class` must be given"),
    (DRAW, {"class": "zebra"}, "there are class 0"),
    (DRAW, {"class": 10}, "must be a class"),
    (DRAW, {"class": []}, f"{A_CLASS}an empty list."),
    *((DRAW, {"class": True}, A_CLASS), (DRAW, {"class": 1.0}, A_CLASS)),
    (DRAW, {"class": 1, "caption": "x"}, "`caption` must not be given"),
    (DRAW, {"map": [[1]]}, "`map` must not be given"),
    (DRAW, {"class": 1, "num": -3}, "`num` must be at least 1, got -3."),
    (DRAW, {"class": 1, "num": 65}, "`num` must be an integer from 1 to 64"),
    (DRAW, {"class": 1, "guidance": -1}, "`guidance` must be at least 0, got -1."),
    (DRAW, {"class": 1, "temperature": []}, "`temperature` must be"),
    (DRAW, {"class": 1, "guidance": "1"}, '`guidance` must be a number, got "1".'),
    (DRAW, {"class": 1, "temperature": [1] * 3}, "`temperature` must be one number or 2"),
    (DRAW, {"class": 1, "temperature": -1}, "`temperature` must be"),
    (DRAW, {"class": 1, "temperature": "x"}, "`temperature` must be a number or a list"),
    ("/v1/models/drawings:draw", {}, "`caption` must be given, such as 'a dog, noto'."),
    ("/v1/models/voice:draw", {}, "`voice` makes sound, not images."),
    ("/v1/models/shapes:speak", {}, "`shapes` makes images, not sound."),
    (IMAGES, {"model": None}, "`model` must be given: there are several."),
    (IMAGES, {"model": "voice"}, "`voice` makes sound, not images."),
    (SPEECH, {"model": "shapes"}, "`shapes` makes images, not sound."),
    (SPEAK, {}, "one of frames, recording, example, text"),
    (SPEAK, {"example": "arctic_a0099", "text": "hello"}, "one of frames"),
    (SPEAK, {"example": "../../../etc/passwd"}, "no example"),
    (SPEAK, {"example": ["x"]}, "`example` must be a text, got a list."),
    (SPEAK, {"frames": [[1, 2]]}, "`frames` must have the shape"),
    (SPEAK, {"frames": [[1] * 40] * 3}, "got [1, 3, 40]: it is transposed."),
    (SPEAK, {"frames": [[1, 2, 3], [1, 2]]}, "ragged"),
    (SPEAK, {"frames": []}, "must not be empty"),
    (SPEAK, {"frames": [[1e39, 2, 3]]}, "finite"),
    (SPEAK, {"frames": [["1", 2, 3]]}, "must hold numbers"),
    (SPEAK, {"frames": [[1, 2, 3]] * 12_001}, "at most 12,000 frames"),
    (SPEAK, {**FRAME, "temperature": 5}, "must be between 0 and 2, got 5"),
    (SPEAK, {**FRAME, "temperature": "1"}, "`temperature` must be a number"),
    (SPEAK, {**FRAME, "seconds": 0}, "`seconds` must be above 0, got 0."),
    (SPEAK, {**FRAME, "speaker": "carl"}, "one of anna, ben"),
    (SPEAK, {**FRAME, "speaker": 0}, "`speaker` must be a text, got 0."),
    (SPEAK, {**FRAME, "format": "mp3"}, "`format` must be one of wav, l16"),
    (SPEAK, {"recording": "not base64!"}, "`recording` must be base64"),
    (SPEAK, {"recording": 3}, "`recording` must be a text, got 3."),
    (SPEAK, {"recording": base64.b64encode(b"x").decode()}, "`recording` must be a WAV or a FLAC"),
    (SPEAK, {"text": "x", "pronunciations": {"no": 3}}, "`pronunciations.no` must be a text"),
    (SPEAK, {"phonemes": "x", "pronunciations": {"no": "x"}}, "not be given without `text`"),
    (SPEAK, {"phonemes": "x", "text": "No."}, "one of frames"),
    (SPEAK, {**FRAME, "times": True}, "`times` must not be given without `text` or `phonemes`."),
    (SPEAK, {"text": "\u6f22" * 700}, "at most 1,000 characters, got 4,200"),
    (SPEAK, {"text": "x", "force": 1}, "`force` must be true or false, got 1."),
    *((IMAGES, {"prompt": text}, "must be a class") for text in ("-1", "1" * 400, "\u0663")),
    *((IMAGES, {"prompt": text}, "there are class 0, class 1") for text in ("zebra", "10")),
    (IMAGES, {"prompt": " "}, "`prompt` must be a text"),
    (IMAGES, {"prompt": ["1"]}, "`prompt` must be a text"),
    (IMAGES, {"n": 1.0}, "`n` must be an integer, got 1.0."),
    (IMAGES, {"n": True}, "`n` must be an integer, got true."),
    (IMAGES, {"size": "1024x1024"}, "`size` must be one of 8x8, 16x16, auto"),
    (IMAGES, {"size": 8}, "`size` must be"),
    (IMAGES, {"response_format": "url"}, "`response_format` must be one of b64_json"),
    (IMAGES, {"stream": True}, "`stream` must be false"),
    (SPEECH, {"input": None}, "`input` must be"),
    (SPEECH, {"voice": "carl"}, "one of default, anna, ben"),
    (SPEECH, {"voice": 3}, "`voice` must be"),
    (SPEECH, {"response_format": "aac"}, "must be one of mp3, opus, ogg, flac, wav, pcm, "),
    (SPEECH, {"stream_format": "other"}, "`stream_format`"),
]
STATUS = {"no example": 404, "at most 12,000 frames": 413, "makes": 404}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        speak_text_with(patch, lambda *_, **more: np.zeros([4, 3], np.float32))
        models = store(tmp_path_factory.mktemp("models"))
        models.add("drawings", kind=FakeDrawings)
        with Running(models) as running:
            yield running


@pytest.mark.parametrize(("path", "fields", "words"), WRONG)
def test_a_field_that_breaks_a_rule_is_named_with_the_rule(running, path, fields, words):
    answer = running.client.post(path, json={**GIVEN.get(path, {}), **fields})
    error, is_openais = answer.json()["error"], path in (IMAGES, SPEECH)
    status = next((STATUS[known] for known in STATUS if known in words), 400)
    assert answer.status_code == status
    assert words in (error["message"] if is_openais else error)
    if is_openais:
        assert set(error) == {"message", "type", "param", "code"}
        code = "not_found" if status == 404 else "invalid_input"
        assert (error["type"], error["code"]) == ("invalid_request_error", code)
    controls = running.store.controls.values()
    assert not any(control.calls or control.chunks for control in controls)


def test_a_field_that_must_be_given_is_named(running):
    for path, name in ((IMAGES, "prompt"), (SPEECH, "input"), (INFER, "inputs")):
        assert f"`{name}` must be given" in running.client.post(path, json={}).text


@pytest.mark.parametrize("query", ["seed=x", "seed=NaN", "temperature=Infinity", "seconds=-1"])
def test_a_query_that_breaks_a_rule_is_refused(running, query):
    headers = {"content-type": "audio/wav"}
    answer = running.client.post(f"{SPEAK}?{query}", content=b"RIFF", headers=headers)
    assert answer.status_code == 400 and f"`{query.partition('=')[0]}` must be" in answer.text


@pytest.mark.parametrize(
    ("model", "fields", "least", "most"),
    [
        (SpeakRequest, lambda n: {"row": n}, 0, 2**31 - 1),
        (SpeakRequest, lambda n: {"refine": n}, 0, 8),
        (SpeakRequest, lambda n: {"text": "x" * n}, None, 1000),
        (SpeakRequest, lambda n: {"phonemes": "x" * n}, None, 1000),
        (SpeakRequest, lambda n: {"pronunciations": {"x" * n: "x"}}, 1, 100),
        (SpeakRequest, lambda n: {"pronunciations": {"x": "x" * n}}, 1, 200),
        (SpeakRequest, lambda n: {"pronunciations": {str(i): "x" for i in range(n)}}, None, 1000),
        (SpeechRequest, lambda n: {"input": "x" * n}, 1, 4096),
        (SpeechRequest, lambda n: {"input": "x", "speed": n}, 0.25, 4.0),
        (ImagesRequest, lambda n: {"prompt": "x" * n}, 1, 4000),
        (ImagesRequest, lambda n: {"prompt": "x", "n": n}, 1, 10),
        (DrawRequest, lambda n: {"caption": "x" * n}, None, 200),
        (InferRequest, lambda n: {"inputs": [{**LABEL, "shape": [n]}]}, 1, 2**31 - 1),
    ],
)
def test_a_field_is_accepted_at_its_limits_and_refused_beyond(model, fields, least, most):
    for limit, way in ((least, -1), (most, 1)):
        if limit is not None:
            as_model(fields(limit), model)
            is_real = isinstance(limit, float)
            beyond = math.nextafter(limit, way * math.inf) if is_real else limit + way
            with pytest.raises(InvalidInput, match=" must be "):
                as_model(fields(beyond), model)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (DrawRequest, {"temperature": ["x"] * 100_000}),
        (InferRequest, {"inputs": [{"name": "x", "datatype": "x", "shape": ["x"] * 100_000}]}),
        (InferRequest, {"inputs": [7] * 100_000}),
        (InferRequest, {"inputs": [LABEL], "outputs": [{}] * 100_000}),
        (SpeakRequest, {"pronunciations": {str(n): 7 for n in range(100_000)}}),
    ],
)
def test_many_wrong_values_cost_no_more_than_the_first(model, fields):
    as_model({}, DrawRequest)  # which builds what checks
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=" must "):
            as_model(fields, model)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


F32 = TensorInfo(np.dtype(np.float32), (None, None, 3))
I32 = TensorInfo(np.dtype(np.int32), (None,), default=0)
U8 = TensorInfo(np.dtype(np.uint8), (None, 2, 2, 3))
SIGNATURE = Signature({"frames": F32, "row": I32}, {"sound": F32})
IMAGE = Signature({"start": U8, "row": I32}, {})


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("info", "value"),
    [
        *((F32, [[[1.5, -2, 3e38]], [[0, 1, 2]]]), (I32, [-(2**31), 0, 2**31 - 1])),
        (TensorInfo(np.dtype(np.bool_), (None,)), [True, False]),
        (U8, np.arange(24).reshape(2, 2, 2, 3).tolist()),
    ],
)
def test_lists_become_the_array_that_numpy_makes_of_them(info, value):
    array = json_tensor("x", value, info)
    assert array.dtype == info.dtype
    np.testing.assert_array_equal(array, np.array(value, info.dtype))


@pytest.mark.parametrize(
    ("info", "value", "rule"),
    [
        (F32, [[[1, 2, 3], [1, 2]]], "ragged"),
        (F32, [[[1, 2, 3]], [[1, 2, 3], [1, 2, 3]]], "ragged"),
        *((F32, [[[1, 2, 3], 4]], "3 deep"), (F32, [[1, 2, 3]], "3 deep"), (F32, 7, "3 deep")),
        *((F32, None, "3 deep"), (F32, [], "must not be empty")),
        *((F32, [[]], "must not be empty"), (F32, [[[]]], "must not be empty")),
        (F32, [[[1, 2, [3]]]], "must hold numbers"),
        (F32, [[["1", 2, 3]]], "must hold numbers"),
        (F32, [[[None, 2, 3]]], "must hold numbers"),
        *((F32, [[[True, 2, 3]]], "must hold numbers"), (I32, [1.0], "must hold integers")),
        *((I32, [2**31], "must fit int32"), (I32, [-(2**31) - 1], "must fit int32")),
        (I32, [2**64 - 1], "must fit int32"),
        (U8, np.full([1, 2, 2, 3], -1).tolist(), "must fit uint8"),
        (U8, np.full([1, 2, 2, 3], 256).tolist(), "must fit uint8"),
    ],
)
def test_what_is_no_tensor_is_refused_with_the_field_and_the_rule(info, value, rule):
    with pytest.raises(InvalidInput, match=f"`x` .*{rule}"):
        json_tensor("x", value, info)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[1]", b"3", b"null", b'"x"', b"{", b"\xff{}", b"[" * 5000),
        *(b'{"x": [%s]}' % word for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"nan")),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(InvalidInput, match="The body must be"):
        json_object(body)


def test_a_body_of_empty_lists_is_refused_before_it_is_parsed():
    body = b'{"x":[' + b"[]," * MAX_LISTS + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="lists and objects"):
            json_object(body)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body)
    finally:
        tracemalloc.stop()


def test_one_long_text_among_many_numbers_makes_no_large_array():
    value = [[[1, 2, 3]] * 3000 + [["x" * 100_000, 2, 3]]]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="must hold numbers"):
            json_tensor("frames", value, F32)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_the_only_input_that_must_be_given_needs_no_name():
    frames = np.arange(12.0).reshape(2, 2, 3).tolist()
    for inputs in (from_rows(frames, SIGNATURE), from_columns(frames, SIGNATURE)):
        np.testing.assert_array_equal(inputs["frames"], np.array(frames, np.float32))


@pytest.mark.parametrize(
    ("instances", "rule"),
    [
        ([{"frames": [[1, 2, 3]]}, {"row": 1}], "same inputs in every row"),
        ([{"frames": [[1, 2, 3]]}, {"frames": [[1, 2, 3], [1, 2, 3]]}], "`frames` .* ragged"),
        ([{"other": 1}], "`other` is not an input"),
        ([{"frames": {"b64": "AAAA"}}], "3 deep"),
    ],
)
def test_rows_that_do_not_agree_are_refused(instances, rule):
    with pytest.raises(InvalidInput, match=rule):
        from_rows(instances, SIGNATURE)


def test_images_may_be_base64_whole_or_row_by_row():
    images = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    rows = [b64(image.tobytes()) for image in images]
    for inputs in (
        from_columns({"start": b64(images.tobytes())}, IMAGE),
        from_columns({"start": rows}, IMAGE),
        *(from_rows([{"start": row} for row in rows], IMAGE), from_rows(rows, IMAGE)),
    ):
        np.testing.assert_array_equal(inputs["start"], images)


@pytest.mark.parametrize(
    "value",
    [b64(b"x" * 13), b64(b""), {"b64": "not base64!"}, {"b64": 3}, {"b64": "é"}, [b64(b"x" * 24)]],
)
def test_base64_that_does_not_fill_the_shape_is_refused(value):
    with pytest.raises(InvalidInput, match="`start` must"):
        from_columns({"start": value}, IMAGE)


def infer(*tensors, tail=b""):
    header = orjson.dumps({"inputs": tensors})
    asked, rest = split(header + tail, str(len(header)))
    return check(SIGNATURE, read_inputs(asked.inputs, rest, SIGNATURE))


def frames(shape=(1, 2, 3), **rest):
    return {"name": "frames", "shape": list(shape), "datatype": "FP32", **rest}


def binary(size):
    return {"parameters": {"binary_data_size": size}}


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6], [[[1, 2, 3], [4, 5, 6]]]])
def test_json_data_may_be_flat_or_nested(data):
    np.testing.assert_array_equal(infer(frames(data=data))["frames"], [[[1, 2, 3], [4, 5, 6]]])


@pytest.mark.parametrize(
    ("tensor", "tail", "rule"),
    [
        (frames((1, 2**30, 3), **binary(24)), b"x" * 24, "bytes, got 24"),
        (frames((2**31, 2**31, 3), **binary(24)), b"x" * 24, "shape"),
        (frames((1, 2**30, 3), data=[1]), b"", "declared shape"),
        (frames(**binary(20)), b"x" * 24, "24 bytes, got 20"),
        (frames((1,) * 9, data=[1]), b"", "at most 8 dimensions"),
        (frames(**binary(24)), b"x" * 20, "24 bytes, got 20"),
        (frames(**binary(24)), b"x" * 28, "end with its tensors, got 4 more"),
        (frames(**binary(-24)), b"x" * 24, "binary_data_size"),
        (frames(**binary(24.0)), b"x" * 24, "binary_data_size"),
        (frames(**binary(True)), b"x" * 24, "binary_data_size"),
        (frames((1, -2, 3), **binary(24)), b"x" * 24, "shape"),
        (frames((1, 0, 3), data=[]), b"", "shape"),
        (frames((1, 2), data=[1, 2]), b"", "must have the shape"),
        (frames((1, 2, 4), data=[1] * 8), b"", "must have the shape"),
        (frames((1, 2.0, 3), data=[1] * 6), b"", "shape"),
        (frames((True, 2, 3), data=[1] * 6), b"", "shape"),
        (frames("123", data=[1] * 6), b"", "shape"),
        (frames(data=[1] * 5), b"", "declared shape"),
        (frames(data=[[1, 2, 3], [4, 5, 6]]), b"", "3 deep"),
        (frames(), b"", "lists 1 deep"),
        (frames(data=[1] * 6, **binary(24)), b"x" * 24, "got both"),
        ({**frames(**binary(24)), "datatype": "FP64"}, b"x" * 24, "48 bytes, got 24"),
        ({**frames(data=[1] * 6), "datatype": "BYTES"}, b"", "must be of BOOL, .* got `BYTES`"),
        ({**frames(data=[1] * 6), "name": 3}, b"", r"`inputs\[0\].name` must be a text"),
        ({**frames(data=[1] * 6), "name": "other"}, b"", "`other` is not an input"),
        ({**frames(), "parameters": {"shared_memory_region": "r"}}, b"", "shared_memory_region"),
        ({**frames(), "parameters": []}, b"", "parameters` must be an object"),
        (7, b"", r"`inputs\[0\]` must be an object"),
    ],
)
def test_sizes_that_lie_are_refused(tensor, tail, rule):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=rule):
            infer(tensor, tail=tail)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", ["-1", "99", "x", "1e3", "٣", " 2", "9" * 40, ""])
def test_a_json_length_that_lies_is_refused(length):
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        split(b"{}", length)
