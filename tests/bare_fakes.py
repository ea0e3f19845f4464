"""A process with fake bundles and no server, as `benchmarks.serving_bare` has real ones."""

import sys
from multiprocessing.connection import Connection

import fake_bundle

import serving.bundle
from benchmarks.answering import serve
from benchmarks.serving_bare import Bare


class BareFakes(Bare):
    def __init__(self):
        serving.bundle.load = fake_bundle.load_from_disk
        self._bundles = {}


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), BareFakes)
