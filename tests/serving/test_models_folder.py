"""A folder that is not one of models is told apart from one that is still empty, and answered."""

import json

import pytest

from serving.command import check_models_folder


@pytest.fixture
def models(tmp_path):
    """A folder of models with `voice` in version 1."""
    bundle = tmp_path / "models" / "voice" / "1"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (bundle / "model.json").write_text(json.dumps({"kind": "student"}))
    return tmp_path / "models"


def folder_of(tmp_path, file, kind):
    folder = tmp_path / "it"
    folder.mkdir()
    (folder / file).write_text(json.dumps({"kind": kind}))
    return folder


def test_models_and_an_empty_folder_are_served(models, tmp_path):
    check_models_folder(models)
    check_models_folder(tmp_path / "nothing yet")


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("voice", " is a single model; name the folder above it, {models}."),
        ("voice/1", " is one version of a model; pass the folder of all models, {models}."),
    ],
)
def test_a_part_of_the_folder_of_models_names_the_whole(mistake, models, inside, said):
    assert mistake("serve", models / inside) == f"{models / inside}{said.format(models=models)}"


def test_a_bundle_that_lies_elsewhere_says_where_it_belongs(mistake, models):
    bundle = (models / "voice" / "1").rename(models.parent / "bundle")
    said = "is one version of a model; pass MODELS, with this folder moved to MODELS/NAME/1."
    assert mistake("serve", bundle) == f"{bundle} {said}"


@pytest.mark.parametrize(
    ("file", "kind", "what"),
    [("config.json", "wavenet", "a run"), ("model.json", "pixelcnn", "a model folder")],
)
def test_a_run_and_a_model_folder_say_how_they_are_exported(mistake, tmp_path, file, kind, what):
    folder = folder_of(tmp_path, file, kind)
    assert mistake("serve", folder) == (
        f"{folder} is {what} of a {kind}, which cannot be served: export it with "
        f"`onepass export {folder} --out MODELS/NAME/1`, and pass MODELS."
    )
