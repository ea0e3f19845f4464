"""What the smaller benchmarks of sequences time draws the same; their parts are what they say."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import audio, first_sound, keras_wavenet, tokens
from benchmarks import cpp_bound as bound
from benchmarks.first_sound import eight_layers
from benchmarks.handwritten_cache import HandwrittenCache
from onepass.likelihoods import LogisticMixture
from wavenet.config import WaveNetConfig


def test_the_parts_of_the_first_sound_are_its_sum(monkeypatch):
    def made(name):
        return eight_layers(units=4, layers=2), LogisticMixture(levels=256, components=4)

    monkeypatch.setattr(first_sound, "made", made)
    found = first_sound.measure("eight", "auto")
    later = {"second length", "more rows", "a fourth row", "stream"}
    parts = found.keys() - later - {"first sound"}
    assert parts == {"construction", "derivation", "verification", "lowering", "first sample"}
    assert abs(found["first sound"] - sum(found[part] for part in parts)) < 1e-9
    assert min(found.values()) >= 0.0


def test_a_small_wavenet_is_measured_and_sees_its_window_and_no_more(monkeypatch):
    monkeypatch.setattr(keras_wavenet, "NAIVE_SAMPLES", 2)
    keras.utils.set_random_seed(0)  # by chance none of four rectified units lets a gradient pass
    network, window = keras_wavenet.wavenet(2, (1, 2), 16), 2 * 3 + 2
    found = keras_wavenet.measure(network, window, 20)
    assert found.keys() == {"first sound", "cached", "naive window", "naive window, XLA"}
    assert min(found.values()) > 0.0
    inputs = tf.constant(np.linspace(-1, 1, 12, dtype=np.float32)[None, :, None])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        last = tf.reduce_sum(network(inputs)[:, -1])
    reached = np.nonzero(tape.gradient(last, inputs)[0, :, 0])[0]
    assert reached[0] >= 12 - window


def test_the_shape_of_a_vocoder_has_the_head_that_draws_each_sample():
    shape = bound.shape_of(audio.NETWORKS["vocoder"])
    assert shape == bound.Shape(8, 1, 2, 128, 128, 128, 15, 4, 64, 26)
    assert bound.shape_of(audio.NETWORKS["30x64"])[-3:] == (1, 0, 0)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match=r"looked for no-such-compiler.*install g"):
        bound.find_compiler()


@pytest.mark.parametrize("name", ["30x64", "vocoder"])
def test_the_program_compiles_and_runs(name):
    try:
        bound.find_compiler()
    except FileNotFoundError:
        pytest.skip("no C++ compiler")
    assert bound.samples_per_second(audio.NETWORKS[name], 4, 100) > 0
    for batch in (0, 3):
        with pytest.raises(ValueError, match="must be"):
            bound.samples_per_second(WaveNetConfig(), batch, 100)


SHAPE = tokens.Shape(1, 16, 2, 32, 64)


def test_the_handwritten_cache_draws_what_the_derived_step_and_whole_passes_draw():
    network = tokens.random_gpt(SHAPE)
    written = HandwrittenCache(network).tokens(2, 40).numpy()
    model = tokens._model(network, SHAPE)
    np.testing.assert_array_equal(tokens._drawn(model, 2, 40), written)
    np.testing.assert_array_equal(tokens._drawn(model, 2, 40, "naive"), written)
    assert len(np.unique(written)) > 1


def test_the_windowed_network_sees_its_window_alone():
    network = tokens.windowed(tokens.Shape(1, 16, 2, 32))
    given = np.random.default_rng(0).integers(0, 32, [1, tokens.WINDOW + 40])
    other = given.copy()
    other[:, 20] = (given[:, 20] + 1) % 32
    is_changed = abs(network(given) - network(other)).numpy().max(-1) > 1e-6
    changed = np.flatnonzero(is_changed[0])
    assert (changed[0], changed[-1]) == (20, 20 + tokens.WINDOW - 1)


@pytest.mark.parametrize(("position", "chunk"), [(tokens.EARLY, 3), (tokens.LATE, 80)])
def test_chunks_are_named_by_their_first_position(position, chunk):
    parts = (np.zeros([1, tokens.CHUNK]) for _ in range(81))
    assert [first for first, _ in tokens._chunk_seconds(parts)][chunk] == position
