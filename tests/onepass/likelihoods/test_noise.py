import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from onepass.likelihoods import noise

FLOATS = [noise.uniform, noise.logistic, noise.normal]
DRAWS = [noise.bits, *FLOATS]
ROWS = [5, 0, 17]


def compiled(draw, length, lane=0):
    return tf.function(
        lambda seed, rows, start: draw(seed, rows, start, length, lane), jit_compile=True
    )


# Salmon et al. 2011: `kat_vectors` of the Random123 library, threefry2x32, 20 rounds.
PUBLISHED = (  # keys, counters and answers
    [(0, 0), (2**32 - 1, 2**32 - 1), (0x13198A2E, 0x03707344)],
    [(0, 0), (2**32 - 1, 2**32 - 1), (0x243F6A88, 0x85A308D3)],
    [(0x6B200159, 0x99BA4EFE), (0x1CB996FC, 0xBB002BE7), (0xC4923A9C, 0x483DF7A0)],
)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_threefry_gives_the_published_answers(jit_compile):
    keys, counters, answers = (tf.constant(words, tf.uint32) for words in PUBLISHED)
    cipher = tf.function(noise.threefry2x32, jit_compile=jit_compile)
    np.testing.assert_array_equal(cipher(keys, counters), answers)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_number_depends_on_its_address_alone(draw):
    whole = draw(99, ROWS, 0, 64).numpy()
    alone = draw(99, [17], 0, 64).numpy()
    padded = draw(99, [17, 1, 2, 3, 4], 0, 100).numpy()
    chunk = draw(99, ROWS, tf.constant(40), 7).numpy()
    backwards = draw(99, ROWS[::-1], 0, 64).numpy()
    np.testing.assert_array_equal(alone[0], whole[2])
    np.testing.assert_array_equal(padded[0, :64], whole[2])
    np.testing.assert_array_equal(chunk, whole[:, 40:47])
    np.testing.assert_array_equal(backwards, whole[::-1])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("draw", DRAWS)
def test_rows_with_seeds_and_starts_of_their_own_are_the_same_one_by_one(draw, compiled):
    seeds, starts = [7, 2**63 + 12345, 7], [0, 40, 2**31 - 100]
    keys = tf.stack([noise.as_key(seed) for seed in seeds])
    together = tf.function(
        lambda keys, rows, starts: draw(keys, rows, starts, 9), jit_compile=compiled
    )(keys, tf.constant(ROWS), tf.constant(starts))
    for n, row in enumerate(ROWS):
        alone = draw(seeds[n], [row], starts[n], 9)
        np.testing.assert_array_equal(together[n], alone[0])


@pytest.mark.parametrize("draw", DRAWS)
def test_a_length_may_be_a_tensor(draw):
    drawn = tf.function(lambda length: draw(99, ROWS, 5, length))(tf.constant(12))
    np.testing.assert_array_equal(drawn, draw(99, ROWS, 5, 12))


@pytest.mark.parametrize("draw", DRAWS)
def test_a_compiler_does_not_change_a_bit(draw):
    seed, rows = noise.as_key(2**63 + 12345), tf.constant([3, 1], tf.int32)
    eager = draw(seed, rows, 1000, 100_000).numpy()
    graph = tf.function(lambda start: draw(seed, rows, start, 100_000))(tf.constant(1000)).numpy()
    xla = compiled(draw, 100_000)(seed, rows, tf.constant(1000)).numpy()
    np.testing.assert_array_equal(eager, graph)
    np.testing.assert_array_equal(eager, xla)


@pytest.mark.parametrize(
    ("key", "counter"),
    [([2], [2]), ([2], [5, 2]), ([3, 1, 2], [3, 7, 2]), ([0, 1, 2], [7, 2]), ([4, 2], [2])],
)
def test_a_graph_and_a_call_at_once_give_the_same_words(key, counter):
    generator = np.random.default_rng(0)
    words = [tf.constant(generator.integers(0, 2**32, x, np.uint32)) for x in (key, counter)]
    graph = tf.function(noise.threefry2x32, autograph=False)
    at_once = noise.threefry2x32(*words)
    assert at_once.dtype == tf.uint32
    np.testing.assert_array_equal(at_once, graph(*words))


@pytest.mark.parametrize("draw", DRAWS)
def test_other_seeds_rows_positions_and_lanes_give_other_numbers(draw):
    base = draw(1, [0], 0, 1000).numpy()
    others = [
        draw(2, [0], 0, 1000),
        draw(1 + 2**32, [0], 0, 1000),
        draw(1, [1], 0, 1000),
        draw(1, [0], 1000, 1000),
        draw(1, [0], 0, 1000, lane=1),
        draw(noise.fold_in(1, 0), [0], 0, 1000),
    ]
    for other in others:
        assert np.mean(base == other.numpy()) < 0.01
        assert abs(np.corrcoef(base.astype(float).ravel(), other.numpy().ravel())[0, 1]) < 0.1


def test_the_two_words_of_a_position_are_unrelated():
    words = noise.uniform(4, [0], 0, 100_000).numpy()[0]
    assert abs(np.corrcoef(words[:, 0], words[:, 1])[0, 1]) < 0.015
    assert abs(np.corrcoef(words[:-1, 0], words[1:, 1])[0, 1]) < 0.015


def test_uniform_never_reaches_its_ends():
    extremes = tf.constant([0, 1, 2**31 - 1, 2**31, 2**32 - 1], tf.uint32)
    numbers = noise.uniform_from_bits(extremes).numpy()
    assert numbers[0] == 2.0**-24
    assert numbers[-1] == 1 - 2.0**-24
    np.testing.assert_array_equal(numbers[2] + numbers[3], 1.0)


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [(noise.uniform, stats.uniform), (noise.logistic, stats.logistic), (noise.normal, stats.norm)],
)
def test_numbers_follow_their_distribution(draw, distribution):
    numbers = draw(2024, [0, 1], 0, 100_000).numpy().astype(float).reshape(-1, 2)
    for channel in numbers.T:
        mean, variance, skew, kurtosis = distribution.stats(moments="mvsk")
        assert np.mean(channel) == pytest.approx(mean, abs=0.02)
        assert np.var(channel) == pytest.approx(variance, rel=0.02)
        assert stats.skew(channel) == pytest.approx(skew, abs=0.05)
        assert stats.kurtosis(channel) == pytest.approx(kurtosis, abs=0.2)
        assert stats.kstest(channel, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("jit_compile", [False, True])
def test_extreme_words_give_the_right_tails(jit_compile):
    words = tf.constant([0, 2**31 - 1, 2**31, 2**32 - 1], tf.uint32)
    logistic = tf.function(noise.logistic_from_bits, jit_compile=jit_compile)(words).numpy()
    u = (np.array([0, 2**31 - 1, 2**31, 2**32 - 1], float) + 0.5) / 2**32
    np.testing.assert_allclose(logistic, 2 * np.arctanh(2 * u - 1), rtol=1e-7)
    pairs = tf.constant([[0, 0], [0, 2**30], [0, 2**31], [2**32 - 1, 3 * 2**30]], tf.uint32)
    normal = tf.function(noise.normal_from_bits, jit_compile=jit_compile)(pairs).numpy()
    radius = np.sqrt(-2 * np.log1p(-np.array([1 - 2**-33] * 3 + [2**-33])))
    small = 2 * np.pi * 2**-33
    cosine_and_sine = [[1, small], [-small, 1], [-1, -small], [small, -1]]
    np.testing.assert_allclose(normal, radius[:, None] * np.array(cosine_and_sine), rtol=1e-6)


def test_fold_in_keeps_numbers_and_seeds_apart():
    seeds = noise.fold_in(11, tf.range(1000)).numpy()
    assert len({tuple(seed) for seed in seeds}) == 1000
    np.testing.assert_array_equal(seeds[7], noise.fold_in(11, 7).numpy())
    words = noise.bits(11, [7], 0, 1000).numpy()[0]
    nested = noise.fold_in(noise.fold_in(11, 7), tf.range(1000)).numpy()
    assert not {tuple(word) for word in words} & {tuple(seed) for seed in nested}


def test_a_seed_may_be_a_tensor_of_its_two_words():
    number = 0x89ABCDEF_01234567
    words = tf.constant([0x89ABCDEF, 0x01234567], tf.uint32)
    for seed in (words, tf.bitcast(words, tf.int32), np.uint64(number)):
        np.testing.assert_array_equal(noise.as_key(seed), noise.as_key(number))


def test_seeds_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"`seed` must be an integer in \[0, 2\^64\), got -1"):
        noise.uniform(-1, [0], 0, 4)
    with pytest.raises(ValueError, match=r"`seed` must be .* got float32 \(2,\)"):
        noise.uniform(tf.constant([1.0, 2.0]), [0], 0, 4)
    with pytest.raises(ValueError, match=r"`lane` must be in \[0, 2\^32 - 1\), got 4294967295"):
        noise.bits(0, [0], 0, 4, lane=2**32 - 1)
    with pytest.raises(ValueError, match="`length` must be at least 0, got -2"):
        noise.bits(0, [0], 0, -2)
