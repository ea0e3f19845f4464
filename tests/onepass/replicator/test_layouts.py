"""Layouts over four logical devices: what is found, how it trains, what is refused."""

import contextlib
import functools
import io
import itertools
import json

import jax_steps
import numpy as np
import pytest

from onepass.replicator.portable import run
from onepass.replicator.portable.layouts.devices import Devices
from onepass.replicator.portable.layouts.layout import Layout, Step, Tensor, is_possible, whole
from onepass.replicator.portable.layouts.search import (
    NEAR,
    Machine,
    Partitioner,
    Search,
    compiled_cost,
    state_groups,
)
from onepass.replicator.portable.layouts.simulation import Network

pytestmark = [pytest.mark.integration, pytest.mark.four_devices("jax"), pytest.mark.timeout(3600)]
COLUMNS, ROWS = ((), ("model",)), (("model",), ())
# A step of a thousandth of a second, messages of a hundredth of that.
MACHINE = Machine(5e10, 1e10, Network(1e-5, 1e9))
PERCEPTRON = {"up": (64, 256), "down": (256, 64)}


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """Exports a step to a folder, once for the same name."""
    folder = tmp_path_factory.mktemp("layouts")

    def export(name, *step):
        if not (folder / name).exists():
            jax_steps.export(folder / name, *step)
        return folder / name

    return export


@pytest.fixture(scope="module")
def perceptron(export):
    """Exports two matrices for batches of so many rows, with a checkpoint."""

    @functools.cache
    def perceptron(rows=16):
        batch = {"x": (rows, 64), "y": (rows, 64)}
        folder = export(f"perceptron-{rows}", jax_steps.perceptron, PERCEPTRON, batch)
        return jax_steps.save_checkpoint(folder)

    return perceptron


def searched(folder, mesh, machine=MACHINE):
    """Return the result of the search, and a function from cuts to their cost as compiled."""
    step = Step.read(folder)
    described = run.read_manifest(folder)["functions"]["step"]
    program = run.load_exported(folder, described)
    advance = run.advance_function(program.call, described)

    def compiled(cuts):
        return Devices(step, Layout(mesh, cuts)).compile_step(advance)

    def cost(cuts):
        return compiled_cost(compiled(cuts), machine, Layout(mesh, cuts).num_devices)

    search = Search(step, program.mlir_module(), mesh, machine, compiled)
    return step, search.best(), cost


def named(step, layout):
    cuts = zip(step.arguments, layout.cuts, strict=True)
    return {tensor.name: cut for tensor, cut in cuts if any(cut)}


def transformer(export, blocks, width, hidden, time):
    """The folder of a step of blocks of attention, for two sequences."""
    weights = jax_steps.transformer_weights(blocks, width, hidden)
    batch = {"x": (2, time, width), "y": (2, time, width)}
    return export(f"transformer-{blocks}-{width}", jax_steps.transformer(blocks), weights, batch)


@pytest.fixture(scope="module")
def two_blocks(export):
    """A step and its partitioner over one axis of four."""
    folder = transformer(export, 2, 16, 32, 4)
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


def test_megatrons_pairs_and_its_four_all_reduces_are_found_in_a_block(export):
    step, found, _ = searched(transformer(export, 1, 64, 256, 16), {"rows": 1, "model": 4})
    assert named(step, found.layout) == pairs("block_0")
    assert found.cost.collectives == ("all-reduce",) * 4


def test_the_state_is_cut_where_memory_is_short_and_only_there(perceptron):
    mesh, network = {"rows": 4, "model": 1}, Network(1e-4, 1e9)
    step, free, _ = searched(perceptron(2048), mesh, Machine(5e10, 1e10, network))
    assert named(step, free.layout) == {"x": (("rows",), ()), "y": (("rows",), ())}
    limit = 0.92 * free.cost.memory_bytes
    _, found, _ = searched(perceptron(2048), mesh, Machine(5e10, 1e10, network, limit))
    tight = named(step, found.layout)
    cut = {name.split("/")[1] for name in tight if "/" in name}
    assert cut and found.cost.memory_bytes <= limit
    for name in cut:  # a weight and its moments together
        assert len({tight[f"{kind}/{name}"] for kind in jax_steps.SLOTS}) == 1


def trained(folder, *options):
    """Return the status, the arrays and losses of three steps, and what was said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = run.main(["--folder", str(folder), "--steps", "3", "--keep", "9", *options])
    path = folder / "checkpoints/step_00000003.npz"
    arrays = dict(np.load(path)) if path.exists() else {}
    path.unlink(missing_ok=True)
    lines = (folder / "metrics.jsonl").read_text() if arrays else ""
    losses = [json.loads(line)["loss"] for line in lines.splitlines()]
    return status, arrays, losses, said.getvalue()


def test_a_layout_found_again_or_edited_trains_as_one_device_does(perceptron, tmp_path):
    folder = perceptron()
    _, alone, losses, _ = trained(folder, "--devices", "1")
    runs = [trained(folder, "--mesh", "2x2", "--layout", "auto", "--link", "10")]
    text = (folder / "layout.json").read_text()
    runs.append(trained(folder, "--mesh", "2x2", "--link", "10"))
    assert (folder / "layout.json").read_text() == text  # the search is deterministic
    cuts = {"up": ["rows", "model"], "down": [None, "rows+model"]}
    state = {f"{kind}/{name}": cut for kind in jax_steps.SLOTS for name, cut in cuts.items()}
    (tmp_path / "edited.json").write_text(json.dumps(json.loads(text) | {"state": state}))
    runs.append(trained(folder, "--layout", str(tmp_path / "edited.json")))
    for status, found, found_losses, said in runs:
        assert status == 0 and "4 x cpu" in said, said
        assert found["step"] == 3
        for name, expected in alone.items():
            scale = max(np.abs(expected).max(), 1e-12)
            assert np.abs(found[name] - expected).max() / scale < 1e-5, name
        np.testing.assert_allclose(found_losses, losses, rtol=1e-5)


REFUSALS = {
    "A mesh 4x2 needs 8 devices, there are 4.": ["--mesh", "4x2"],
    "--mesh must be two sizes, rows x model, as in 4x2; got 2by2.": ["--mesh", "2by2"],
    "--mesh 3x1: 3 does not divide batches of 16 rows.": ["--mesh", "3x1"],
    "--mesh 1x3: 3 divides no dimension of the state.": ["--mesh", "1x3"],
    "--devices divides batches by rows only": ["--mesh", "2x2", "--devices", "2"],
    "No layout over 2x2 devices fits in 1e-05 GiB": ["--mesh", "2x2", "--memory", "0.00001"],
    "is for the mesh": ["--mesh", "4x1", "--layout", {}],
    "GiB per device, more than 1e-05.": ["--memory", "0.00001", "--layout", {}],
    'as ["columns"]: the axes of the mesh are': ["--layout", {"batch": {"x": ["columns"]}}],
    '{"rows": 3} does not': ["--layout", {"mesh": {"rows": 3}, "batch": {"x": ["rows"]}}],
    'as ["model", "model"]': ["--layout", {"state": {"weights/up": ["model", "model"]}}],
    "names `weights/right`, unknown": ["--layout", {"state": {"weights/right": ["model"]}}],
    "cannot be read": ["--layout", "nothing.json"],
}


def layout_file(path, folder, **changes):
    """A file of a layout that cuts nothing, with something else in it."""
    step = Step.read(folder)
    Layout({"rows": 2, "model": 2}, whole(step)).write(path, step, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(path)


@pytest.mark.parametrize("said", REFUSALS)
def test_bad_input_is_one_line_and_status_2(perceptron, tmp_path, said):
    path, folder = tmp_path / "layout.json", perceptron()
    options = [
        layout_file(path, folder, **word) if isinstance(word, dict) else word
        for word in REFUSALS[said]
    ]
    status, _, _, line = trained(folder, *options)
    assert status == 2 and said in line
    assert line.startswith("error: ") and line.count("\n") == 1


def test_a_layout_of_another_program_is_refused(perceptron, tmp_path):
    path = layout_file(tmp_path / "layout.json", perceptron(2048))
    status, _, _, line = trained(perceptron(), "--layout", path)
    assert status == 2 and line.startswith("error: ") and "is for program" in line


TIED = [[f"{kind}/{name}" for kind in jax_steps.SLOTS] for name in PERCEPTRON]


def every_layout(step, mesh):
    """Cuts of every layout in which tied tensors are cut alike and a batch along its rows."""
    places = {tensor.name: i for i, tensor in enumerate(step.arguments)}
    groups = [([places["x"], places["y"]], 1), *(([places[n] for n in names], 2) for names in TIED)]
    axes = [axis for axis, size in mesh.items() if size > 1]
    choices = [
        list(itertools.product([None, *range(rank)], repeat=len(axes))) for _, rank in groups
    ]
    for chosen in itertools.product(*choices):
        cuts = list(whole(step))
        for (members, _), choice in zip(groups, chosen, strict=True):
            for place in members:
                cuts[place] = tuple(
                    tuple(axis for axis, at in zip(axes, choice, strict=True) if at == d)
                    for d in range(len(cuts[place]))
                )
        if all(map(is_possible, (t.shape for t in step.arguments), cuts, itertools.repeat(mesh))):
            yield tuple(cuts)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize("network", [Network(1e-5, 1e9), Network(1e-6, 1e10)])
def test_no_layout_of_all_beats_what_is_found(perceptron, rows, network):
    machine, mesh = Machine(5e10, 1e10, network), {"rows": 1, "model": 4}
    step, found, cost = searched(perceptron(rows), mesh, machine)
    every = [cost(cuts).seconds for cuts in every_layout(step, mesh)]
    assert len(every) == 18
    assert found.cost.seconds <= NEAR * min(every)


@pytest.mark.slow
def test_stanzas_separation_of_layers_is_found_for_vgg_16(export):
    batch = {"x": (64, 224, 224, 3), "y": (64, 1000)}
    folder = export("vgg-16", jax_steps.vgg_16, jax_steps.vgg_16_weights(), batch)
    # About the paper's: accelerators of 10 TFLOP/s, Ethernet of 10 Gbit/s.
    accelerator = Machine(1e13, 5e11, Network(5e-5, 1.25e9))
    step, found, cost = searched(folder, {"rows": 4, "model": 1}, accelerator)
    cuts = named(step, found.layout)
    weights = {name.split("/")[1] for name in cuts if "/" in name}
    assert {"dense_0", "dense_1"} <= weights and not any("convolution" in n for n in weights)
    assert cuts["x"] == (("rows",), (), (), ())
    by_rows = tuple(
        ((("rows",), *cut[1:]) if place < len(step.batch) else cut)
        for place, cut in enumerate(whole(step))
    )
    assert found.cost.sent_bytes < cost(by_rows).sent_bytes / 5


@pytest.mark.slow
def test_the_pairs_of_two_blocks_over_two_axes_are_decided_as_one(export):
    step, result, _ = searched(transformer(export, 2, 64, 256, 16), {"rows": 2, "model": 2})
    cuts = named(step, result.layout)
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
