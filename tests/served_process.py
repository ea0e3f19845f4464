"""`onepass serve` over a FakeModelStore: python served_process.py ROOT OPTIONS..."""

import sys

import fake_bundle

import onepass
import serving.bundles.loading

if __name__ == "__main__":
    serving.bundles.loading.load = fake_bundle.load_from_disk
    onepass.command._import_tensorflow_quietly = lambda: None
    sys.exit(onepass.main(["serve", *sys.argv[1:], "--no-sandbox"]))
