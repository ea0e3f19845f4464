"""Checks of layouts over four logical CPUs of JAX; see in_replicas.py. TensorFlow is not needed."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import jax
import jax_steps
import numpy as np

from onepass.replicator.portable import run
from onepass.replicator.portable.layouts.devices import Devices
from onepass.replicator.portable.layouts.layout import Layout, Step, whole
from onepass.replicator.portable.layouts.search import Machine, Search, compiled_cost
from onepass.replicator.portable.layouts.simulation import Network

jax.config.update("jax_disable_most_optimizations", True)
FOLDER = Path(tempfile.mkdtemp())
# A step of a thousandth of a second, messages of a hundredth of that.
MACHINE = Machine(5e10, 1e10, Network(1e-5, 1e9))
PERCEPTRON = {"up": (64, 256), "down": (256, 64)}


def exported(name, *step, trains=True):
    folder = FOLDER / name
    if not folder.exists():
        jax_steps.export(folder, *step)
        if trains:
            jax_steps.save_checkpoint(folder)
    return folder


def perceptron(rows=16):
    batch = {"x": (rows, 64), "y": (rows, 64)}
    return exported(f"perceptron-{rows}", jax_steps.perceptron, PERCEPTRON, batch)


def searched(folder, mesh, machine=MACHINE):
    """Return the result of the search, and a function from cuts to their cost as compiled."""
    step = Step.read(folder)
    manifest = run.read_manifest(folder)
    described = manifest["functions"]["step"]
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


def check_transformer():
    weights = jax_steps.transformer_weights(1, 64, 256)
    batch = {"x": (2, 16, 64), "y": (2, 16, 64)}
    folder = exported("transformer", jax_steps.transformer(1), weights, batch)
    step, found, _ = searched(folder, {"rows": 1, "model": 4})
    return named(step, found.layout), found.cost.collectives


def check_memory():
    """The same search with all memory that it wants, and with less than that."""
    folder, mesh = perceptron(2048), {"rows": 4, "model": 1}
    network = Network(1e-4, 1e9)
    step, free, _ = searched(folder, mesh, Machine(5e10, 1e10, network))
    limit = 0.92 * free.cost.memory_bytes
    _, tight, _ = searched(folder, mesh, Machine(5e10, 1e10, network, limit))
    return named(step, free.layout), named(step, tight.layout), limit, tight.cost.memory_bytes


def trained(folder, *options):
    """Arrays after three steps, and what was said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = run.main(["--folder", str(folder), "--steps", "3", "--keep", "9", *options])
    path = folder / "checkpoints/step_00000003.npz"
    arrays = dict(np.load(path)) if path.exists() else {}
    path.unlink(missing_ok=True)
    lines = (folder / "metrics.jsonl").read_text() if arrays else ""
    losses = [json.loads(line)["loss"] for line in lines.splitlines()]
    return status, arrays, losses, said.getvalue()


def check_training():
    folder = perceptron()
    alone = trained(folder, "--devices", "1")
    auto = trained(folder, "--mesh", "2x2", "--layout", "auto", "--link", "10")
    text = (folder / "layout.json").read_text()
    again = trained(folder, "--mesh", "2x2", "--link", "10")
    same = (folder / "layout.json").read_text() == text
    edited = folder / "edited.json"
    stored = json.loads(text)
    edited.write_text(json.dumps(stored | {"state": {
        f"{kind}/{name}": cut for kind in jax_steps.SLOTS
        for name, cut in (("up", ["rows", "model"]), ("down", [None, "rows+model"]))
    }}))  # fmt: skip
    return alone, auto, again, same, trained(folder, "--layout", str(edited))


def refused(folder, *options):
    status, _, _, said = trained(folder, *options)
    return status, said


def layout_file(name, folder=None, **changes):
    """A file of a layout of the perceptron with something else in it."""
    folder = folder or perceptron()
    path = FOLDER / f"{name}.json"
    step = Step.read(folder)
    Layout({"rows": 2, "model": 2}, whole(step)).write(path, step, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(path)


def check_refusals():
    folder, other = perceptron(), perceptron(2048)
    given = {
        "devices": ["--mesh", "4x2"],
        "text": ["--mesh", "2by2"],
        "rows": ["--mesh", "3x1"],
        "model": ["--mesh", "1x3"],
        "both": ["--mesh", "2x2", "--devices", "2"],
        "another program": ["--layout", layout_file("other", other)],
        "another mesh": ["--mesh", "4x1", "--layout", layout_file("mesh")],
        "axis": ["--layout", layout_file("axis", batch={"x": ["columns"]})],
        "size": ["--layout", layout_file("size", mesh={"rows": 3}, batch={"x": ["rows"]})],
        "twice": ["--layout", layout_file("twice", state={"weights/up": ["model", "model"]})],
        "name": ["--layout", layout_file("name", state={"weights/right": ["model"]})],
        "nothing": ["--layout", str(FOLDER / "nothing.json")],
        "memory": ["--mesh", "2x2", "--memory", "0.00001"],
        "memory of a file": ["--layout", layout_file("whole"), "--memory", "0.00001"],
    }  # fmt: skip
    return {name: refused(folder, *options) for name, options in given.items()}
