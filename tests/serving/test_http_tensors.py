"""JSON and bytes as tensors: what is not exactly what it says is refused before it is made."""

import base64
import tracemalloc

import numpy as np
import orjson
import pytest

from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import Signature, TensorInfo, check
from serving.engine.fields import from_columns, from_rows, json_tensor
from serving.http.routes import MAX_LISTS, json_object
from serving.http.tensors import read_inputs, split

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


def test_a_number_beyond_float32_becomes_infinite_without_a_warning():
    assert np.isinf(json_tensor("frames", [[[1e300, 0, 0]]], F32)[0, 0, 0])


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "nan"])
def test_json_has_no_numbers_that_are_not_finite(text):
    with pytest.raises(InvalidInput, match="must be JSON"):
        json_object(b'{"x": [' + text.encode() + b"]}")


@pytest.mark.parametrize("body", [b"", b"[1]", b"3", b"null", b'"x"', b"{", b"\xff{}", b"[" * 5000])
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


def test_bytes_are_read_as_little_endian_tensors_in_order():
    value = np.arange(6, dtype="<f4").reshape(1, 2, 3)
    row = {"name": "row", "shape": [1], "datatype": "INT32", **binary(4)}
    read = infer(row, frames(**binary(24)), tail=b"\x01\x02\0\0" + value.tobytes())
    np.testing.assert_array_equal(read["frames"], value)
    np.testing.assert_array_equal(read["row"], [513])


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
