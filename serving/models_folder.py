"""What is meant by a folder that `onepass serve` was given and that holds no models."""

from pathlib import Path

from replicator.runs.errors import UserError
from replicator.runs.model_spec import SPEC_FILE, kind_of
from serving.engine.version_scanner import MANIFEST, VERSION


def check_models_folder(path: Path) -> None:
    """Return nothing; raise UserError that says what to pass in place of a run or of one model.

    A folder that holds nothing yet is fine: the server waits for models.
    """
    if (path / MANIFEST).exists():
        is_in_place = VERSION.fullmatch(path.resolve().name)
        name = (
            f"the folder of all models, {path.resolve().parents[1]}"
            if is_in_place
            else ("MODELS, with this folder moved to MODELS/NAME/1")
        )
        raise UserError(f"{path} is one version of a model; pass {name}.")
    versions = (each for each in path.glob("*") if VERSION.fullmatch(each.name))
    if any((version / MANIFEST).exists() for version in versions):
        above = path.resolve().parent
        raise UserError(f"{path} is a single model; name the folder above it, {above}.")
    kind = kind_of(path)
    if kind is not None:
        what = "a model folder" if (path / SPEC_FILE).exists() else "a run"
        raise UserError(
            f"{path} is {what} of a {kind}, not yet to be served: `onepass export {path} --out "
            "MODELS/NAME/1` makes a bundle, and MODELS is what to pass."
        )
