"""`onepass serve` over the fake bundles of a Shelf, with --ray too: python ray_process.py WORDS...

The replicas are told how to load by `load`, since they are processes of their own.
"""

import functools
import sys

import fake_bundle

import onepass
import serving.bundle
from serving import ray_command

if __name__ == "__main__":
    serving.bundle.load = fake_bundle.load_from_disk
    ray_command.run_ray = functools.partial(ray_command.run_ray, load=fake_bundle.load_from_disk)
    onepass._import_tensorflow_quietly = lambda: None
    sys.exit(onepass.main(["serve", *sys.argv[1:]]))
