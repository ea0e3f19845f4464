"""Dear checks of layouts over four logical CPUs of JAX; see in_replicas.py."""

import itertools

import jax_steps
from layout_checks import MACHINE, PERCEPTRON, exported, named, perceptron, searched

from onepass.replicator.portable.layouts.layout import is_possible, whole
from onepass.replicator.portable.layouts.search import Machine
from onepass.replicator.portable.layouts.simulation import Network

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


def check_exhaustive():
    """Seconds of what was found, and of every layout, all as compiled."""
    results = []
    for rows in (16, 512):
        for network in (Network(1e-5, 1e9), Network(1e-6, 1e10)):
            machine, mesh = Machine(5e10, 1e10, network), {"rows": 1, "model": 4}
            step, found, cost = searched(perceptron(rows), mesh, machine)
            every = [cost(cuts).seconds for cuts in every_layout(step, mesh)]
            results.append((found.cost.seconds, every))
    return results


def check_vgg_16():
    batch = {"x": (64, 224, 224, 3), "y": (64, 1000)}
    shapes = jax_steps.vgg_16_weights()
    folder = exported("vgg-16", jax_steps.vgg_16, shapes, batch, trains=False)
    # About the paper's: accelerators of 10 TFLOP/s, Ethernet of 10 Gbit/s.
    accelerator = Machine(1e13, 5e11, Network(5e-5, 1.25e9))
    step, found, cost = searched(folder, {"rows": 4, "model": 1}, accelerator)
    rows = tuple(
        ((("rows",), *cut[1:]) if place < len(step.batch) else cut)
        for place, cut in enumerate(whole(step))
    )
    return named(step, found.layout), found.cost.sent_bytes, cost(rows).sent_bytes


def check_two_blocks():
    """Repeated layers over rows and model."""
    weights = jax_steps.transformer_weights(2, 64, 256)
    batch = {"x": (2, 16, 64), "y": (2, 16, 64)}
    folder = exported("transformer-2", jax_steps.transformer(2), weights, batch)
    step, found, _ = searched(folder, {"rows": 2, "model": 2}, MACHINE)
    return named(step, found.layout)
