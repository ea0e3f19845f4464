"""The v2 inference protocol, asked by NVIDIA's own client."""

import json

import numpy as np
import pytest
from fake_bundle import CHANNELS, HOP
from http_running import Running, ask, store

import onepass

http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")

INFER = "/v2/models/shapes/infer"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with Running(store(tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    client = http.InferenceServerClient(f"127.0.0.1:{running.port}")
    yield client
    client.close()


def given(name, array, binary=True):
    tensor = http.InferInput(name, list(array.shape), utils.np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def speech(seed=1, binary=(True, True, True)):
    frames = np.random.default_rng(seed).normal(size=[1, 6, CHANNELS]).astype(np.float32)
    arrays = {"frames": frames, "num_frames": np.int32([6]), "seed": np.int64([seed])}
    return frames, [given(n, a, b) for (n, a), b in zip(arrays.items(), binary, strict=True)]


def test_the_server_and_its_models_are_ready(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("voice")
    assert client.is_model_ready("voice", "1")
    assert not client.is_model_ready("voice", "2")
    assert not client.is_model_ready("other")


def test_metadata_are_those_of_the_signature(client):
    server = client.get_server_metadata()
    assert "binary_tensor_data" in server["extensions"]
    assert server["version"] == onepass.__version__
    metadata = client.get_model_metadata("voice")
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"][0] == {
        "name": "frames",
        "datatype": "FP32",
        "shape": [-1, -1, CHANNELS],
    }
    assert {"name": "sound", "datatype": "FP32", "shape": [-1, -1]} in metadata["outputs"]


def test_the_index_has_every_version(client):
    assert [(row["name"], row["state"]) for row in client.get_model_repository_index()] == [
        ("shapes", "READY"),
        ("voice", "READY"),
    ]


@pytest.mark.parametrize("binary", [(True,) * 3, (False,) * 3, (False, True, False)])
def test_bytes_json_and_both_mixed_give_the_same_sound(running, client, binary):
    frames, inputs = speech(4, binary)
    expected = running.store.load(running.store.root / "voice" / "1").sample(
        condition=frames[0], seed=4
    )
    wanted = [
        None,
        [http.InferRequestedOutput("sound", binary_data=True)],
        [http.InferRequestedOutput("sound", binary_data=False)],
    ]
    for outputs in wanted:
        result = client.infer("voice", inputs, outputs=outputs, request_id="7")
        np.testing.assert_array_equal(result.as_numpy("sound"), expected)
        assert result.get_response()["id"] == "7"
        assert result.get_response()["model_version"] == "1"


def test_only_the_outputs_asked_for_come_back(client):
    _, inputs = speech()
    result = client.infer("voice", inputs, outputs=[http.InferRequestedOutput("num_samples")])
    assert [output["name"] for output in result.get_response()["outputs"]] == ["num_samples"]
    assert result.as_numpy("num_samples").tolist() == [6 * HOP]


def test_many_requests_share_a_connection(running, client):
    _, inputs = speech()
    before = len(running._server.server_state.connections)
    for _ in range(20):
        client.infer("voice", inputs)
    assert len(running._server.server_state.connections) <= max(1, before)


def test_requests_side_by_side_are_all_answered(client, running):
    with http.InferenceServerClient(f"127.0.0.1:{running.port}", concurrency=4) as many:
        asked = [(seed, many.async_infer("voice", speech(seed)[1])) for seed in range(12)]
        bundle = running.store.load(running.store.root / "voice" / "1")
        for seed, request in asked:
            sound = request.get_result().as_numpy("sound")
            np.testing.assert_array_equal(
                sound, bundle.sample(condition=speech(seed)[0][0], seed=seed)
            )


def test_the_signature_is_a_parameter(running, client):
    _, inputs = speech()
    client.infer("voice", inputs, parameters={"signature_name": "compiled"})
    assert running.store.controls["voice", 1].calls[-1][0] == "compiled"
    with pytest.raises(utils.InferenceServerException, match="no signature `other`"):
        client.infer("voice", inputs, parameters={"signature_name": "other"})


def test_a_compressed_request_is_refused_in_words(client):
    _, inputs = speech()
    with pytest.raises(utils.InferenceServerException, match="compressed"):
        client.infer("voice", inputs, request_compression_algorithm="gzip")


def test_an_answer_is_never_compressed(client):
    _, inputs = speech()
    result = client.infer("voice", inputs, response_compression_algorithm="gzip")
    assert result.as_numpy("sound").shape == (1, 6 * HOP)


def test_what_breaks_a_rule_comes_back_as_its_words(client):
    _, (frames, num_frames, _) = speech()
    for array in (np.float32([[[np.nan] * CHANNELS]]), np.float32([[[np.inf] * CHANNELS]])):
        inputs = [given("frames", array), given("num_frames", np.int32([1]))]
        with pytest.raises(utils.InferenceServerException, match="`frames` must be finite"):
            client.infer("voice", inputs)
    with pytest.raises(utils.InferenceServerException, match="`num_frames`"):
        client.infer("voice", [frames, given("num_frames", np.int32([-1]))])
    with pytest.raises(utils.InferenceServerException, match="given once"):
        client.infer("voice", [frames, frames, num_frames])


def test_a_deadline_of_its_own_is_kept(running, client):
    control = running.store.controls["voice", 1]
    _, inputs = speech()
    control.open.clear()
    try:
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("voice", inputs, timeout=200_000)
    finally:
        control.open.set()
    assert caught.value.status() == "504"


def body(**fields):
    row = {"name": "label", "shape": [1], "datatype": "INT32", "data": [3]}
    return {"inputs": [row], **fields}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": None}, "`inputs` must be a list"),
        ({"inputs": []}, "`inputs` must be of length at least 1, got an empty list."),
        ({"inputs": {}}, "`inputs` must be a list"),
        ({"parameters": 3}, "`parameters` must be an object"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output` must be true or false"),
        ({"parameters": {"timeout": -1}}, "`parameters.timeout` must be at least 0, got -1."),
        ({"parameters": {"timeout": "1"}}, "timeout` must be a number"),
        ({"outputs": []}, "`outputs` must be of length at least 1"),
        ({"outputs": [{"name": "other"}]}, "`other` is not an output; there are"),
        ({"outputs": [{"name": ["x"]}]}, "`outputs[0].name` must be a text"),
        ({"outputs": ["picture"]}, "`outputs[0]` must be an object"),
        ({"outputs": [{"name": "picture", "parameters": {"classification": 2}}]}, "classification"),
        ({"outputs": [{"name": "picture", "parameters": {"shared_memory_region": "x"}}]}, "shared"),
        ({"id": 7}, "`id` must be a text"),
        ({"id": "x" * 1000}, "`id` must be a text"),
    ],
)
def test_a_request_that_is_not_of_the_protocol_is_400(models, fields, words):
    response = ask(models, "POST", INFER, json=body(**fields))
    assert response.status_code == 400
    assert words in response.json()["error"]


def test_the_answer_says_how_long_its_json_is(models):
    outputs = [{"name": "picture", "parameters": {"binary_data": True}}]
    response = ask(models, "POST", INFER, json=body(outputs=outputs))
    length = int(response.headers["inference-header-content-length"])
    described = json.loads(response.content[:length])["outputs"][0]
    assert described["parameters"]["binary_data_size"] == len(response.content) - length
    assert set(response.content[length:]) == {60}
