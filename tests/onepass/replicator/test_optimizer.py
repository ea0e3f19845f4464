"""Adam, clipping, the Polyak average, schedules, and the state that they move."""

import math

import numpy as np
import pytest
import tensorflow as tf
from runs import assert_same
from toys import Line, line_batch

from onepass.foundation.model_folders import variable_names
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import (
    TrainState,
    adam,
    clip_by_global_norm,
    compile_step,
    learning_rate,
    polyak,
)

SHAPES = ((3, 2), (4,))


def line_state(**options):
    line = Line()
    return line, TrainState(line, OptimizerConfig(warmup_steps=0, **options), num_steps=100)


def gradients_of(steps):
    draws = np.random.default_rng(5)
    return [[draws.normal(size=s) * 10.0 ** draws.uniform(-3, 1) for s in SHAPES] for _ in steps]


def test_adam_is_the_algorithm_of_the_paper():
    config = OptimizerConfig(beta1=0.8, beta2=0.95, epsilon=1e-3)
    start = [np.full(shape, 0.3) for shape in SHAPES]
    weights, first, second = start, [0 * w for w in start], [0 * w for w in start]
    state = [[tf.constant(v, tf.float32) for v in slot] for slot in (weights, first, second)]
    for t, gradients in enumerate(gradients_of(range(30)), start=1):
        given = [tf.cast(g, tf.float32) for g in gradients]
        state = adam(config, 0.02, t - 1, state[0], given, state[1], state[2])
        for i, g in enumerate(gradients):
            first[i] = 0.8 * first[i] + 0.2 * g
            second[i] = 0.95 * second[i] + 0.05 * g**2
            first_hat, second_hat = first[i] / (1 - 0.8**t), second[i] / (1 - 0.95**t)
            weights[i] = weights[i] - 0.02 * first_hat / (np.sqrt(second_hat) + 1e-3)
    for ours, theirs in zip(state, (weights, first, second), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_a_step_of_adam_does_not_depend_on_the_scale_of_the_gradient():
    config = OptimizerConfig(epsilon=1e-30)
    zeros = [tf.zeros(2)]
    for scale in (1e-3, 1e3):
        gradient = [tf.constant([scale, -2 * scale])]
        moved = adam(config, 0.1, 0, zeros, gradient, zeros, zeros)[0][0]
        np.testing.assert_allclose(moved, [-0.1, 0.1], rtol=1e-5)


@pytest.mark.parametrize(("limit", "scale"), [(2.5, 0.5), (5.0, 1.0), (7.0, 1.0), (0.0, 1.0)])
def test_clipping_scales_all_gradients_together_to_the_limit(limit, scale):
    gradients = [tf.constant([3.0, 0.0]), tf.constant([[4.0]])]
    clipped, norm = clip_by_global_norm(gradients, limit)
    assert float(norm) == 5.0
    for one, other in zip(clipped, gradients, strict=True):
        np.testing.assert_array_equal(one, scale * other)


def test_the_average_forgets_its_start_quickly_and_then_decays_as_asked():
    config = OptimizerConfig(average_decay=0.9)
    average, expected, draws = [tf.constant([100.0])], 100.0, np.random.default_rng(0)
    for step in range(200):
        weight = draws.normal()
        average = polyak(config, step, average, [tf.constant([weight], tf.float32)])
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
    np.testing.assert_allclose(average[0], [expected], rtol=1e-5)
    assert abs(expected) < 2.0


def rates(steps, num_steps=100, **options):
    config = OptimizerConfig(learning_rate=2.0, **options)
    return [float(learning_rate(config, tf.constant(step), num_steps)) for step in steps]


def test_the_rate_warms_up_linearly_and_stays():
    np.testing.assert_allclose(rates([0, 1, 3, 4, 90], warmup_steps=4), [0.5, 1.0, 2.0, 2.0, 2.0])


def test_a_cosine_falls_from_the_peak_to_nothing_at_the_last_step():
    steps = [0, 25, 50, 75, 99, 100, 120]
    found = rates(steps, warmup_steps=0, decay="cosine")
    expected = [1.0 + math.cos(math.pi * min(step, 100) / 100) for step in steps]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[-1] == 0.0


def test_halving_halves_at_every_interval():
    found = rates([9, 10, 19, 20, 30], warmup_steps=0, decay="halve", halve_every_steps=10)
    np.testing.assert_allclose(found, [2.0, 1.0, 1.0, 0.5, 0.25])


def test_training_finds_the_line():
    line, state = line_state(learning_rate=0.1)
    step = compile_step(state, line.loss, jit_compile=False)
    losses = [float(step(line_batch(n))["loss"]) for n in range(200)]
    assert losses[-1] < 0.05 < losses[0]
    np.testing.assert_allclose(line.slope, [1.0, 2.0, 3.0], atol=0.2)
    assert int(state.step) == 200


def test_the_average_is_that_of_the_weights_and_only_borrowed():
    line, state = line_state(average_decay=0.5)
    step = compile_step(state, line.loss, jit_compile=False)
    seen, expected = line.slope.numpy(), line.slope.numpy()
    for n in range(5):
        step(line_batch(n))
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * line.slope.numpy()
    live = line.slope.numpy()
    with pytest.raises(KeyError), state.swap_in_average():
        seen = line.slope.numpy()
        raise KeyError
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    np.testing.assert_array_equal(line.slope, live)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e25])
def test_an_update_that_is_not_finite_leaves_every_slot_as_it_was(value, jit_compile):
    line, state = line_state()
    step = compile_step(state, line.loss, jit_compile)
    step(line_batch(1))
    before = state.arrays()
    metrics = step({**line_batch(0), "y": tf.fill([8], value)})
    assert not math.isfinite(float(metrics["gradient_norm"]))
    assert_same(state.arrays(), before)
    step(line_batch(2))
    assert int(state.step) == 2 and np.all(np.isfinite(line.slope.numpy()))


def test_a_gradient_that_is_not_finite_under_a_finite_loss_is_not_taken():
    line, state = line_state()

    def loss(_):
        return tf.sqrt(0.0 * line.offset) + tf.reduce_sum(line.slope), {}

    before = state.arrays()
    metrics = compile_step(state, loss, jit_compile=False)(line_batch(0))
    assert float(metrics["loss"]) == 1.5 and math.isnan(metrics["gradient_norm"])
    assert_same(state.arrays(), before)


def test_a_weight_that_the_loss_does_not_depend_on_is_named():
    line, state = line_state()
    step = compile_step(state, lambda _: (tf.square(line.offset), {}), jit_compile=False)
    with pytest.raises(ValueError, match=r"`loss_fn` must depend on every weight.*`slope`"):
        step(line_batch(0))


def test_names_are_unique_paths_and_a_state_comes_back_from_its_arrays():
    line, state = line_state()
    assert variable_names(line) == ["offset", "slope"]
    compile_step(state, line.loss, jit_compile=False)(line_batch(0))
    arrays = state.arrays()
    slots = [f"{kind}/{name}" for kind in ("weights", "first", "second", "average")
             for name in ("offset", "slope")]  # fmt: skip
    assert {"step", *slots} == arrays.keys()
    other_line, other = line_state()
    other.restore(arrays)
    assert_same(other.arrays(), arrays)
    np.testing.assert_array_equal(other_line.slope, line.slope)
