"""The functions of a model in formats of one size compute elsewhere what the model computes."""

import json

import image_bundles
import image_runs
import jax
import numpy as np
import own_models
import pytest
import sound_bundles
import students
import tensorflow as tf
from marks import some_slow
from networks import SMALL, network_of

import onepass
from distill.model import Request, generate
from onepass.bundles.export import write_functions
from onepass.bundles.functions import functions
from onepass.bundles.manifest import verify
from onepass.bundles.sequence_functions import sequence_functions
from onepass.bundles.signature import PLAIN
from onepass.bundles.trained_functions import StreamingTeacher, streaming_model
from onepass.foundation.files import read_npz
from onepass.foundation.rules import UserError
from onepass.interface import Draw
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.manifest import manifest_of, read_manifest
from pixelcnn.data.captions import encode_caption
from pixelcnn.model import ImageSampler
from wavenet.config import WaveNetConfig
from wavenet.data import audio
from wavenet.network import WaveNet
from wavenet.samplers.generation import Request as SoundRequest
from wavenet.samplers.generation import generate as generate_sound

FRAMES = students.FRAMES


@pytest.fixture(scope="module", autouse=True)
def quick():
    """JAX does not optimise what these tests run for a moment."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def written(folder, form, found, rows, length, *names):
    """Write some functions of one size; return the manifest's entries."""
    every = found.of_size(rows, length)
    made = {name: every[name] for name in names or every}
    entries, reasons = write_functions(folder, form, made, found.variables)
    assert not reasons
    return entries


def seeds(seed, rows=1):
    return np.array([divmod(seed, 2**32)] * rows, np.uint32)


def frames_of(network, rows, count):
    draws = np.random.default_rng(0).uniform(0.2, 0.8, [rows, count, network.feature_channels])
    return draws.astype(np.float32)


# Names


def test_the_functions_of_a_model_are_those_of_its_kind():
    def names(found, length=None):
        return {name: set(each.specs) for name, each in found.of_size(1, length).items()}

    network, noise = students.student_of("plain"), {"seed", "row"}
    state = {f"state_{n}" for n in range(len(tf.nest.flatten(network.initial_state(1))))}
    student = names(sequence_functions(streaming_model(network), [400]))
    assert student["step"] == {"noise", "channels", "temperature", *state}  # it needs no position
    assert student["noise"] == noise | {"start"} and student["condition"] == {"frames"}
    assert student["draw"] == noise | {"temperature", "frames"}
    pairs = names(functions(own_models.model("pairs"), length=8), 4)
    assert pairs.keys() == {"noise", "step", "draw", "call", "log_prob"}
    assert pairs["call"] == pairs["log_prob"] == {"elements"}
    image = functions(image_bundles.model("pixelcnn"))
    assert image.calls.keys() == {PLAIN, "compiled", "complete"}
    assert names(image).keys() == {"draw", "complete"}


def test_an_unknown_format_and_method_are_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="`format` must be one of bundle, stablehlo, tflite"):
        onepass.export(own_models.model("pairs"), tmp_path / "x", format="onnx")
    with pytest.raises(ValueError, match="`method` must be cached or fixed-point, got 'naive'"):
        model = image_bundles.model("pixelcnn")
        onepass.export(model, tmp_path / "x", format="stablehlo", method="naive")
    with pytest.raises(ValueError, match="`rows` must be an integer of at least 1, got 0"):
        onepass.export(own_models.model("pairs"), tmp_path / "x", format="tflite", rows=0)
    assert list(tmp_path.iterdir()) == []


def test_options_of_another_format_are_refused_by_the_command(tmp_path, mistake):
    words = ["export", sound_bundles.model_folder("plain"), "--out", tmp_path / "a" / "1"]
    for_bundles = "is for `--format bundle`."
    assert mistake(*words, "--format", "tflite", "--bare") == f"`--bare` {for_bundles}"
    line = mistake(*words, "--format", "stablehlo", "--batches", "2")
    assert line == f"`--batches` {for_bundles}"
    assert mistake(*words, "--rows", "2").startswith("`--rows` is for formats of one size")
    assert list(tmp_path.iterdir()) == []


# StableHLO


@pytest.mark.integration
def test_the_command_writes_a_folder_with_its_manifest_and_what_runs_it(tmp_path, capsys):
    out = tmp_path / "carried"
    words = ["export", sound_bundles.model_folder("plain"), "--format", "stablehlo", "--out", out]
    assert onepass.main([str(word) for word in [*words, "--length", "41"]]) == 0
    assert capsys.readouterr().out == f"{out}: parallel-wavenet\n"
    verify(out)
    entries = read_manifest(out)["functions"]
    assert entries.keys() == {"noise", "condition", "step", "draw"}
    given = {each["name"] for each in entries["step"]["inputs"]}
    assert len(entries["step"]["state"]) > 2 and given >= set(entries["step"]["state"])
    shapes = {each["name"]: each["shape"] for each in entries["step"]["inputs"]}
    assert shapes["noise"] == [1, 60]  # of three frames
    assert {"run.py", "onepass_run", "step.stablehlo"} <= {path.name for path in out.iterdir()}


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    some_slow(
        [
            {"feature_channels": 5, "upsample_factors": (4, 8), "speakers": 2},
            {"likelihood": "categorical", "levels": 256, "context_layers": 2, "dtype": "bfloat16"},
        ],
        [],
    ),
)
def test_a_wavenet_in_jax_draws_the_same_sound_in_chunks(tmp_path, changes):
    changes = dict(changes)
    dtype, context = changes.pop("dtype", "float32"), changes.get("context_layers", 0)
    plain = {**SMALL, "filter_width": 2, "context_channels": 4, "context_block_samples": 64}
    network = WaveNet(WaveNetConfig(**plain, compute_dtype=dtype, components=2, **changes), seed=2)
    found = sequence_functions(streaming_model(network), [8])
    written(tmp_path, "stablehlo", found, 2, 64)
    step, noise = (portable_run.load(tmp_path, name) for name in ("step", "noise"))
    state = read_npz(tmp_path / "step_state.npz")
    parts, frames, speaker = [{}, {}], None, None
    if not context:
        frames, speaker = frames_of(network.config, 2, 4), np.array([1, 0], np.int32)
        made = portable_run.load(tmp_path, "condition")(frames=frames[:, :2], speaker=speaker)
        reference = network.condition(frames[:, :2], speaker).numpy()
        np.testing.assert_allclose(made["channels"], reference, rtol=1e-5, atol=1e-6)
        every = network.condition(frames, speaker).numpy()
        parts = [{"channels": every[:, :64]}, {"channels": every[:, 64:]}]
    heat, rows = np.full(2, 0.9, np.float32), np.array([4, 0], np.int32)
    request = SoundRequest(128, 3 * 2**32 + 7, (4, 0), frames, speaker, temperature=0.9)
    expected = network.codec.decode(generate_sound(network, request, "cached"))
    for number, part in enumerate(parts):
        start = np.full(2, 64 * number, np.int32)
        drawn = noise(seed=seeds(3 * 2**32 + 7, 2), row=rows, start=start)["noise"]
        known = network.likelihood.noise(3 * 2**32 + 7, [4, 0], 64 * number, 64)
        np.testing.assert_array_equal(drawn, known)
        made = step(**state, noise=drawn, temperature=heat, start=start, **part)
        state = {name: made[name] for name in state}
        whole = expected[:, 64 * number : 64 * number + 64]
        np.testing.assert_allclose(made["sound"], whole, atol=1e-6)


@pytest.mark.integration
def test_a_fixed_point_in_jax_draws_what_the_cached_sampler_draws(tmp_path):
    config = WaveNetConfig(**SMALL, filter_width=2, likelihood="categorical", levels=64)
    network, samples = WaveNet(config, seed=2), 24
    found = sequence_functions(StreamingTeacher(network, passes=True), [samples])
    written(tmp_path, "stablehlo", found, 1, samples, "step")
    step, state = portable_run.load(tmp_path, "step"), read_npz(tmp_path / "step_state.npz")
    request = SoundRequest(2 * samples, 5, temperature=0.9)
    expected = network.codec.decode(generate_sound(network, request, "cached"))
    for start in (0, samples):
        noise = network.likelihood.noise(5, [0], start, samples)
        given = {"noise": noise.numpy(), "start": np.int32([start])}
        made = step(**state, **given, temperature=np.float32([0.9]))
        whole = expected[:, start : start + samples]
        np.testing.assert_allclose(made["sound"], whole, atol=1e-6)
        state = {name: made[name] for name in state}


@pytest.mark.integration
@pytest.mark.parametrize("kind", some_slow(["plain", "speakers", "residual, bunches"], ["plain"]))
def test_a_student_in_jax_speaks_as_before(kind, tmp_path):
    student = students.student_of(kind)
    frames = frames_of(student.config, 2, FRAMES)
    speaker = np.array([1, 0], np.int32) if student.config.speakers else None
    samples = FRAMES * student.config.hop_samples
    request = Request(samples, 2**33 + 5, (3, 0), frames, speaker, temperature=0.8)
    expected = generate(student, request, "tensorflow")
    found = sequence_functions(streaming_model(student), [FRAMES])
    written(tmp_path, "stablehlo", found, 2, samples, "draw")
    inputs = {
        "seed": seeds(2**33 + 5, 2),
        "row": np.array([3, 0], np.int32),
        "temperature": np.full(2, 0.8, np.float32),
        "frames": frames,
        **({} if speaker is None else {"speaker": speaker}),
    }
    sound = portable_run.load(tmp_path, "draw")(**inputs)["sound"]
    assert np.std(expected) > 0.01
    apart = np.abs(audio.to_int16(np.asarray(sound)) - audio.to_int16(expected).astype(int))
    assert apart.max() <= 1  # where a value lies between two levels its rounding may tip it over
    # A recursion carries what was rounded on to the samples after it.
    assert np.mean(apart > 0) < (0.1 if kind.startswith("residual") else 0.01)


def test_a_step_of_ones_own_reads_the_conditions_and_draws_what_the_model_does():
    live, length, draws = own_models.model("voices"), 6, np.random.default_rng(3)
    tone, mel = (draws.normal(size=size).astype(np.float32) for size in ([2, 3], [2, length, 2]))
    condition = {"voice": np.int32([3, 0]), "tone": tone, "mel": mel}
    found = functions(live, length=length).of_size(2, length)
    start = {"start": np.int32([0, 0])}
    noise = traced(found["noise"], seed=seeds(7, 2), row=np.int32([0, 1]), **start)
    named = {f"condition_{name}": value for name, value in condition.items()}
    given = noise | named | start | {"temperature": np.ones([2], np.float32)}
    made = traced(found["step"], **given, **found["step"].first_state())
    expected = live.sample(2, length, 7, condition)
    np.testing.assert_allclose(made["elements"], expected, rtol=0, atol=1e-6)


def traced(function, **given):
    return function.trace()(**{n: tf.constant(given[n]) for n in function.specs})


@pytest.mark.integration
@pytest.mark.parametrize("name", some_slow(["pairs", "voices", "picture"], ["voices"]))
def test_a_users_model_in_jax_draws_and_scores_as_it_does(name, tmp_path):
    live, length = own_models.model(name), 6
    shape = own_models.SHAPE if name == "picture" else (length,)
    found = functions(live, length=shape if name == "picture" else length)
    written(tmp_path, "stablehlo", found, 2, length, "draw", "log_prob", "call")
    draw, log_prob, call = (portable_run.load(tmp_path, n) for n in ("draw", "log_prob", "call"))
    condition, draws = None, np.random.default_rng(3)
    if name == "voices":
        tone, mel = (draws.normal(size=size).astype(np.float32) for size in ([2, 3], [2, 6, 2]))
        condition = {"voice": np.int32([3, 0]), "tone": tone, "mel": mel}
    inputs = {f"condition_{key}": value for key, value in (condition or {}).items()}
    heat = np.ones([2, 1] if name == "picture" else [2], np.float32)
    drawn = draw(seed=seeds(7, 2), row=np.arange(2, dtype=np.int32), temperature=heat, **inputs)
    (elements,) = drawn.values()
    expected = live.sample(2, shape if name == "picture" else length, 7, condition)
    np.testing.assert_allclose(elements, expected, atol=1e-5)
    given = {"elements": np.asarray(expected), **inputs}
    nats = live.log_prob(expected, condition)
    np.testing.assert_allclose(log_prob(**given)["log_prob"], nats, atol=1e-4)
    parameters = live.conditionals(expected, condition)
    np.testing.assert_allclose(call(**given)["parameters"], parameters, atol=1e-4)


def drawn_in_jax(folder, model, name, condition, **fields):
    """What a function of one row computes in JAX."""
    written(
        folder, "stablehlo", functions(model, method=fields.pop("method", "cached")), 1, None, name
    )
    given = {"row": np.int32([0]), "guidance": np.float32([0.0])} | condition | fields
    return portable_run.load(folder, name)(**given)


@pytest.mark.slow
def test_a_model_of_videos_in_jax_draws_the_same_scales(tmp_path):
    model = image_bundles.model("video")
    draws = np.random.default_rng(0)
    past = draws.integers(0, 256, [1, 2, 16, 16, 3]).astype(np.int32)
    action, state = (draws.normal(size=[1, 2, n]).astype(np.float32) for n in (2, 1))
    condition = {"past": past, "action": action, "state": state}
    request = Draw(1, 16, 7, condition, temperature=(1.0, 0.8), row=1)
    heats = np.float32([[1.0, 0.8]])
    fields = {"seed": seeds(7), "row": np.int32([1]), "temperature": heats}
    made = drawn_in_jax(tmp_path, model, "draw", condition, **fields)
    for theirs in next(ImageSampler(model.network).images(request)):
        np.testing.assert_array_equal(made[f"picture_{len(theirs)}"][0], theirs)


@pytest.mark.slow
def test_a_model_of_patches_in_jax_enlarges_an_image_as_before(tmp_path):
    model, start = image_bundles.model("text"), image_runs.toys(1, 4, 4)["images"][0][..., None]
    condition = {"caption": encode_caption("stripes")[None]}
    fields = {"seed": seeds(1), "temperature": np.ones([1, 2], np.float32), "start": start[None]}
    made = drawn_in_jax(tmp_path, model, "scale_8", condition, **fields)
    request = Draw(1, 8, 1, condition, prefix=start)
    expected = next(ImageSampler(model.network).images(request))
    np.testing.assert_array_equal(made["picture"][0], expected[1])
    np.testing.assert_array_equal(expected[1][::2, ::2], start)


CASES = [("pixelcnn", "fixed-point", 1.5), ("pixelcnn", "cached", 0.0), ("multiscale", "cached", 0)]


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "method", "guidance"), some_slow(CASES, CASES[1:]))
def test_an_image_model_in_jax_draws_the_same_image(kind, method, guidance, tmp_path):
    model, heat = image_bundles.model(kind), 0.9 if kind == "pixelcnn" else (1.0, 0.8)
    condition, seed = {"label": np.array([1], np.int32)}, 2**40 + 3
    fields = {"temperature": np.atleast_2d(np.float32(heat)), "guidance": np.float32([guidance])}
    fields |= {"seed": seeds(seed), "row": np.int32([3]), "method": method}
    made = drawn_in_jax(tmp_path, model, "draw", condition, **fields)
    request = Draw(1, 8, seed, condition, row=3, temperature=heat, guidance=guidance)
    expected = next(ImageSampler(model.network).images(request))[-1]
    np.testing.assert_array_equal(made["picture"][0], expected)
    assert len(np.unique(expected)) > 10


# TensorFlow Lite


def interpreter(path):
    """Return the program of a file as LiteRT runs it, without TensorFlow's operations."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    return litert.Interpreter(model_path=str(path)).get_signature_runner()


@pytest.mark.integration
def test_a_student_in_litert_speaks_in_chunks_what_it_speaks_here(tmp_path):
    student = students.student_of("plain")
    hop, samples = student.config.hop_samples, 10 * student.config.hop_samples
    frames = frames_of(student.config, 1, 20)
    found = sequence_functions(streaming_model(student), [FRAMES])
    entries = written(tmp_path, "tflite", found, 1, samples, "step")
    assert entries["step"]["select"] == []
    written(tmp_path, "tflite", found, 1, 2 * samples, "condition")
    noise = student.noise(7, [0], 0, 2 * samples)
    whole = student.draw(noise, student.condition(frames, None, 20 * hop)[0]).output.numpy()
    channels = interpreter(tmp_path / "condition.tflite")(frames=frames)["channels"]
    step, state, parts = interpreter(tmp_path / "step.tflite"), None, []
    state = read_npz(tmp_path / "step_state.npz")
    for first in (0, samples):
        part = slice(first, first + samples)
        made = step(
            noise=noise[:, part].numpy(),
            channels=channels[:, part],
            temperature=np.ones(1, np.float32),
            **state,
        )
        state = {name: made[name] for name in state}
        parts.append(made["sound"])
    assert np.std(whole) > 0.01
    np.testing.assert_allclose(np.concatenate(parts, 1), np.clip(whole, -1, 1), atol=1e-5)


@pytest.mark.integration
def test_a_wavenet_in_litert_draws_from_a_seed_what_it_draws_here(tmp_path):
    network = network_of("softmax, speakers")
    found = sequence_functions(streaming_model(network), [64])
    entries = written(tmp_path, "tflite", found, 1, 16, "step", "noise", "condition")
    assert [entry["select"] for entry in entries.values()] == [[], [], []]
    step, noise, condition = (interpreter(tmp_path / f"{name}.tflite") for name in entries)
    channels = condition(speaker=np.int32([2]))["channels"]
    state, speaker = read_npz(tmp_path / "step_state.npz"), np.int32([2])
    request = SoundRequest(32, 2**40 + 1, (5,), speaker=speaker, temperature=0.9)
    expected = network.codec.decode(generate_sound(network, request, "cached"))
    for first in (0, 16):
        start = np.int32([first])
        drawn = noise(seed=seeds(2**40 + 1), row=np.int32([5]), start=start)["noise"]
        known = network.likelihood.noise(2**40 + 1, [5], first, 16)
        np.testing.assert_array_equal(drawn, known)
        given = {"noise": drawn, "channels": channels, "start": start}
        made = step(**given, temperature=np.float32([0.9]), **state)
        np.testing.assert_allclose(made["sound"], expected[:, first : first + 16], atol=1e-6)
        state = {name: made[name] for name in state}


@pytest.mark.integration
def test_a_function_that_litert_cannot_express_is_left_out_with_a_reason(tmp_path):
    live, out = own_models.model("sound"), tmp_path / "lite"
    with pytest.warns(UserWarning, match="lacks `(noise|draw)`: LiteRT has no Atanh"):
        onepass.export(live, out, format="tflite", length=4)
    assert read_manifest(out)["functions"].keys() == {"step", "call", "log_prob"}
    verify(out)
    found = sequence_functions(streaming_model(students.student_of("speakers")), [FRAMES])
    noise = {"noise": found.of_size(1, 20)["noise"]}
    with pytest.raises(UserError, match="cannot be exported: `noise`: LiteRT has no Atanh"):
        write_functions(tmp_path, "tflite", noise, found.variables)


@pytest.mark.integration
def test_a_function_that_needs_operations_of_tensorflow_says_which(tmp_path):
    found = sequence_functions(streaming_model(students.student_of("plain")), [FRAMES])
    out = tmp_path / "lite"
    out.mkdir()
    entries = written(out, "tflite", found, 1, 20, "noise")
    assert "Log" in entries["noise"]["select"]  # normal noise, in float64
    assert json.loads(json.dumps(entries)) == entries
    assert manifest_of(out)["functions"] == {}
