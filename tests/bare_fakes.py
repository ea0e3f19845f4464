"""A process with fake bundles and no server, as bench/serving/in_process.py has real ones."""

import sys
from multiprocessing.connection import Connection

import fake_bundle

import serving.bundles.loading
from onepass.bench.serving.in_process import Bare
from onepass.bench.worker_process import serve


class BareFakes(Bare):
    def __init__(self):
        serving.bundles.loading.load = fake_bundle.load_from_disk
        self._bundles = {}


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), BareFakes)
