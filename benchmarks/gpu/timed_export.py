"""Pack an exported training of an image model for `timed_training`, with a measure of dev.

    onepass train pixelcnn-cpu-64 --data DATA --workdir none --portable FOLDER ...
    python -m benchmarks.gpu.timed_export FOLDER --data DATA

adds the function `dev`, the nats of the dev images, and replaces the first checkpoint by the
weights alone, a quarter of its size. After training

    python -m benchmarks.gpu.timed_export FOLDER --returned RESULTS --workdir RUN

writes the run directory RUN with a checkpoint of the averages that came back, as weights and as
averages, with moments of zero.
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.gpu import timed_training
from onepass.foundation.files import write_npz
from onepass.foundation.run_directory import Checkpoints
from onepass.replicator.portable.export import adopt, export_function, named_weights
from onepass.replicator.portable.manifest import read_manifest
from pixelcnn.config import config_from
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity


def pack(folder: Path, data: Path) -> None:
    """Add `dev` to a folder that `--portable` wrote, and keep of its checkpoint the weights.

    Args:
      folder: without trained checkpoints.
      data: the images that the folder was exported from.
    """
    config = config_from(read_manifest(folder)["config"])
    dev = ImageDataset.read(data, config).source.splits["dev"].stored
    inputs = {name: tf.TensorSpec(array.shape, tf.int32) for name, array in dev.items()}
    density = ImageDensity(config)

    def nats(given):
        return {"nats": tf.add_n(list(density.nats(given).values()))}

    export_function(
        nats,
        inputs,
        folder,
        "dev",
        variables={},
        state=named_weights(density),
        tensor_float_32=False,
    )
    write_npz(folder / timed_training.DEV, dev)
    arrays, _ = Checkpoints(folder / "checkpoints").newest()
    write_npz(folder / timed_training.START, timed_training.weights_of(arrays or {}))
    shutil.rmtree(folder / "checkpoints")
    shutil.copy(timed_training.__file__, folder / "timed_training.py")


def unpack(folder: Path, results: Path, workdir: Path) -> int:
    """Write the returned averages to the folder and to a run directory, and return their step."""
    averages = timed_training.read_parts(results)
    step = int(averages.pop("step"))
    arrays: dict[str, np.ndarray] = {"step": np.array(step, np.int32)}
    for name, value in averages.items():
        arrays |= {f"weights/{name}": value, f"average/{name}": value}
        arrays |= {f"{kind}/{name}": np.zeros_like(value) for kind in ("first", "second")}
    Checkpoints(folder / "checkpoints").save(step, arrays)
    return adopt(folder, workdir)


def main(words: list[str] | None = None) -> int:
    """Pack or unpack a folder, and return 0."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.timed_export")
    parser.add_argument("folder", type=Path, help="folder that --portable wrote")
    parser.add_argument("--data", type=Path, help="its images, to pack it")
    parser.add_argument("--returned", type=Path, help="folder of the averages that came back")
    parser.add_argument("--workdir", type=Path, help="run directory for them")
    given = parser.parse_args(words)
    if (given.data is None) == (given.returned is None):
        parser.error("one of --data and --returned is needed")
    if (given.workdir is None) != (given.returned is None):
        parser.error("--returned and --workdir are needed together")
    if given.data is not None:
        pack(given.folder, given.data)
    else:
        print(f"step {unpack(given.folder, given.returned, given.workdir)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
