"""`onepass serve` over a FakeModelStore: python served_process.py ROOT OPTIONS..."""

import sys

import fake_bundle

import onepass
import onepass.bundles.bundle
import onepass.command.verbs

if __name__ == "__main__":
    onepass.bundles.bundle.load = fake_bundle.load_from_disk
    onepass.command.verbs._import_tensorflow_quietly = lambda: None
    sys.exit(onepass.main(["serve", *sys.argv[1:], "--no-sandbox"]))
