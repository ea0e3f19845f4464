"""`onepass bench images`: that its rows, ratios and verdicts say what was measured."""

import dataclasses
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from image_networks import QuickInitial

import onepass
from onepass.bench.images import command as images
from onepass.bench.images import programs, tfp_pixelcnn
from onepass.bench.images import rows as image_rows
from onepass.bench.images import targets as image_targets
from onepass.bench.images import training as image_training
from onepass.bench.images.arguments import BenchArguments
from onepass.bench.images.passes import count_passes
from onepass.bench.images.programs import Timed
from onepass.bench.report import Row
from pixelcnn.networks.config import FactorConfig, MultiscaleConfig, OutputConfig, PixelCNNConfig
from pixelcnn.presets import PRESETS

TINY = PixelCNNConfig(layers=1, units=4, output_units=4)


def tiny_preset(name, kind=None):
    """The preset with the smallest networks: the base is of 2 x 2 pixels, patches too."""
    preset, network = PRESETS[name], TINY
    if kind:
        factor = FactorConfig(kind, 1, 4, 4, patch=2, shallow_layers=1, shallow_units=4)
        network = MultiscaleConfig(base_size=2, base=TINY, factor=factor)
    config = dataclasses.replace(preset.config, output=OutputConfig(components=2))
    config = dataclasses.replace(config, network=network)
    return dataclasses.replace(preset, config=config)


def shrink(patch):
    """Tiny networks and images; engines that take long to compile left out."""
    patch.setitem(PRESETS, programs.PIXELCNN, tiny_preset(programs.PIXELCNN))
    for name, preset in programs.MULTISCALE.items():
        patch.setitem(PRESETS, preset, tiny_preset(preset, name[-1]))
    patch.setattr(programs, "LARGEST_COMPILED", 0)
    patch.setattr(programs, "LEAST_SECONDS", 0.0)
    patch.setattr(programs, "PART_PIXELS", 2**5)
    patch.setattr(image_training, "SIZE", 4)
    patch.setattr(image_training, "BATCH", 2)
    like_size = dict(num_resnet=1, num_hierarchies=1, num_filters=2, num_logistic_mix=2)
    patch.setattr(tfp_pixelcnn, "LIKE_SIZE", like_size)


@pytest.fixture
def tiny(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One run at two sizes: its rows, the path of its plot and its JSON."""
    folder = tmp_path_factory.mktemp("bench")
    json_, plot = folder / "rows.json", folder / "p.png"
    options = ["--sizes", "4", "2", "--rounds", "1", "--json", str(json_), "--plot", str(plot)]
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        tf.config.run_functions_eagerly(True)  # compiling takes longer than these images
        try:
            assert images.run(onepass.command.parse(BenchArguments, options, "onepass bench")) == 0
        finally:
            tf.config.run_functions_eagerly(False)
    output = json.loads(json_.read_text())
    return types.SimpleNamespace(rows=output["rows"], plot=plot, output=output)


def rows_of(bench, **wanted):
    return [row for row in bench.rows if wanted.items() <= row.items()]


# A run


@pytest.mark.slow
def test_json_keeps_the_contract(bench):
    assert set(bench.output) == {"machine", "rows"}
    keys = {"what", "size", "batch", "value", "unit", "against", "ratio", "spread"}
    assert all(keys <= set(row) for row in bench.rows)
    assert all(row["value"] > 0 for row in bench.rows)


@pytest.mark.slow
def test_every_sampler_is_timed_at_every_size(bench):
    timed = {(row["what"], row["size"]) for row in rows_of(bench, unit="s/picture")}
    whole = {"cached", "multiscale-A", "multiscale-B"}
    assert timed == (
        {(name, size) for name in whole for size in ("2x2", "4x4")}
        | {("naive", "2x2"), ("naive, 2 of 16 passes", "4x4")}
        | {("tfp", "2x2"), ("tfp, 3 of 17 passes", "4x4")}
    )


@pytest.mark.slow
def test_every_ratio_is_over_the_speed_of_the_same_size(bench):
    held = [row for row in bench.rows if row["against"]]
    assert len(held) == 2 * (2 + 3 + 3 + 1) + 2 + 2
    for row in held:
        same = dict(what=row["against"], size=row["size"], batch=row["batch"])
        same["unit"] = row["unit"]
        others = {other["value"] for other in rows_of(bench, **same)}
        assert len(others) == 1
        assert row["ratio"] == pytest.approx(row["value"] / others.pop())


@pytest.mark.slow
def test_speed_and_time_are_of_the_same_measurement(bench):
    for row in rows_of(bench, unit="pixels/s"):
        (time,) = rows_of(bench, what=row["what"], size=row["size"], unit="s/picture")
        assert row["value"] * time["value"] == pytest.approx(int(row["size"].split("x")[0]) ** 2)


@pytest.mark.slow
def test_compilation_is_a_row_of_its_own(bench):
    output = {row["what"] for row in rows_of(bench, unit="s to compile", size="4x4")}
    steps = {f"training, {dtype}" for dtype in image_training.DTYPES}
    graph = {"naive", "multiscale-A", "multiscale-B", "tfp", "tfp training"} | steps
    assert output == {"cached, XLA"} | {f"{name}, graph" for name in graph}


@pytest.mark.slow
def test_both_training_steps_see_the_same_batch(bench):
    for dtype in image_training.DTYPES:
        (speed,) = rows_of(bench, what=f"training, {dtype}", unit="pictures/s")
        assert (speed["against"], speed["batch"]) == ("tfp training", 2)


@pytest.mark.slow
def test_the_plot_is_an_image(bench):
    assert bench.plot.read_bytes().startswith(b"\x89PNG")


# What is timed


def test_the_presets_are_of_the_types_that_the_rows_name():
    kinds = {PRESETS[p].config.network.factor.kind: n for n, p in programs.MULTISCALE.items()}
    assert kinds == {"A": "multiscale-A", "B": "multiscale-B"}


def test_passes_are_the_base_and_three_a_doubling(tiny):
    assert count_passes("multiscale-A", 16) == {2: (4, 0), 4: (7, 0), 8: (10, 0), 16: (13, 0)}


def test_a_patch_takes_a_shallow_step_for_each_of_its_pixels(tiny):
    assert count_passes("multiscale-B", 8) == {2: (4, 0), 4: (7, 12), 8: (10, 24)}


@pytest.mark.parametrize("xla", [False, True])
def test_a_stopped_naive_sampler_draws_the_first_pixels_and_no_more(tiny, xla):
    (whole,) = programs.cached(4).calls["XLA"]()
    part = programs.naive_part(programs.pixelcnn(), 4, 8, xla)()
    assert np.array_equal(part.reshape(-1, 3)[:8], whole[0].reshape(-1, 3)[:8])
    assert not part.reshape(-1, 3)[8:].any() and whole[0].reshape(-1, 3)[8:].any()


def test_the_loop_of_tfp_is_stopped(tiny):
    class Counting:
        def sample(self, count, conditional_input):
            loop = tfp_pixelcnn.importlib.import_module(tfp_pixelcnn.MODULE).tf.while_loop
            return loop(lambda turn: turn < 99, lambda turn: turn + 1, (tf.constant(0),))[0]

    assert tfp_pixelcnn.sampled_part(Counting(), 4, False)() == 4


def test_loops_after_the_first_and_outside_run_to_their_end():
    def iterations():
        return int(tf.while_loop(lambda n, _: n < 9, lambda n, _: (n + 1, 0), (0, 0))[0])

    with programs.stopped(tf, 3):
        assert (iterations(), iterations()) == (3, 9)
    with programs.stopped(tf, 3):
        pass
    assert iterations() == 9


def test_a_part_is_scaled_to_an_image(monkeypatch):
    clock = iter([0.0, 2.0, 10.0, 10.5])  # the first call compiles
    monkeypatch.setattr(programs.time, "perf_counter", lambda: next(clock))
    timed = Timed({"graph": lambda: None}, share=1 / 8)
    timed.prepare()
    assert timed.measure() == timed.seconds == 4.0
    assert timed.compile_seconds == 1.5


def test_the_engine_that_is_faster_once_compiled_is_kept(monkeypatch):
    clock = iter([0, 1, 1, 9, 9, 12, 12, 14])  # compiling: 1 and 8 s, then: 3 and 2 s
    monkeypatch.setattr(programs.time, "perf_counter", lambda: next(clock))
    timed = Timed({"graph": lambda: None, "XLA": lambda: None})
    timed.prepare()
    assert timed.engine == "XLA"


def test_the_peer_is_of_like_size(monkeypatch):
    monkeypatch.setattr("pixelcnn.density.Initial", QuickInitial)
    programs._sampler_of.cache_clear()
    own = programs.weights_and_work(programs.pixelcnn())
    programs._sampler_of.cache_clear()
    assert own[0] == 757_720
    theirs = tfp_pixelcnn.weights_and_work(tfp_pixelcnn.make(32))
    assert theirs == pytest.approx(own, rel=0.1)


# Verdicts


def speeds(name, against, size, value, over):
    """Rows of a sampler and the one that it is held against, in pixels/s."""
    return [
        Row(name, f"{size}x{size}", 1, "pixels/s", against, values=[value]),
        Row(name, f"{size}x{size}", 1, "s/picture", values=[size**2 / value]),
        Row(against, f"{size}x{size}", 1, "pixels/s", values=[over]),
    ]


def verdict(rows, start):
    (line,) = [line for line in image_targets.verdicts(rows) if line[14:].startswith(start)]
    return line


@pytest.mark.parametrize(("value", "word"), [(50.0, "met  "), (49.0, "NOT MET")])
def test_a_target_is_met_from_its_figure_on(value, word):
    rows = speeds("cached", "naive, 64 of 1,024 passes", 32, value, 1.0)
    assert verdict(rows, "cached at least 50").startswith(word)


def test_a_target_that_nothing_was_measured_for_says_so():
    assert {line[:12] for line in image_targets.verdicts([])} == {"not measured"}


def test_one_size_behind_the_cached_sampler_misses_the_target():
    ahead = speeds("multiscale-A", "cached", 32, 3.0, 1.0)
    assert verdict(ahead, "multiscale-A ahead").startswith("met  ")
    rows = ahead + speeds("multiscale-A", "cached", 64, 0.9, 1.0)
    assert verdict(rows, "multiscale-A ahead").startswith("NOT MET")
    small = speeds("multiscale-A", "cached", 16, 0.9, 1.0)
    assert verdict(ahead + small, "multiscale-A ahead").startswith("met  ")


def test_passes_that_grow_faster_than_the_logarithm_miss_the_target():
    def counted(*values):
        sizes = (16, 64, 128)
        return [
            Row("multiscale-B, passes", f"{size}x{size}", 1, "passes", values=[value])
            for size, value in zip(sizes, values, strict=True)
        ]

    start = "multiscale-B: 3 more passes"
    assert verdict(counted(67, 73, 76), start).startswith("met  ")
    assert verdict(counted(67, 73, 79), start).startswith("NOT MET")


def test_points_of_the_plot_tell_parts_from_wholes():
    rows = [
        Row("naive, 1 of 1,024 passes", "32x32", 1, "s/picture", values=[30.0]),
        Row("naive", "16x16", 1, "s/picture", values=[2.0]),
        Row("cached", "16x16", 1, "s/picture", values=[0.1]),
    ]
    assert image_targets.points(rows, "naive") == [(16, 2.0, False), (32, 30.0, True)]
    line = image_targets.side_by_side(rows).splitlines()[2]
    assert image_targets.side_by_side(rows).endswith("; all by untrained weights")
    assert line.split() == ["32x32", "30*"]


# Mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "16", "20"], "`size` must be 8 times a power of two, got 20"),
        (["--sizes", "0"], "`size` must be 8 times a power of two, got 0"),
        (["--samplers", "cahced"], "there is no sampler `cahced`; there are naive, cached, "),
        (["--samplers", "--no-training"], "`--samplers` or `--training` must leave something"),
        (["--rounds", "0"], "`--rounds` must be at least 1, got 0"),
        (["--plot", "curve.gif"], "`--plot` must end in .png, .pdf or .svg, got curve.gif"),
        (["--json", "nowhere/rows.json"], "there is no folder nowhere to write rows.json to"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(options, said, mistake, monkeypatch):
    monkeypatch.setattr(onepass.command, "_import_tensorflow_quietly", lambda: None)
    assert said in mistake("bench", "images", *options)


def test_nothing_is_left_to_measure_without_sizes_of_samplers():
    given = image_rows.made((), (), False)
    assert given == {}
