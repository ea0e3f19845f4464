"""A family of models is one object: registered once, every verb of the command knows it."""

import json

import image_runs
import numpy as np
import pytest
from toy_family import TOY

import onepass
from onepass import families
from onepass.foundation.metrics import read_metrics
from onepass.replicator.portable import run as portable_run


@pytest.fixture
def registered(monkeypatch):
    """The toy family, registered while the test runs."""
    monkeypatch.setattr(families, "FAMILIES", list(families.FAMILIES))
    families.register(TOY, "toy")


@pytest.fixture
def words(tmp_path):
    np.savez(tmp_path / "toys.npz", **image_runs.toys(8, 0))
    return ["train", "toy-smoke", "--data", str(tmp_path / "toys.npz")]


def test_a_family_of_ones_own_trains_resumes_and_is_evaluated(registered, words, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert onepass.main([*words, "--workdir", run]) == 0
    assert "best dev 5.3" in capsys.readouterr().out
    assert onepass.main([*words, "--workdir", run, "--loop.num-steps", "3"]) == 0
    assert "resuming from step 2" in capsys.readouterr().out
    assert onepass.main(["evaluate", run, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["model"], figures["step"]) == (run, 3)
    assert figures["data"] == words[-1] and 5.0 < figures["bits"] < 8.0
    assert onepass.main(["evaluate", run]) == 0
    assert capsys.readouterr().out == f"{figures['bits']:.3f} bits\n"


def test_its_run_is_loaded_sampled_and_exported_by_the_command(registered, words, tmp_path, capsys):
    run, out, bundle = str(tmp_path / "run"), tmp_path / "out", tmp_path / "models/toy/1"
    assert onepass.main([*words, "--workdir", run]) == 0
    drawn = onepass.load(run).sample(2, 5, seed=3)
    asked = ["sample", run, "--num", "2", "--length", "5", "--seed", "3", "--out", str(out)]
    assert onepass.main(asked) == 0
    assert len({*drawn.ravel()}) > 1
    np.testing.assert_array_equal(np.load(out / "sample_3.npy"), drawn)
    assert onepass.main(["export", run, "--length", "5", "--out", str(bundle)]) == 0
    np.testing.assert_array_equal(onepass.load(bundle).sample(2, 5, seed=3), drawn)
    capsys.readouterr()
    assert onepass.main(["export", run, "--bfloat16", "--out", str(bundle)]) == 2
    refused = f"`--bfloat16` is not for {run}, a model of arrays.\n"
    assert capsys.readouterr().err.endswith(refused)


def test_its_step_and_its_functions_are_exported(registered, words, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    assert onepass.main([*words, "--workdir", str(run), "--portable", str(out)]) == 0
    assert not run.exists()
    assert onepass.main([*words, "--workdir", str(run)]) == 0
    moved = portable_run.Training(out)
    losses = [float(moved.advance(moved.batch(step))["loss"]) for step in range(2)]
    known = [line["loss"] for line in read_metrics(run) if "loss" in line]
    np.testing.assert_allclose(losses, known, rtol=1e-5)
    carried = tmp_path / "carried"
    words = ["export", run, "--format", "stablehlo", "--length", "5", "--out", carried]
    assert onepass.main([str(word) for word in words]) == 0
    parameters = portable_run.load(carried, "call")(elements=np.zeros([1, 5], np.int32))
    logits = onepass.load(run).network.logits.numpy()
    np.testing.assert_allclose(parameters["parameters"][0, 0], logits, rtol=1e-5)


def test_its_help_lists_it_beside_the_others(registered, capsys):
    assert onepass.main(["train", "--help"]) == 0
    assert "\n  toy-smoke " in capsys.readouterr().out
    assert onepass.main(["train", "toy-smoke", "--help"]) == 0
    assert "--levels" in capsys.readouterr().out


def test_two_families_have_no_name_in_common(registered):
    with pytest.raises(ValueError, match="names of its own, got toy"):
        families.register(TOY, "toy")
    with pytest.raises(ValueError, match="names of its own, got toy-smoke"):
        families.register(TOY, "toys")
    with pytest.raises(ValueError, match="of a registered family, got 'toys'"):
        families.parts_of("toys")


def test_every_kind_of_the_library_has_one_family_that_loads_it():
    kinds = ["autoregressive", "flow-student", "wavenet", "parallel-wavenet", "pixelcnn"]
    assert families.known_kinds() == [*kinds, "multiscale"]
    makes = ["arrays"] * 2 + ["sound"] * 2 + ["images"] * 2
    assert [families.of_kind(kind).makes for kind in families.known_kinds()] == makes
    assert [families.of_kind(kind) for kind in ("toy", None, ["pixelcnn"])] == [None] * 3
    assert families.of_model("shipped-digits") is families.of_kind("multiscale")
    assert families.of_model("shipped-teacher") is families.of_kind("wavenet")
    assert families.of_model("shipped") is families.of_kind("parallel-wavenet")
