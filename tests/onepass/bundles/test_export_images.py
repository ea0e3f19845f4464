"""An exported image model draws as the live one does, whatever the batch; a bundle is whole."""

import copy
import functools
import hashlib
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from image_bundles import (
    bundle_folder,
    count_compiled,
    model,
    model_folder,
    program_of,
    resigned,
    without_lowered,
)
from image_runs import toys
from marks import some_slow
from PIL import Image

import onepass
import serving
from onepass.bundles.errors import InvalidInput
from onepass.bundles.sampling import only_output
from onepass.bundles.signature import Signature, without
from pixelcnn.model import load

SEED = 2**63 + 5  # beyond int64, as seeds may be
CAPTION = "a Bright half"
MAP = np.eye(8, dtype=np.int32)
REQUESTS = {"pixelcnn": ["dog", 0, "eel"], "multiscale": ["dog", 0, "eel"], "map": MAP}
REQUESTS |= {"caption": CAPTION, "text": CAPTION}
DIGITS_FLOW = "b31b2531011d5f7876a65f5e059cb58c91f3db2ee63d9aba5ff9b5b976a2021e"


@functools.cache
def bundle(kind):
    return serving.load(bundle_folder(kind))


def batch_of(kind, signature, calls):
    """The rows of several calls as one batch, and what the signature draws of it."""
    inputs = [inputs for name, inputs in calls if name in (signature, "compiled")]
    joined = {name: np.concatenate([i[name] for i in inputs]) for name in inputs[0]}
    return bundle(kind).call(signature, joined)


# What is drawn


@pytest.mark.parametrize(
    "kind",
    some_slow(
        ["pixelcnn", "multiscale", "map", "caption", "text"],
        ("multiscale", "map", "caption", "text"),
    ),
)
def test_a_bundle_draws_what_the_live_model_draws(kind):
    request, heat = REQUESTS[kind], 0.9
    drawn = bundle(kind).sample(condition=request, seed=SEED, num=3, temperature=heat)
    expected = model(kind).sample(condition=request, seed=SEED, num=3, temperature=heat)
    np.testing.assert_array_equal(drawn, expected)
    assert drawn.dtype == np.uint8 and len(np.unique(drawn)) > 10
    assert not np.array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize("kind", some_slow(["pixelcnn", "multiscale"], ("multiscale",)))
def test_a_bundle_is_guided_as_the_live_model_row_by_row(kind):
    fields = {"seed": 4, "num": 2}
    expected = model(kind).sample(condition="dog", guidance=2.0, **fields)
    drawn = bundle(kind).sample(condition="dog", guidance=2.0, **fields)
    np.testing.assert_array_equal(drawn, expected)
    plain = model(kind).sample(condition="dog", **fields)
    assert (plain[1] != expected[1]).any()
    calls = [bundle(kind).inputs("dog", 4, 1, guidance=weight) for weight in (2.0, 0.0)]
    both = batch_of(kind, "compiled", calls)["picture"]
    np.testing.assert_array_equal(both, [expected[1], plain[1]])


def test_what_only_serving_default_runs_is_not_loaded():
    graph = program_of(bundle_folder("pixelcnn") / "saved_model.pb")
    smaller = without(graph, "serving_default")
    assert set(smaller.signature_def) == set(graph.signature_def) - {"serving_default"}
    kept, every = (g.graph_def.library.function for g in (smaller, graph))
    assert 0 < len(kept) < len(every)
    node = next(iter(graph.signature_def["serving_default"].outputs.values())).name.split(":")[0]
    assert node not in {n.name for n in smaller.graph_def.node}
    assert [name for name, _ in bundle("pixelcnn").warmup_calls()] == ["compiled"]


@pytest.mark.parametrize("kind", some_slow(["pixelcnn", "multiscale"], ("multiscale",)))
def test_every_program_is_lowered_once_to_what_needs_no_translation(kind):
    graph = program_of(bundle_folder(kind) / "lowered.pb")
    assert bundle(kind).signatures.keys() - graph.signature_def.keys() == {"serving_default"}
    bodies = [f.node_def for f in graph.graph_def.library.function if f.attr["_XlaMustCompile"].b]
    assert all([n.op for n in body].count("XlaCallModule") == 1 for body in bodies)
    kinds = {n.op for body in bodies for n in body}
    assert kinds == {"XlaCallModule", "ReadVariableOp", "Identity", "NoOp"}
    modules = [n.attr["module"].s for body in bodies for n in body if n.op == "XlaCallModule"]
    assert len(modules) == len(set(modules)) > 1


def test_a_bundle_without_lowered_programs_draws_the_same(tmp_path):
    path = resigned(without_lowered("pixelcnn", tmp_path))
    drawn = serving.load(path).sample(condition="dog", seed=SEED, num=2)
    np.testing.assert_array_equal(
        drawn, bundle("pixelcnn").sample(condition="dog", seed=SEED, num=2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["compiled", "serving_default"])
@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_a_row_of_any_batch_is_the_row_alone(kind, signature):
    made = bundle(kind)
    requests = list(enumerate(REQUESTS[kind]))
    calls = [made.inputs(request, SEED, row) for row, request in (*requests[::-1], requests[0])]
    drawn = batch_of(kind, signature, calls)["picture"]
    expected = model(kind).sample(condition=REQUESTS[kind], seed=SEED, num=3)
    np.testing.assert_array_equal(drawn, expected[[2, 1, 0, 0]])


@pytest.mark.integration
def test_a_small_image_is_enlarged_as_live():
    start = toys(1, 4, 4)["images"][0][..., None]
    options = {"seed": 9, "num": 2, "prefix": start}
    scales = bundle("multiscale").sample(condition=1, scales=True, **options)
    expected = model("multiscale").sample(condition=1, **options)
    np.testing.assert_array_equal(scales[-1], expected)
    assert len(scales) == 2
    np.testing.assert_array_equal(scales[0][0], start)
    np.testing.assert_array_equal(scales[1][0, ::2, ::2], start)


def grow(made, inputs, sizes):
    """Returns every scale, drawn from the one before."""
    scales = []
    for size in sizes:
        start = {"start": scales[-1]} if scales else {}
        scales.append(made.call(f"scale_{size}", inputs | start)["picture"])
    return scales


@pytest.mark.integration
def test_an_image_grows_scale_by_scale_to_the_same_pixels():
    request = {"seed": SEED, "temperature": (1.0, 0.5)}
    images = list(model("multiscale").stream(3, condition="eel", scales=True, **request))
    assert [[scale.shape[1] for scale in scales] for scales in images] == [[4, 8]] * 3
    whole = bundle("multiscale").sample(condition="eel", num=3, scales=True, **request)
    for row, scales in enumerate(images):
        for drawn, scale in zip(whole, scales, strict=True):
            np.testing.assert_array_equal(drawn[row : row + 1], scale)
        np.testing.assert_array_equal(scales[1][:, ::2, ::2], scales[0])
        inputs = bundle("multiscale").inputs("eel", row=row, **request)[1]
        found = grow(bundle("multiscale"), inputs, (4, 8))
        for drawn, scale in zip(found, scales, strict=True):
            np.testing.assert_array_equal(drawn, scale)


def test_an_image_that_was_begun_is_completed_as_live():
    begun = toys(1, 3)["images"][0].reshape(-1, 1)[:20]
    drawn = bundle("pixelcnn").sample(condition="cat", seed=4, num=2, prefix=begun)
    expected = model("pixelcnn").sample(condition="cat", seed=4, num=2, prefix=begun)
    np.testing.assert_array_equal(drawn, expected)
    for image in drawn:
        np.testing.assert_array_equal(image.reshape(-1, 1)[:20], begun)
    assert not np.array_equal(drawn[0], drawn[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shipped-digits", "shipped-digits-teacher"])
def test_shipped_digits_draw_as_live(name, tmp_path):
    assert onepass.main(["export", name, "--out", str(tmp_path / name / "1")]) == 0
    drawn = serving.load(tmp_path / name).sample(condition=list(range(10)), seed=1, num=10)
    expected = load(name).sample(condition=list(range(10)), seed=1, num=10)
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.slow
def test_shipped_objects_grow_to_what_the_live_model_draws(tmp_path):
    assert onepass.main(["export", "shipped-objects", "--out", str(tmp_path / "objects/1")]) == 0
    made = serving.load(tmp_path / "objects")
    live = load("shipped-objects").stream(12, seed=4, condition=2, scales=True)
    for row, scales in enumerate(live):
        found = grow(made, made.inputs(2, 4, row)[1], [scale.shape[1] for scale in scales])
        for drawn, scale in zip(found, scales, strict=True):
            np.testing.assert_array_equal(drawn, scale)


def test_the_whole_image_is_found_in_whatever_order_a_program_has_its_outputs():
    whole, small = np.ones([1, 8, 8, 1]), np.zeros([1, 4, 4, 1])
    outputs = {"picture_4": small, "picture_8": whole, "picture": whole}
    for order in (outputs, dict(reversed(outputs.items()))):
        assert only_output(order) is whole
    with pytest.raises(ValueError, match="too many values"):
        only_output({"one": whole, "other": small})


# What is refused

# By input, the kind of condition of models whose refusals need no program.
OTHERS = {"caption": "text", "map": "map"}


def with_input(name):
    """A bundle that takes another condition, and has no null condition."""
    made = copy.copy(bundle("pixelcnn"))
    inputs = dict(made.signatures["compiled"].inputs)
    del inputs["guidance"]
    inputs[name] = inputs.pop("label")
    made.spec = made.spec | {"condition": OTHERS[name]}
    made.signatures = {"compiled": Signature(inputs, made.signatures["compiled"].outputs)}
    return made


@pytest.mark.parametrize(
    ("kind", "condition", "options", "complaint"),
    [
        ("pixelcnn", "owl", {}, "`condition` must be a class, got `owl`; there are cat, dog, eel."),
        ("pixelcnn", 3, {}, "`condition` must be a class, got `3`; there are cat, dog, eel."),
        ("pixelcnn", None, {}, "The model needs a class."),
        ("pixelcnn", [0, 1], {"num": 3}, "`condition` must be one or 3, got 2."),
        ("pixelcnn", 0, {"seed": -1}, "`seed` must be an integer in [0, 2^64), got -1."),
        ("map", MAP, {"guidance": 1.0}, "`guidance` must be 0: the model has no null condition."),
        ("pixelcnn", 0, {"guidance": -1}, "`guidance` must be between 0 and 20, got -1."),
        ("pixelcnn", 0, {"temperature": -1}, "`temperature` must be between 0 and 100, got -1."),
        ("pixelcnn", 0, {"temperature": [1, 1]}, "`temperature` must be one number or 1, got 2."),
        ("pixelcnn", 0, {"prefix": np.zeros([4, 4, 1], np.uint8)}, "A PixelCNN cannot enlarge"),
        ("pixelcnn", 0, {"prefix": np.zeros([65, 1], np.uint8)}, "`prefix` must have at most 64"),
        ("pixelcnn", 0, {"prefix": np.zeros([3], np.uint8)}, "`prefix` must be pixels [n, 1]"),
        pytest.param(
            *("exported map", MAP + 9, {}, "`map` must be between -1 and 1, got 10."),
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param("multiscale", 0, {"prefix": start}, said, marks=pytest.mark.integration)
            for start, said in (
                (np.zeros([3, 1], np.uint8), "The image to start from mu"),
                (np.zeros([8, 8, 1], np.uint8), "The image to start from mu"),
                (np.zeros([4, 4, 3], np.uint8), "`start` must have the shape"),
            )
        ),
        ("caption", "x" * 300, {}, "A caption may have 200 characters, got 300."),
        ("caption", 3, {}, "The model needs a caption."),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_it_is_asked_for(
    kind, condition, options, complaint
):
    made = bundle(kind.removeprefix("exported ")) if kind not in OTHERS else with_input(kind)
    with pytest.raises(InvalidInput) as refused:
        made.stream(condition=condition, **options)
    assert str(refused.value).startswith(complaint)


def test_an_engine_for_sound_draws_no_image():
    with pytest.raises(ValueError, match="the engine `numba` is for WaveNets"):
        serving.load(bundle_folder("pixelcnn"), backend="numba")


# What is written


@pytest.mark.parametrize("kind", some_slow(["pixelcnn", "multiscale"], ("multiscale",)))
def test_only_serving_default_is_free_of_xla(kind):
    graph = program_of(bundle_folder(kind) / "saved_model.pb")
    compiled = {name for name in bundle(kind).signatures if count_compiled(graph, name)}
    assert compiled == set(bundle(kind).signatures) - {"serving_default"}


@pytest.mark.integration
def test_model_json_says_how_to_serve_it():
    said = json.loads((bundle_folder("multiscale") / "model.json").read_text())["serving"]
    assert said["format"] == 2 and set(said["signatures"]) == {
        *("serving_default", "compiled", "scale_4", "scale_8")
    }
    assert said["signatures"]["serving_default"] == said["signatures"]["compiled"]
    inputs = said["signatures"]["scale_8"]["inputs"]
    assert inputs["label"] == {"dtype": "int32", "shape": [-1], "low": 0, "high": 2}
    assert inputs["seed"] == {"dtype": "int64", "shape": [-1], "optional_default": 0}
    assert inputs["temperature"]["shape"] == [-1, 2]
    assert inputs["start"] == {"dtype": "uint8", "shape": [-1, 4, 4, 1]}
    assert said["allowed_batches"] == list(range(1, 9))


def test_warm_up_requests_are_of_serving_default_and_can_be_answered():
    apis = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = bundle_folder("pixelcnn") / "assets.extra" / "tf_serving_warmup_requests"
    (record,) = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    request = apis.PredictionLog.FromString(record).predict_log.request
    assert (request.model_spec.name, request.model_spec.signature_name) == (
        *("pixelcnn", "serving_default"),
    )
    inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
    assert bundle("pixelcnn").call("serving_default", inputs)["picture"].shape == (1, 8, 8, 1)


def test_a_bundle_is_a_model_folder_still(tmp_path, monkeypatch):
    loaded = load(bundle_folder("pixelcnn"))
    assert loaded.config == model("pixelcnn").config
    for one, other in zip(
        loaded.network.variables, model("pixelcnn").network.variables, strict=True
    ):
        np.testing.assert_array_equal(one, other)
    # The same model, whose programs are compiled already.
    monkeypatch.setattr("pixelcnn.model.load", lambda path: model("pixelcnn"))
    words = ["sample", str(bundle_folder("pixelcnn")), "--num", "2", "--seed", "3"]
    assert onepass.main([*words, "--label", "eel", "--out", str(tmp_path)]) == 0
    drawn = np.asarray(Image.open(tmp_path / "sample_3_1_eel.png"))
    expected = bundle("pixelcnn").sample(condition="eel", seed=3, num=2)[1, ..., 0]
    np.testing.assert_array_equal(drawn, expected)


def test_an_interrupted_export_leaves_nothing_behind(tmp_path, monkeypatch):
    seen = []

    def interrupted(*_, **__):
        seen.append([path.name for path in (tmp_path / "models").rglob("*")])
        raise KeyboardInterrupt

    monkeypatch.setattr("onepass.bundles.export_command.functions", interrupted)
    out = tmp_path / "models" / "name" / "1"
    assert onepass.main(["export", str(model_folder("pixelcnn")), "--out", str(out)]) == 130
    (names,) = seen
    assert "1" not in names and {"model.json", "weights.npz"} < set(names)
    assert list(tmp_path.rglob("*")) == [tmp_path / "models"]


def test_a_full_disk_is_found_before_the_model_is_loaded(tmp_path, monkeypatch, mistake):
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=10 << 20))
    loaded = lambda source: pytest.fail("loaded")  # noqa: E731
    monkeypatch.setattr("onepass.bundles.export_command.read_folder", loaded)
    line = mistake("export", model_folder("pixelcnn"), "--out", tmp_path / "models" / "name" / "1")
    assert line.startswith(f"{tmp_path} has 10 MiB left, and a bundle may need ")
    assert list(tmp_path.iterdir()) == []


def test_a_bare_folder_is_the_model_alone(tmp_path):
    words = ["export", str(bundle_folder("pixelcnn")), "--bare", "--out", str(tmp_path / "model")]
    assert onepass.main(words) == 0
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"model.json", "weights.npz"}
    said = json.loads((tmp_path / "model" / "model.json").read_text())
    assert said["kind"] == "pixelcnn" and "serving" not in said


def test_a_bare_folder_has_the_weights_that_the_model_shares(tmp_path):
    out = tmp_path / "model"
    assert onepass.main(["export", "shipped-digits-flow", "--bare", "--out", str(out)]) == 0
    assert "shared_weights" not in json.loads((out / "model.json").read_text())
    digest = hashlib.sha256()
    with np.load(out / "weights.npz") as stored:
        for name in sorted(stored.files):
            digest.update(name.encode() + stored[name].tobytes())
    # They change with `shipped-digits`, whose scales they share: CHANGELOG has to say so.
    assert digest.hexdigest() == DIGITS_FLOW


def test_what_cannot_be_exported_so_is_one_line(tmp_path, mistake):
    folder, out = model_folder("pixelcnn"), tmp_path / "name" / "1"
    ask = ["export", folder, "--out"]
    line = mistake(*ask, tmp_path / "name")
    assert line.startswith("`--out` must end in NAME/VERSION, such as voice/1, got ")
    assert mistake(*ask, out, "--bfloat16").startswith("`--bfloat16` is for models of sound")
    assert mistake(*ask, out, "--buckets", "7").startswith("`--buckets` is for audio models")
    assert mistake(*ask, out, "--batches", "0") == "`--buckets` and `--batches` must be at least 1."
    assert mistake(*ask, out, "--note", "x") == f"`--note` is for runs; {folder} has its card."
    assert mistake(*ask, out, "--float16") == f"`--float16` is for runs; {folder} has its card."
    line = mistake(*ask, out, "--bare", "--bfloat16")
    assert line.startswith("`--bfloat16` is of the program")
    line = mistake("export", tmp_path / "no", "--out", out)
    assert line == f"There is no run directory {tmp_path / 'no'}."
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)
    (out / "file").touch()
    line = mistake(*ask, out)
    assert line == f"{out} already exists; write a new version to another folder."
    (tmp_path / "file").touch()
    assert mistake(*ask, tmp_path / "file" / "1").startswith("Cannot write ")


def test_a_model_that_lacks_parts_is_not_exported(tmp_path, mistake):
    path = tmp_path / "parts"
    said = json.loads((model_folder("multiscale") / "model.json").read_text())
    said["config"]["parts"] = ["8"]
    path.mkdir()
    (path / "model.json").write_text(json.dumps(said))
    (path / "weights.npz").write_bytes((model_folder("multiscale") / "weights.npz").read_bytes())
    line = mistake("export", path, "--out", tmp_path / "name" / "1")
    assert line == "The run has not trained 4; it cannot draw."
