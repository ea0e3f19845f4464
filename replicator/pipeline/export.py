"""Export of a pipeline's stages as StableHLO: passes F, B and W of each, to be run by JAX."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import tensorflow as tf

from replicator.pipeline.schedule import KEPT, LOSS, WEIGHTS, function_name
from replicator.pipeline.split import PureFn, split
from replicator.portable.export import export_function
from replicator.portable.manifest import manifest_of, write_manifest
from replicator.runs.atomic_files import write_npz
from replicator.runs.folders import make_folder


class Stage(NamedTuple):
    """Consecutive layers of a network.

    Attributes:
      run: from a dict of the previous stage's outputs and of the batch's entries to a dict of float
        tensors; the last stage returns only the `loss` [].
      batch: names of the entries of the batch.
      variables: trained variables by name, at least one.
      frozen: other variables that it reads.
    """

    run: PureFn
    batch: tuple[str, ...]
    variables: Mapping[str, tf.Variable]
    frozen: Mapping[str, tf.Variable] = MappingProxyType({})


def export_stages(
    folder: Path, stages: Sequence[Stage], batch_spec: Mapping[str, tf.TensorSpec]
) -> Path:
    """Write the passes of every stage and the weights for `execution.Pipeline`.

    Args:
      folder: created if missing.
      stages: first to last.
      batch_spec: static shape and dtype of every entry of a microbatch.

    Returns:
      The folder.

    Raises:
      ValueError: the last stage returns something other than `loss`, or `export_function` rejects a
        stage.
    """
    folder = make_folder(folder)
    arriving: dict[str, tf.TensorSpec] = {}
    for number, stage in enumerate(stages):
        inputs = arriving | {name: batch_spec[name] for name in stage.batch}
        passes = split(stage.run, inputs, stage.variables)
        outputs = passes["F"].outputs
        arriving = {n: spec for n, spec in outputs.items() if not n.startswith(KEPT)}
        if number == len(stages) - 1 and list(arriving) != [LOSS]:
            raise ValueError(f"The last stage must return `{LOSS}` only, got {list(arriving)}.")
        for kind, part in passes.items():
            export_function(
                part.run, part.inputs, folder, function_name(number, kind),
                variables=stage.frozen, state=stage.variables, tensor_float_32=False,
            )  # fmt: skip
    variables = {name: v for stage in stages for name, v in stage.variables.items()}
    write_npz(folder / WEIGHTS, {name: v.numpy() for name, v in variables.items()})
    write_manifest(folder, manifest_of(folder) | {"stages": len(stages)})
    return folder
