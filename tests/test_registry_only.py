"""Networks, likelihoods and models are told apart by what they offer, and in a registry alone."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("wavenet", "pixelcnn", "distill", "serving", "onepass", "benchmarks")
# The files that look for what a stranger's network or distribution offers.
REGISTRIES = {"onepass/networks/network.py", "onepass/likelihoods/distribution.py"}
# What a class of a network, a distribution, a model or its configuration has for a base or a name.
BASES = {"Module", "Network", "Tabulated", "Protocol", "Model", "Bundle", "Output"}
ENDINGS = ("Model", "Network", "WaveNet", "PixelCNN", "Multiscale", "TrainConfig", "Bundle")
LIKELIHOODS = {"Continuous", "HasEntropy", "LocationScale", "Normal", "Distribution"}
DISTILLATIONS = {"FlowConfig", "GuidedConfig", "Autoregressive"}
NOT_NETWORKS = {"Batches", "Optimizer", "Replicator", "Strategy"}


@functools.cache
def sources():
    """Returns, by the place of every file, its classes and its calls of a name."""
    paths = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    return {str(p.relative_to(ROOT)): read(p.read_text(encoding="utf-8")) for p in paths}


def read(text):
    nodes = ast.walk(ast.parse(text)) if re.search("class |isinstance|issubclass", text) else ()
    found = [node for node in nodes if isinstance(node, ast.ClassDef | ast.Call)]
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return classes, [node for node in found if isinstance(getattr(node, "func", None), ast.Name)]


def base_names(node):
    """Returns the last names of a class's bases, without their arguments."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {ast.unparse(base).split(".")[-1] for base in plain}


@functools.cache
def watched():
    """Return the names of all classes of networks, distributions, models and configurations."""
    classes = [(place, node) for place, (own, _) in sources().items() for node in own]
    found = LIKELIHOODS | DISTILLATIONS | {"SteppedNetwork"}
    for place, node in classes:
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        if place.startswith("onepass/likelihoods/") and {"log_prob", "sample"} & methods:
            found.add(node.name)
    bases = {node.name: base_names(node) for _, node in classes}
    found |= {name for name in bases if name.endswith(ENDINGS)}
    known = set()
    while known != found:
        known = set(found)
        found |= {name for name in bases if bases[name] & (BASES - {"Protocol"} | known)}
    return found - NOT_NETWORKS


def lines_asking(calls, names):
    """Returns the lines that ask which of these classes something is."""
    found = []
    for node in calls:
        if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
            asked = {
                each.attr if isinstance(each, ast.Attribute) else each.id
                for each in ast.walk(node.args[1])
                if isinstance(each, ast.Name | ast.Attribute)
            }
            if asked & names:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_nothing_asks_which_network_likelihood_or_model_it_has():
    names = watched()
    found = {place: lines_asking(calls, names) for place, (_, calls) in sources().items()}
    asked = {place: lines for place, lines in found.items() if lines}
    assert asked.keys() >= REGISTRIES
    assert {place: lines for place, lines in asked.items() if place not in REGISTRIES} == {}


WATCHED = """
WaveNet VocoderWaveNet PixelCNN Multiscale ParallelWaveNet MixtureOutput LogisticMixture Categorical
Gaussian GaussianMixture PixelMixture Continuous LocationScale Trained
Bundle Autoregressive PixelCNNTrainConfig MultiscaleTrainConfig Factor
"""


def test_every_way_to_ask_for_a_class_is_seen_and_other_classes_may_be_asked_for():
    for name in WATCHED.split():
        _, calls = read(f"if isinstance(x.network, {name}): pass\nissubclass(y, (int, a.{name}))")
        assert len(lines_asking(calls, watched())) == 2, name
    _, calls = read("isinstance(x, int | str)\nisinstance(e, OSError)\nisinstance(p, Path)")
    assert lines_asking(calls, watched()) == []
