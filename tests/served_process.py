"""`onepass serve` over the fake bundles of a Shelf: python served_process.py ROOT OPTIONS..."""

import sys

import fake_bundle

import onepass
import serving.bundles.bundle

if __name__ == "__main__":
    serving.bundles.bundle.load = fake_bundle.load_from_disk
    onepass.command._import_tensorflow_quietly = lambda: None
    sys.exit(onepass.main(["serve", *sys.argv[1:]]))
