"""Tiny image models that nobody trained, as model folders and as bundles, made once."""

import dataclasses
import functools
import shutil
from pathlib import Path

import made_once
from image_networks import QuickInitial, perturbed
from image_runs import config_of, data_of, replaced
from tensorflow.core.protobuf import saved_model_pb2

import onepass
from onepass.bundles.manifest import write_manifest
from onepass.foundation.model_folders import save
from pixelcnn.config import ConditioningConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity
from pixelcnn.model import load, spec_of
from pixelcnn.training import ImageRecipe, facts_of


def config_for(kind: str):
    """The configuration of a kind of `image_runs.SIDES`; "caption": a PixelCNN of captions."""
    if kind != "caption":
        return config_of(kind)
    return replaced(config_of("pixelcnn"), conditioning=ConditioningConfig("text", text_channels=4))


@functools.cache
def model_folder(kind: str) -> Path:
    """A model folder of a kind of `config_for`, weights far from where they start."""
    return made_once.copied_once(f"folder_{kind}", lambda path: _save(kind, path))


def _save(kind: str, path: Path) -> None:
    dataset = ImageDataset.read(data_of(kind), config_for(kind))
    config = dataset.resolved_config
    facts = facts_of(dataclasses.replace(dataset, config=config))
    stored = ImageRecipe("tiny", config, data_of(kind)).describe_run(config.kind, config, **facts)
    density = perturbed(ImageDensity(config, QuickInitial(0)))
    save(density, {**spec_of(stored, path), "step": 3}, stored, path)


@functools.cache
def model(kind: str):
    """The live model of `model_folder(kind)`, its programs compiled once for all tests."""
    return load(model_folder(kind))


@functools.cache
def bundle_folder(kind: str) -> Path:
    def make(path):
        assert onepass.main(["export", str(model_folder(kind)), "--out", str(path)]) == 0

    return made_once.copied_once(f"models/{kind}/1", make)


def copied(kind: str, folder: Path, version: str = "1") -> Path:
    return Path(shutil.copytree(bundle_folder(kind), folder / kind / version))


def without_lowered(kind: str, folder: Path) -> Path:
    """A copy of `bundle_folder(kind)` whose `saved_model.pb` is what runs."""
    path = copied(kind, folder)
    (path / "lowered.pb").unlink()
    return path


def resigned(path: Path) -> Path:
    write_manifest(path)
    return path


def program_of(path: Path):
    """The MetaGraphDef of a file of a program."""
    (graph,) = saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs
    return graph


def edit_program(path: Path, edit) -> None:
    """Apply an edit of a MetaGraphDef to a file of a program."""
    stored = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    edit(stored.meta_graphs[0])
    path.write_bytes(stored.SerializeToString())


def count_compiled(graph, signature: str) -> int:
    """The number of functions compiled by XLA that the first output of a signature calls."""
    output = next(iter(graph.signature_def[signature].outputs.values())).name.split(":")[0]
    bodies = {f.signature.name: f for f in graph.graph_def.library.function}
    reached, waiting = set(), [[n for n in graph.graph_def.node if n.name == output]]
    while waiting:
        for node in waiting.pop():
            named = [f.name for a in node.attr.values() for f in (a.func, *a.list.func)]
            for name in {node.op, *named} & bodies.keys() - reached:
                reached.add(name)
                waiting.append(bodies[name].node_def)
    assert reached
    return sum(bodies[name].attr["_XlaMustCompile"].b for name in reached)
