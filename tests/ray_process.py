"""`onepass serve` over a FakeModelStore, with --ray too: python ray_process.py WORDS...

The replicas load by `load`, since they are processes of their own. A bundle that is
not in that store is loaded as it is.
"""

import functools
import json
import sys

import fake_bundle

import onepass
import serving.bundles.loading
from serving.deploy import ray_command

as_it_is = serving.bundles.loading.load


def load(path, backend="auto"):
    """The bundle of a folder, fake or not."""
    said = json.loads((path / "model.json").read_text(encoding="utf-8"))
    return fake_bundle.load_from_disk(path) if "control" in said else as_it_is(path, backend)


if __name__ == "__main__":
    import ray_process

    serving.bundles.loading.load = ray_process.load
    ray_command.run_ray = functools.partial(ray_command.run_ray, load=ray_process.load)
    onepass.command._import_tensorflow_quietly = lambda: None
    sys.exit(onepass.main(["serve", *sys.argv[1:]]))
