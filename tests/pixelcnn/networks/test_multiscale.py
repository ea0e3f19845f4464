"""The multiscale model is an exact density; a factor reads all groups before it and no more."""

import itertools
import math
import re

import numpy as np
import pytest
import tensorflow as tf
from image_networks import (
    QuickInitial,
    condition_of,
    every_image,
    factor_config,
    factor_of,
    image_of,
    multiscale_of,
    output_of,
    total_probability,
)
from marks import some_slow

from pixelcnn.config import GROUPS, check_size, sizes_between
from pixelcnn.density import REACH, Factor, condition_at, first_tiles, tile_weights
from pixelcnn.networks.layers import (
    NONE,
    Condition,
    cut,
    merge,
    merge_groups,
    paste,
    split,
    subsample_blocks,
)
from pixelcnn.networks.pixelcnn import PLACE, with_coordinates

KINDS = ["A", "B"]


def shaped(batch, height, width, channels=3):
    """A tensor in which no two numbers are alike."""
    shape = [batch, height, width, channels]
    return tf.reshape(tf.range(math.prod(shape)), shape)


def placed(height, width):
    """The condition that a factor without any other reads."""
    return with_coordinates(NONE, height, width)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (4, 6), (2, 8)])
def test_groups_are_the_corners_of_each_tile_in_reading_order_and_merge_again(height, width):
    image = shaped(2, height, width) + 1
    groups = split(image)
    for group, (row, column) in zip(groups, np.ndindex(2, 2), strict=True):
        np.testing.assert_array_equal(group, image[:, row::2, column::2])
    np.testing.assert_array_equal(merge(groups), image)
    # What the next factor reads of those known: zeros stand for the last.
    np.testing.assert_array_equal(merge_groups(groups[:1]), image[:, ::2, ::2])
    np.testing.assert_array_equal(merge_groups(groups[:2]), image[:, ::2])
    expected = image.numpy()
    expected[:, 1::2, 1::2] = 0
    np.testing.assert_array_equal(merge_groups(groups[:3]), expected)


def test_a_subsample_is_group_one_of_group_one_where_its_size_divides_the_image():
    image = expected = shaped(2, 16, 16)
    np.testing.assert_array_equal(subsample_blocks(image, 16), image)
    for size in (8, 4, 2, 1):
        expected = split(expected)[0]
        np.testing.assert_array_equal(subsample_blocks(image, size), expected)
    for height, width, size in ((16, 16, 6), (16, 8, 8)):
        rule = f"`size` must divide the image, {height} x {width}, got {size}."
        with pytest.raises(ValueError, match=re.escape(rule)):
            subsample_blocks(shaped(1, height, width), size)


def test_patches_are_neighbours_of_one_image_in_reading_order_and_paste_again():
    image = shaped(2, 4, 8)
    patches = cut(image, 2)
    np.testing.assert_array_equal(paste(patches, tf.shape(image)), image)
    patches = patches.numpy().reshape(2, 2, 4, 2, 2, 3)
    for n, row, column in np.ndindex(2, 2, 4):
        expected = image[n, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        np.testing.assert_array_equal(patches[n, row, column], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", GROUPS)
def test_probabilities_of_a_group_sum_to_one_whatever_the_groups_before(group, kind):
    factor = factor_of(group, kind, output_of(levels=3), amount=1.0)
    images, before = every_image(2, 2, 1, 3), split(image_of(1, 4, 4, 1, 3))[: group - 1]

    def log_prob(part):
        groups = [tf.repeat(each, len(part), 0) for each in before]
        return factor.conditionals(part, groups, placed(4, 4)).nats()

    assert total_probability(log_prob, images) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("part", ["units", "prediction"])
@pytest.mark.parametrize("group", GROUPS)
def test_a_pixel_of_a_group_reads_all_groups_before_it_near_by(group, part, monkeypatch):
    monkeypatch.setattr("pixelcnn.density.value_of", lambda values, levels: values)
    blocks, side = 1, 7
    factor = factor_of(group, blocks=blocks)
    draws = np.random.default_rng(4)
    groups = [
        tf.repeat(draws.uniform(-1, 1, [1, side, side, 1]).astype(np.float32), side**2, 0)
        for _ in range(group - 1)
    ]
    with tf.GradientTape() as tape:
        tape.watch(groups)
        known = getattr(factor(groups, placed(2 * side, 2 * side)), part)
        weights = draws.normal(size=known.shape[-1]).astype(np.float32)
        known = tf.reshape(tf.reduce_sum(known * weights, -1), [side**2, side**2])
        own = tf.linalg.diag_part(known)
    y, x = np.divmod(np.arange(side**2), side)
    away = np.maximum(np.abs(np.subtract.outer(y, y)), np.abs(np.subtract.outer(x, x)))
    reach = REACH + (blocks if part == "units" else 0)
    for slope in tape.gradient(own, groups):
        read = np.abs(slope).reshape(side**2, side**2) > 0
        np.testing.assert_array_equal(read, away <= reach)


def joint_moves(factor, side=4):
    """[pixels, pixels], how far a change of two pixels is from the sum of the two changes."""
    image = image_of(1, 2 * side, 2 * side)
    groups, pixels = split(image), side**2
    own, before = groups[factor.group - 1], groups[: factor.group - 1]
    one = np.eye(pixels, dtype=np.int32)
    both = np.minimum(one[:, np.newaxis] + one, 1).reshape(-1, pixels)
    changes = np.concatenate([np.zeros([1, pixels], np.int32), both])
    changed = (own + changes.reshape(-1, side, side, 1)) % 8
    before = [tf.repeat(each, len(changes), 0) for each in before]
    nats = factor.conditionals(changed, before, placed(2 * side, 2 * side)).nats().numpy()
    moves = (nats[1:] - nats[0]).reshape(pixels, pixels)
    alone = moves.diagonal()
    return np.abs(moves - alone - alone[:, np.newaxis]) * (1 - one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", GROUPS)
def test_pixels_of_a_group_depend_on_each_other_within_a_patch_of_type_b_alone(group, kind):
    moves = joint_moves(factor_of(group, kind))
    y, x = np.divmod(np.arange(16), 4)
    patch = 2 * (y // 2) + x // 2
    within = (patch == patch[:, np.newaxis]) & ~np.eye(16, dtype=bool)
    assert (moves[within].min() > 1e-3) == (kind == "B")
    assert moves[~within if kind == "B" else ...].max() < 1e-3


@pytest.mark.parametrize("group", GROUPS)
def test_the_untrained_prediction_lies_in_the_middle_of_known_neighbours(group):
    factor = Factor(group, factor_config(), output_of(), QuickInitial(0), 0, PLACE)
    rows, columns = np.mgrid[:12, :12]
    ramp = (0.3 * rows - 0.2 * columns)[np.newaxis, :, :, np.newaxis]
    image = tf.constant(ramp, tf.float32)
    groups = split((image + 1.0) * 3.5)  # levels, though not whole ones
    prediction = factor(groups[: group - 1], placed(12, 12)).prediction
    expected = split(image)[group - 1]
    np.testing.assert_allclose(prediction[:, 1:-1, 1:-1], expected[:, 1:-1, 1:-1], atol=1e-5)


@pytest.mark.parametrize("group", GROUPS)
def test_a_map_reaches_the_prediction_of_its_own_pixel_alone(group):
    factor = factor_of(group)
    groups = split(image_of(1, 6, 6))
    start = placed(6, 6).map
    places = tf.reshape(tf.eye(36), [36, 6, 6, 1])
    base = factor(groups[: group - 1], Condition(None, start)).prediction
    changed = [tf.repeat(each, 36, 0) for each in groups[: group - 1]]
    moved = factor(changed, Condition(None, start + places)).prediction - base
    owners = split(tf.reshape(tf.range(36), [1, 6, 6, 1]))[group - 1].numpy().ravel()
    expected = np.zeros([36, 9], bool)
    expected[owners, np.arange(9)] = True
    np.testing.assert_array_equal(np.abs(moved).reshape(36, 9) > 1e-6, expected)


def test_a_part_alone_says_what_it_says_in_the_whole():
    whole, image = multiscale_of(), image_of(2, 8, 8)
    some = ("8.3", "2")
    part = multiscale_of(parts=some)
    assert part.parts == ("2", "8.3")
    pairs = [(part.base, whole.base), (part.factors["8.3"], whole.factors["8.3"])]
    for ours, theirs in pairs:
        for one, other in zip(ours.variables, theirs.variables, strict=True):
            one.assign(other)
    assert len(part.variables) == sum(len(ours.variables) for ours, _ in pairs)
    expected = whole.nats(image, NONE)
    assert tuple(expected) == whole.parts == ("2", "4.2", "4.3", "4.4", "8.2", "8.3", "8.4")
    for name, nats in part.nats(image, NONE).items():
        np.testing.assert_array_equal(nats, expected[name])


@pytest.mark.parametrize("kind", some_slow(KINDS, ("A",)))
def test_a_crop_is_judged_with_its_own_map_and_counts_for_the_whole(kind):
    model = multiscale_of(kind, vector=2, map_=2, crop=4)
    first, weights = [0, 0, 1, 2, 2], np.array([5 / 2, 5 / 3, 5 / 3, 5 / 2], np.float32)
    corners = np.array(list(itertools.product(range(5), repeat=2)), np.int32)
    image = tf.repeat(image_of(1, 8, 8), len(corners), 0)
    condition = Condition(*(tf.repeat(x, len(corners), 0) for x in condition_of(1, 8, 8, 2, 2)))
    whole = model.nats(image, condition)
    found = model.nats(image, condition, seeds=corners)
    map_ = with_coordinates(condition, 8, 8).map

    def crops_of(images):
        places = [slice(2 * i, 2 * i + 4) for i in first]
        windows = itertools.product(places, places)
        return tf.stack([images[n, y, x] for n, (y, x) in enumerate(windows)])

    for part in model.parts:
        if not part.startswith("8"):
            np.testing.assert_array_equal(found[part], whole[part])
            continue
        factor = model.factors[part]
        groups, own = split(crops_of(image)), factor.group - 1
        at = Condition(condition.vector, crops_of(map_))
        weighed = [weights[i : i + 2] for i in first]
        tiles = np.stack([np.outer(y, x) for y, x in itertools.product(weighed, weighed)])
        expected = factor.conditionals(groups[own], groups[:own], at).apply_weights(tiles).nats()
        np.testing.assert_allclose(found[part], expected, rtol=1e-5)
        assert len(np.unique(np.round(expected, 4))) == 9


@pytest.mark.parametrize("kind", ["A", "B"])
def test_factors_without_coordinates_know_neither_a_size_nor_a_location(kind):
    model = multiscale_of(kind, 8, parts=("8.2", "8.3", "8.4"), coordinates=False, blocks=1)
    image = image_of(1, 16, 32)
    assert all(factor.map_front is None for factor in model.factors.values())
    whole, part = (model.conditionals(x, NONE) for x in (image, image[:, :, 8:24]))
    for name, conditionals in part.items():
        each = conditionals.output.log_prob(conditionals.hidden, conditionals.levels)
        all_ = whole[name].output.log_prob(whole[name].hidden, whole[name].levels)
        if kind == "B":  # patches of 2 x 2 pixels of a group, row by row
            each, all_ = (paste(x[..., None], [1, 8, -1, 1])[..., 0] for x in (each, all_))
        inside = slice(2, -2)  # farther from the cut than `Factor.reach`
        np.testing.assert_allclose(each[:, :, inside], all_[:, :, 4:12][:, :, inside], rtol=1e-5)


def test_a_window_of_a_photograph_is_judged_like_an_image_of_its_size():
    model = multiscale_of(size=16, parts=("8.2", "16.4"), coordinates=False)
    image = image_of(2, 8, 12)
    found = model.nats(image, NONE)
    assert set(found) == {"8.2", "16.4"}
    groups = split(image)
    expected = model.factors["16.4"].conditionals(groups[3], groups[:3], NONE).nats()
    np.testing.assert_array_equal(found["16.4"], expected)
    groups = split(image[:, ::2, ::2])
    expected = model.factors["8.2"].conditionals(groups[1], groups[:1], NONE).nats()
    np.testing.assert_array_equal(found["8.2"], expected)
    assert model.drawn_share == 1 / 16 + 1 / 4


@pytest.mark.parametrize("crop", some_slow([0, 8, 16], (0, 16)))
def test_scales_no_larger_than_the_crop_are_judged_whole(crop):
    model, image = multiscale_of(crop=crop), image_of(3, 8, 8)
    whole = model.nats(image, NONE)
    seeds = tf.constant([[5, -3], [2**31 - 1, -(2**31)], [1, 1]])
    for part, nats in model.nats(image, NONE, seeds=seeds).items():
        np.testing.assert_array_equal(nats, whole[part])


@pytest.mark.parametrize(("size", "crop"), [(8, 4), (16, 4), (16, 8), (128, 32), (512, 64)])
def test_in_the_mean_over_all_crops_every_tile_weighs_the_same_and_none_much_more(size, crop):
    first, weights = first_tiles(size, crop), tile_weights(size, crop)
    total = np.zeros(size // 2)
    for tile in first:
        total[tile : tile + crop // 2] += weights[tile : tile + crop // 2]
    np.testing.assert_allclose(total / len(first), 1.0, rtol=1e-6)
    assert weights.max() < 1.0 + size / crop


def test_every_place_is_cropped_about_as_often_as_it_shall():
    model = multiscale_of(crop=4, parts=("8.2",), output=output_of("softmax", 1, 64))
    for variable in model.trainable_variables:  # the density of a level is that of a known table
        is_bias = variable.name.startswith("bias_")
        variable.assign(tf.linspace(0.0, 1.0, 64) if is_bias else tf.zeros_like(variable))
    image = tf.repeat(tf.reshape(tf.range(64), [1, 8, 8, 1]), 250, 0)
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, [250, 2]).astype(np.int32)
    nats = model.nats(image, NONE, seeds=seeds)["8.2"]
    _, counts = np.unique(np.round(nats, 2), return_counts=True)
    expected = np.sort(10 * np.outer([2, 1, 2], [2, 1, 2]).ravel())
    assert np.abs(np.sort(counts) - expected).max() < 25


def test_a_condition_at_a_size_is_the_sub_sample_of_its_map():
    condition = condition_of(2, 8, 8, 3, 2)
    small = condition_at(condition, 2)
    assert small.vector is condition.vector
    np.testing.assert_array_equal(small.map, condition.map[:, ::4, ::4])
    assert condition_at(NONE, 2) == NONE


def test_sizes_double_from_the_base_and_others_are_refused_with_the_nearest():
    assert (sizes_between(8, 64), sizes_between(4, 4)) == ((8, 16, 32, 64), (4,))
    for size in (8, 16, 64, 256):
        check_size(size, 8)
    for size in (0, -8, 4, 12):
        with pytest.raises(ValueError, match=f"got {size};"):
            check_size(size, 8)
    for size, base, near in ((24, 8, "16 and 32"), (33, 4, "32 and 64"), (7, 2, "4 and 8")):
        rule = f"`size` must be {base} times a power of two, got {size}; {near} are near."
        with pytest.raises(ValueError, match=re.escape(rule)):
            check_size(size, base)
