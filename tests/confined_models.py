"""Runs bundles in confined processes and prints what each did besides computing, as JSON."""

import json
import os
import sys
from pathlib import Path

import numpy as np

import serving
from onepass.bundles.bundle import load as load_bundle
from serving.sandbox.fork_server import readable
from serving.sandbox.sandboxed_bundle import ForkServer, SandboxedBundle
from serving.settings import Settings

HOME = Path(serving.__file__).resolve().parents[1]
SEEN = "seen"  # the name of a signature that only `Watched` has
LIMITS = Settings(load_seconds=600.0, call_seconds=600.0, max_streams=1)


def is_own(file):
    """Return whether a file is of a package that lies next to `serving`."""
    floors = ("wavenet", "pixelcnn", "distill", "serving", "onepass")
    return any(file.startswith(f"{HOME / floor}/") for floor in floors)


class Watched:
    """A bundle that notes what is imported and opened from its loading on."""

    def __init__(self, path, backend):
        self._before, self._outside = set(sys.modules), set()
        self._allowed = [os.path.realpath(each) for each in (*readable(), path)]
        sys.addaudithook(self._audit)
        self._bundle = load_bundle(path, backend)

    def _audit(self, event, arguments):
        if event == "open" and isinstance(arguments[0], str):
            place = os.path.realpath(arguments[0])
            if not any(place == each or place.startswith(f"{each}/") for each in self._allowed):
                self._outside.add(place)

    def __getattr__(self, name):
        return getattr(self._bundle, name)

    def call(self, signature, inputs):
        if signature != SEEN:
            return self._bundle.call(signature, inputs)
        new = [sys.modules[name] for name in sorted(sys.modules.keys() - self._before)]
        files = [getattr(module, "__file__", None) or "" for module in new]
        own = [each.__name__ for each, file in zip(new, files, strict=True) if is_own(file)]
        seen = {"imported": own, "outside": sorted(self._outside)}
        return {SEEN: np.frombuffer(json.dumps(seen).encode(), np.uint8)}


def load(path, backend):
    return Watched(path, backend)


def served(path, backend, fork_server):
    bundle = SandboxedBundle(
        path, fork_server, LIMITS, {"backend": backend}, "confined_models:load"
    )
    bundle.warm()
    if bundle.kind == "sound":
        sizes = {} if "frames" in bundle.signatures["compiled"].inputs else {"length": 50}
        frames = bundle.signatures["compiled"].inputs.get("frames")
        condition = None if frames is None else np.zeros([3, frames.shape[-1]], np.float32)
        for chunk in bundle.stream(condition=condition, seed=3, **sizes):
            assert np.isfinite(chunk).all()
    seen = json.loads(bundle.call(SEEN, {})[SEEN].tobytes())
    return {"home": str(HOME), "engine": bundle.engine, **seen}


if __name__ == "__main__":
    fork_server = ForkServer(backend=sys.argv[1])
    folders = [Path(word) for word in sys.argv[2:]]
    print(json.dumps({str(path): served(path, sys.argv[1], fork_server) for path in folders}))
    fork_server.close()
