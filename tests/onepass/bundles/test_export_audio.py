"""An exported model of speech speaks as the live one: whole, streamed, batched, by any engine."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from image_bundles import count_compiled, program_of
from marks import some_slow
from sound_bundles import (
    BATCH,
    SPEAKERS,
    STUDENTS,
    TEACHERS,
    bundle,
    bundle_folder,
    model,
    model_folder,
)

import onepass
import serving
from onepass.bundles.bundle import Bundle
from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import PLAIN
from onepass.foundation.rules import UserError
from wavenet.data import audio
from wavenet.data.audio import at_recorded_level, recorded_frames

STEP = 2.0 / 65535  # from one 16-bit level to the next
SEED = 2**63 + 5  # beyond int64, as seeds may be
HEAT = 0.8
DRAFT, PLAIN_STUDENT, RESIDUAL, FRAMED, FREE, VOCODER = *STUDENTS, *TEACHERS
SLOW = (
    DRAFT,
    RESIDUAL,
    PLAIN_STUDENT,
    FRAMED,
    FREE,
)  # others have their parts, nothing shipped is of them
LENGTHS = {DRAFT: 900, RESIDUAL: 300, PLAIN_STUDENT: 230, FRAMED: 39, VOCODER: 39}  # in frames
FREE_SAMPLES = 300  # more than a unit of a teacher, of which a chunk is a multiple


def sound_of(kind, frames=None):
    """Return the request of a kind: frames or a number of samples, and the last speaker."""
    given = {"length": FREE_SAMPLES} if kind == FREE else {}
    if kind in LENGTHS:
        count, network = frames or LENGTHS[kind], model(kind).network.config
        drawn = np.random.default_rng(count).random((count, network.feature_channels))
        drawn = 0.6 + 0.2 * drawn if kind == RESIDUAL else drawn  # as flat as speech
        given["condition"] = drawn.astype(np.float32)
    if "speakers" in kind:
        given["speaker"] = model(kind).front.speakers[-1]
    return given


def assert_same(one, other):
    assert one.shape == other.shape and one.dtype == other.dtype == np.float32
    assert np.abs(one).max() > 100 * STEP
    np.testing.assert_allclose(one, other, atol=1.01 * STEP)


# Whole and streamed


@pytest.mark.parametrize("kind", some_slow([*STUDENTS, *TEACHERS], SLOW))
def test_a_bundle_speaks_what_the_live_model_speaks(kind):
    given = {**sound_of(kind), "seed": SEED, "num": 2, "temperature": HEAT}
    spoken = bundle(kind).sample(**given)
    assert_same(spoken, model(kind).sample(**given))
    assert np.abs(spoken[0] - spoken[1]).max() > 100 * STEP


@pytest.mark.parametrize("kind", some_slow([DRAFT, RESIDUAL, FRAMED, FREE, VOCODER], SLOW))
def test_a_streamed_sound_is_the_whole(kind):
    made, given = bundle(kind), {**sound_of(kind), "seed": 3, "num": 2}
    chunks = list(made.stream(**given, chunk=100 if kind in TEACHERS else 5000))
    first = made.spec["unit_samples"]
    assert len(chunks) > 1
    assert chunks[0].shape[1] == min(first, made.sample(**given).shape[1])
    assert_same(np.concatenate(chunks, axis=1), made.sample(**given))


@pytest.mark.slow
def test_a_sound_may_be_shorter_than_its_frames_and_sounds_more_than_a_batch():
    given = {**sound_of(DRAFT), "seed": 3, "num": BATCH + 1}
    every = bundle(DRAFT).sample(**given)
    short = bundle(DRAFT).sample(**given, length=1999)
    streamed = np.concatenate(list(bundle(DRAFT).stream(**given, length=1999)), axis=1)
    assert_same(short, every[:, :1999])
    assert_same(streamed, short)
    later = bundle(DRAFT).sample(**{**given, "num": 1}, row=BATCH)
    assert_same(later, every[BATCH:])


# Batches


def by_stock_tensorflow(kind, inputs):
    """Return the outputs of `serving_default` where no code of this project is."""
    loaded = tf.saved_model.load(str(bundle_folder(kind)))
    outputs = loaded.signatures[PLAIN](**{n: tf.constant(v) for n, v in inputs.items()})
    return {name: output.numpy() for name, output in outputs.items()}


@pytest.mark.parametrize("signature", [PLAIN, "compiled"])
@pytest.mark.parametrize("kind", some_slow([DRAFT, RESIDUAL, FRAMED, VOCODER], SLOW))
def test_rows_padded_together_are_the_rows_alone(kind, signature):
    made, hop = bundle(kind), bundle(kind).hop_samples
    counts = [37, 230, 11] if kind == DRAFT else [7, 39, 2]
    seeds, rows, heats = [5, 2**40, 5], [4, 0, 2**31 - 1], [1.0, 0.5, 0.0]
    alone = [sound_of(kind, count)["condition"] for count in counts]
    frames = np.zeros([BATCH, max(counts) + 3, alone[0].shape[1]], np.float32)
    for n, count in enumerate(counts):
        frames[n, :count] = alone[n]
    inputs = dict(frames=frames, num_frames=counts, seed=seeds, row=rows, temperature=heats)
    inputs = made.check(signature, inputs)
    plain = signature == PLAIN
    spoken = by_stock_tensorflow(kind, inputs) if plain else Bundle.call(made, signature, inputs)
    assert spoken["sound"].shape == (BATCH, frames.shape[1] * hop)
    np.testing.assert_array_equal(spoken["num_samples"], np.array(counts) * hop)
    for n, count in enumerate(counts):
        given = dict(seed=seeds[n], row=rows[n], temperature=heats[n])
        sound = made.sample(condition=alone[n], **given)[0]
        assert_same(spoken["sound"][n, : count * hop], sound)
        assert not spoken["sound"][n, count * hop :].any()


@pytest.mark.slow
def test_a_batch_of_chunks_may_be_at_different_places():
    made, hop = bundle(FRAMED), bundle(FRAMED).hop_samples
    unit = made.spec["unit_samples"] // hop
    side = made.signatures["chunk"].inputs["frames_before"].high
    given = sound_of(FRAMED, 3 * unit)
    whole = made.sample(**given, seed=3, num=BATCH)
    frames = np.repeat(given["condition"][None], BATCH, 0)

    def chunk(first, state):
        # Every row gets all frames: what is a neighbour too far away changes nothing.
        before = np.minimum(first, side)
        shifted = np.stack(
            [np.roll(f, b - n, 0) for f, b, n in zip(frames, before, first, strict=True)]
        )
        after = np.minimum(3 * unit - first - unit, side)
        counts = dict(frames_before=before, num_frames=[unit] * BATCH, frames_after=after)
        place = dict(start=first * hop, seed=[3] * BATCH, row=range(BATCH))
        return made.call(
            "chunk", made.check("chunk", dict(frames=shifted, **counts, **place, **state))
        )

    made_first = chunk(np.zeros(BATCH, int), {})
    state = {name: array for name, array in made_first.items() if name.startswith("state_")}
    second = chunk(np.full(BATCH, unit), state)
    later = {name: second[name] for name in state}
    fresh = {
        n: np.full_like(state[n][0], made.signatures["chunk"].inputs[n].default) for n in state
    }
    mixed = {n: np.stack([state[n][0], later[n][1], fresh[n]]) for n in state}
    third = chunk(np.array([1, 2, 0]) * unit, mixed)["sound"]
    samples = unit * hop
    for row, piece in enumerate((1, 2, 0)):
        assert_same(third[row], whole[row, piece * samples :][:samples])


@pytest.mark.slow
def test_a_batch_changes_no_bit_of_a_teacher():
    made, frames = bundle(FRAMED), np.random.default_rng(0).random((BATCH, 13, 7), np.float32)
    inputs = dict(frames=frames, num_frames=[13] * BATCH, seed=[1, 2, 3])
    together = made.call("chunk", made.check("chunk", inputs))
    for n in range(BATCH):
        row = {name: np.asarray(value)[n : n + 1] for name, value in inputs.items()}
        alone = made.call("chunk", made.check("chunk", row))
        for name, value in alone.items():
            np.testing.assert_array_equal(together[name][n], value[0])


# Engines and types


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DRAFT, FRAMED])
def test_the_engine_speaks_and_answers_a_call_as_the_program(kind):
    fast, made = bundle(kind, "numba"), bundle(kind)
    assert (fast.engine, made.engine) == ("numba", "tensorflow")
    given = {**sound_of(kind), "seed": SEED, "num": 2, "row": 1, "temperature": HEAT}
    assert_same(fast.sample(**given), made.sample(**given))
    assert_same(np.concatenate(list(fast.stream(**given, chunk=999)), 1), made.sample(**given))
    inputs = dict(seed=[3, SEED, 4], row=[0, 1, 2], temperature=[1.0, 0.5, 0.7])
    inputs["frames"] = np.random.default_rng(0).random((BATCH, 40, 7), np.float32)
    inputs["num_frames"] = [40, 3, 21]
    ours, theirs = (b.call(PLAIN, b.check(PLAIN, inputs)) for b in (fast, made))
    assert_same(ours["sound"], theirs["sound"])
    np.testing.assert_array_equal(ours["num_samples"], theirs["num_samples"])


def test_the_engine_refuses_a_teacher_that_the_step_machine_cannot_run():
    with pytest.raises(UserError, match=r"`numba` does not run .*: If of cond: the step machine"):
        serving.load(bundle_folder(FREE), "numba")


def bundle_saying(tmp_path, backend, **values):
    """The folder of a student whose description says more, and its bundle."""
    folder, path = tmp_path / "model", tmp_path / "bundle/1"
    shutil.copytree(model_folder(PLAIN_STUDENT), folder)
    spec = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(spec | values))
    assert onepass.main(["export", str(folder), "--out", str(path), "--batches", "1"]) == 0
    return folder, serving.load(path, backend)


@pytest.mark.slow
def test_a_bundle_speaks_at_the_temperature_that_its_model_declares(tmp_path):
    _, made = bundle_saying(tmp_path, "numba", temperature=0.5)
    given = sound_of(PLAIN_STUDENT)
    cool, hot = (made.sample(**given, temperature=each) for each in (0.5, 1.0))
    np.testing.assert_array_equal(made.sample(**given), cool)
    frames = given["condition"][None]
    inputs = made.check(PLAIN, {"frames": frames, "num_frames": [frames.shape[1]]})
    assert inputs["temperature"] == [0.5] and np.abs(cool - hot).max() > 10 * STEP


@pytest.mark.integration
@pytest.mark.parametrize("backend", some_slow(["numba", "tensorflow"], ("tensorflow",)))
def test_a_bundle_refines_as_the_live_model_does(tmp_path, backend):
    folder, made = bundle_saying(tmp_path, backend, refine=1)
    plain_frames = sound_of(PLAIN_STUDENT)
    assert made.known_speakers == SPEAKERS[:2]
    given = {**plain_frames, "condition": recorded_frames(plain_frames["condition"], 0.0)}
    live = onepass.load(folder).sample(**given)
    assert_same(made.sample(**given), live)
    chunks = list(made.stream(**given, chunk=5000))
    assert_same(np.concatenate(chunks, axis=1), live)
    for each in (made, onepass.load(folder)):
        firsts = [next(iter(each.stream(**given, refine=n))).shape[1] for n in (0, 1)]
        # It holds whole pieces, and does not wait for the second chunk, which is much longer.
        assert firsts[0] <= firsts[1] < 2 * firsts[0]
    plain = made.sample(**given, refine=0)
    assert_same(plain, made.sample(**plain_frames))  # which may be of text
    assert_same(plain, onepass.load(folder).sample(**plain_frames))
    assert np.abs(plain - live).max() > 10 * STEP


def test_auto_takes_the_engine_for_students_in_float32():
    engines = [bundle(kind, "auto").engine for kind in (DRAFT, FREE)]
    assert engines == ["numba", "tensorflow"]


@pytest.mark.slow
def test_a_student_in_bfloat16_is_near_and_streams_its_own_sound():
    half, given = bundle(PLAIN_STUDENT, "auto", "--bfloat16"), sound_of(PLAIN_STUDENT)
    assert half.engine == "tensorflow"
    spoken, exact = half.sample(**given), bundle(PLAIN_STUDENT).sample(**given)
    error = np.sqrt(np.mean(np.square(spoken - exact)) / np.mean(np.square(exact)))
    assert 1e-5 < error < 0.05
    streamed = np.concatenate(list(half.stream(**given, chunk=1600)), 1)
    np.testing.assert_allclose(streamed, spoken, atol=4 * error * np.abs(exact).max())
    with pytest.raises(UserError, match="needs float32"):
        serving.load(bundle_folder(PLAIN_STUDENT, "--bfloat16"), "numba")


ALONE = """
    bundle = serving.load(sys.argv[1])
    frames = np.load(sys.argv[2])
    chunks = list(bundle.stream(2, None, 5, frames))
    try:
        bundle.frames(chunks[0][0])
    except ValueError as error:
        print(error)
    np.savez(sys.argv[3], whole=bundle.sample(2, None, 5, frames), parts=np.hstack(chunks))
"""


@pytest.mark.slow
def test_a_bundle_speaks_the_same_in_a_process_without_the_training_packages(
    tmp_path, without_training
):
    given, files = sound_of(DRAFT, 230), (tmp_path / "frames.npy", tmp_path / "spoken.npz")
    np.save(files[0], given["condition"])
    said = without_training(ALONE, bundle_folder(DRAFT), *files)
    assert said == "Features of a recording need the package wavenet.\n"
    spoken, expected = np.load(files[1]), model(DRAFT).sample(**given, seed=5, num=2)
    assert_same(spoken["whole"], expected)
    assert_same(spoken["parts"], expected)


# What a bundle knows


@pytest.mark.parametrize("change_db", [-30.0, 20.0])
def test_a_bundle_gives_a_recording_its_level_back_as_the_live_model_does(change_db):
    waveform = 0.1 * np.random.default_rng(0).normal(size=999).astype(np.float32)
    frames = bundle(DRAFT).frames(audio.amplify(waveform, change_db))
    assert abs(frames.gain_db + change_db) < 7
    own = bundle(DRAFT).sample(condition=np.asarray(frames), seed=3)
    sound = bundle(DRAFT).sample(condition=frames, seed=3)
    np.testing.assert_array_equal(sound, at_recorded_level(own, frames.gain_db))
    scale = max(1.0, 10.0 ** (-frames.gain_db / 20.0))
    live = model(DRAFT).sample(condition=frames, seed=3)
    np.testing.assert_allclose(sound, live, atol=1.01 * STEP * scale)
    parts = list(bundle(DRAFT).stream(condition=frames, seed=3))
    np.testing.assert_allclose(np.concatenate(parts, 1), sound, atol=1.01 * STEP * scale)


def test_a_bundle_says_what_it_speaks():
    made = bundle(FREE)
    assert (made.kind, made.sample_rate_hz, made.hop_samples) == ("sound", 4000, 1)
    assert made.known_speakers == SPEAKERS
    assert not made.conditional and bundle(DRAFT).conditional
    assert bundle(DRAFT).known_speakers == ()
    with pytest.raises(UserError, match="reads no frames"):
        made.frames(np.zeros(999, np.float32))


def test_what_is_warmed_is_every_piece_by_every_batch():
    made = bundle(DRAFT)
    short, long = made.serving["streaming"]["pieces"]
    calls = list(made.warmup_calls())
    assert [name for name, _ in calls] == ["compiled", "chunk"]
    for _, inputs in calls:
        assert len(inputs["seed"]) == BATCH
        assert (inputs["num_frames"] * made.hop_samples == short + long).all()


@pytest.mark.parametrize(("signature", "number"), [(PLAIN, 0), ("compiled", 2), ("chunk", 2)])
def test_pieces_alone_are_compiled_and_none_by_default(signature, number):
    graph = program_of(bundle_folder(DRAFT) / "saved_model.pb")
    assert count_compiled(graph, signature) == number


def test_the_longest_bucket_is_two_minutes_of_frames():
    spec = json.loads((bundle_folder(DRAFT) / "model.json").read_text())
    assert spec["serving"]["buckets"][-1] == 120 * 4000 // 20


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (DRAFT, dict(condition=None), "`condition` must be given"),
        (DRAFT, dict(condition=np.zeros([3, 6])), r"must be given, \(1, None, 7\), got"),
        (DRAFT, dict(condition=np.full([3, 7], np.nan)), "`frames` must be finite"),
        (DRAFT, dict(condition=np.full([3, 7], 9.0)), "`frames` must be between -4 and 4"),
        (DRAFT, dict(condition=np.zeros([3, 7]), length=61), "between 1 and 60, got 61"),
        (DRAFT, dict(condition=np.zeros([3, 7]), seed=2**64), "`seed` must be an integer in"),
        (DRAFT, dict(condition=np.zeros([3, 7]), seed=-1), "`seed` must be an integer in"),
        (DRAFT, dict(condition=np.zeros([3, 7]), num=0), "`num` must be an integer of"),
        (DRAFT, dict(condition=np.zeros([3, 7]), speaker="anna"), "the model has one voice"),
        (DRAFT, dict(condition=np.zeros([3, 7]), temperature=-1.0), "`temperature` must be"),
        (FREE, dict(), "`length` must be a number of elements"),
        (FREE, dict(length=0), "`length` must be a number of elements"),
        (FREE, dict(length=9, speaker="dora"), "must be one of anna, ben, cleo"),
        (
            VOCODER,
            dict(condition=np.zeros([3, 7]), refine=1),
            "`refine` must be",
        ),
        (DRAFT, dict(condition=np.zeros([3, 7]), refine=-1), "`refine` must be"),
    ],
)
def test_what_cannot_be_spoken_is_refused_at_once(kind, given, message):
    for speak in (bundle(kind).sample, bundle(kind).stream):
        with pytest.raises(InvalidInput, match=message):
            speak(**given)


@pytest.mark.parametrize(("signature", "counts"), [(PLAIN, [4]), ("chunk", [3])])
def test_more_frames_than_there_are_cannot_be_asked_for(signature, counts):
    inputs = dict(frames=np.zeros([1, 3, 7], np.float32), num_frames=counts)
    if signature == "chunk":
        inputs["frames_after"] = [1]
    with pytest.raises(InvalidInput, match="must be at most the 3 of `frames`, got 4"):
        bundle(DRAFT).check(signature, inputs)
