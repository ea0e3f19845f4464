"""Layouts over four logical devices: what is found, how it trains, what is refused."""

import jax_steps
import numpy as np
import pytest
from in_replicas import run_checks

from onepass.replicator.portable import run
from onepass.replicator.portable.layouts.layout import Step, Tensor
from onepass.replicator.portable.layouts.search import NEAR, Partitioner, state_groups

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]
COLUMNS, ROWS = ((), ("model",)), (("model",), ())


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return run_checks("layout_checks", tmp_path_factory.mktemp("layouts"), 280, "jax")


@pytest.fixture(scope="module")
def slow_check(tmp_path_factory):
    return run_checks("layout_slow_checks", tmp_path_factory.mktemp("layouts"), 3000, "jax")


@pytest.fixture(scope="module")
def two_blocks(tmp_path_factory):
    """A step and its partitioner over one axis of four."""
    weights = jax_steps.transformer_weights(2, 16, 32)
    batch = {"x": (2, 4, 16), "y": (2, 4, 16)}
    folder = tmp_path_factory.mktemp("step") / "blocks"
    jax_steps.export(folder, jax_steps.transformer(2), weights, batch)
    program = run.load_exported(folder, run.read_manifest(folder)["functions"]["step"])
    step = Step.read(folder)
    return step, Partitioner(step, program.mlir_module(), {"rows": 1, "model": 4})


def pairs(*prefixes):
    """Megatron's cuts of blocks (Shoeybi et al. 2019), of weights and moments."""
    columns, rows = ("query", "key", "value", "up"), ("out", "down")
    cuts = {**dict.fromkeys(columns, COLUMNS), **dict.fromkeys(rows, ROWS)}
    cuts |= dict.fromkeys(("query_bias", "up_bias"), (("model",),))
    return {
        f"{kind}/{prefix}/{name}": cut
        for kind in jax_steps.SLOTS for prefix in prefixes for name, cut in cuts.items()
    }  # fmt: skip


def test_one_decision_implies_the_column_row_pair_and_its_moments(two_blocks):
    step, partitioner = two_blocks
    cuts = tuple(
        COLUMNS if t.name == "weights/block_0/up" else ((),) * len(t.shape) for t in step.arguments
    )
    found = partitioner.propagate_cuts(cuts)
    cut = {t.name: c for t, c in zip(step.arguments, found, strict=True) if any(c)}
    wanted = pairs("block_0")
    assert cut == {n: c for n, c in wanted.items() if n.split("/")[-1] in ("up", "up_bias", "down")}


def test_repeated_layers_and_tied_tensors_are_one_group(two_blocks):
    step, partitioner = two_blocks
    groups = [
        {step.arguments[index].name for index in group.indices}
        for group in state_groups(step, partitioner)
    ]
    for name in ("query", "out", "up", "down"):
        wanted = {f"{k}/block_{i}/{name}" for k in jax_steps.SLOTS for i in (0, 1)}
        assert wanted in groups
    sizes = [group.num_elements for group in state_groups(step, partitioner)]
    assert sizes == sorted(sizes, reverse=True)


def test_megatrons_pairs_and_its_four_all_reduces_are_found_in_a_block(check):
    cuts, collectives = check("transformer")
    assert cuts == pairs("block_0")
    assert collectives == ("all-reduce",) * 4


def test_the_state_is_cut_where_memory_is_short_and_only_there(check):
    free, tight, limit, needed = check("memory")
    assert free == {"x": (("rows",), ()), "y": (("rows",), ())}
    cut = {name.split("/")[1] for name in tight if "/" in name}
    assert cut
    for name in cut:  # a weight and its moments together
        assert len({tight[f"{kind}/{name}"] for kind in jax_steps.SLOTS}) == 1
    assert needed <= limit


@pytest.mark.parametrize("case", [1, 2, 4], ids=["auto", "auto again", "an edited file"])
def test_a_layout_trains_as_one_device_does(check, case):
    (_, alone, losses, _), (status, found, found_losses, said) = (
        check("training")[i] for i in (0, case)
    )
    assert status == 0, said
    assert "4 x cpu" in said
    assert found["step"] == 3
    for name, expected in alone.items():
        scale = max(np.abs(expected).max(), 1e-12)
        assert np.abs(found[name] - expected).max() / scale < 1e-5, name
    np.testing.assert_allclose(found_losses, losses, rtol=1e-5)


def test_the_search_is_deterministic(check):
    assert check("training")[3]


REFUSALS = {
    "devices": "A mesh 4x2 needs 8 devices, there are 4.",
    "text": "--mesh must be two sizes, rows x model, as in 4x2; got 2by2.",
    "rows": "--mesh 3x1: 3 does not divide batches of 16 rows.",
    "model": "--mesh 1x3: 3 divides no dimension of the state.",
    "both": "--devices divides batches by rows only",
    "another program": "is for program",
    "another mesh": "is for the mesh",
    "axis": 'cuts `x` [16, 64] as ["columns"]: the axes of the mesh are rows, model.',
    "size": 'the mesh {"rows": 3} does not divide it.',
    "twice": 'cuts `weights/up` [64, 256] as ["model", "model"]',
    "name": "names `weights/right`, unknown to the program.",
    "nothing": "cannot be read",
    "memory": "No layout over 2x2 devices fits in 1e-05 GiB: the smallest needs",
    "memory of a file": "GiB per device, more than 1e-05.",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_one_line_and_status_2(check, case):
    status, said = check("refusals")[case]
    assert status == 2
    assert said.startswith("error: ") and said.count("\n") == 1
    assert REFUSALS[case] in said


@pytest.mark.slow
def test_no_layout_of_all_beats_what_is_found(slow_check):
    for found, every in slow_check("exhaustive"):
        assert len(every) == 18
        assert found <= NEAR * min(every)


@pytest.mark.slow
def test_stanzas_separation_of_layers_is_found_for_vgg_16(slow_check):
    cuts, sent, sent_by_rows = slow_check("vgg_16")
    weights = {name.split("/")[1] for name in cuts if "/" in name}
    assert {"dense_0", "dense_1"} <= weights and not any("convolution" in n for n in weights)
    assert cuts["x"] == (("rows",), (), (), ())
    assert sent < sent_by_rows / 5


@pytest.mark.slow
def test_the_pairs_of_two_blocks_over_two_axes_are_decided_as_one(slow_check):
    cuts = slow_check("two_blocks")
    for kind in jax_steps.SLOTS:
        for columns, rows in (("value", "out"), ("up", "down")):
            first, second = (cuts[f"{kind}/block_{i}/{columns}"] for i in (0, 1))
            assert first == second and first[0] == () and first[1]
            for i in (0, 1):
                assert cuts[f"{kind}/block_{i}/{rows}"] == (first[1], ())


PRODUCT = """
func.func public @main(%a: tensor<16x32x64xf32>, %b: tensor<16x64x48xf32>)
    -> tensor<16x32x48xf32> {
  %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<16x32x64xf32>, tensor<16x64x48xf32>) -> tensor<16x32x48xf32>
  return %c : tensor<16x32x48xf32>
}
"""


@pytest.mark.parametrize(
    ("left", "right", "devices"),
    [
        ("x..", "x..", 4),
        (".x.", "...", 4),
        ("...", "..x", 4),
        ("..x", ".x.", 4),
        ("xy.", "x..", 16),
        ("x.y", "xy.", 16),
        (".x.", "..y", 16),
    ],
)
def test_a_cut_product_is_estimated_at_its_share_whichever_dimension_is_cut(left, right, devices):
    shapes = {"a": (16, 32, 64), "b": (16, 64, 48), "c": (16, 32, 48)}
    a, b, c = (Tensor(name, shape, "float32") for name, shape in shapes.items())
    partitioner = Partitioner(Step("", [a, b], [], [c], frozenset()), PRODUCT, {"x": 4, "y": 4})
    cuts = tuple(tuple(() if d == "." else (d,) for d in cut) for cut in (left, right))
    whole = 2.0 * 16 * 32 * 64 * 48
    flops = [each.flops for each in partitioner.estimate_device(cuts).program]
    assert sum(flops) == whole / devices
