"""Runs the blocks of Python of a page, in order, in one namespace."""

import contextlib
import re
import time

from processes import ROOT, Process
from serve_command import READY

SERVER = "http://127.0.0.1:8501"


def smaller(block, replacements):
    """Return a block as it is run: with what each pattern matches replaced."""
    for pattern, instead in replacements:
        block = re.sub(pattern, instead, block)
    return block


def run_blocks(page, sources, folder):
    """Run blocks in a folder and return their namespace."""
    namespace = {"__name__": "page"}
    with contextlib.ExitStack() as servers, contextlib.chdir(folder):
        for block in sources:
            if SERVER in block:
                block = block.replace(SERVER, servers.enter_context(_served(folder)))
            exec(compile(block, str(page), "exec"), namespace)
    return namespace


@contextlib.contextmanager
def _served(folder):
    """Yield the address of a server of FOLDER/models."""
    words = ["serve", folder / "models", "--port", 0, "--grpc-port", 0]
    server = Process(ROOT / "onepass" / "__main__.py", folder / "server.log", *words)
    deadline = time.monotonic() + 600
    try:
        while (ready := READY.search(server.output())) is None:
            assert server.is_running() and time.monotonic() < deadline, server.output()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{ready[3]}"
    finally:
        server.kill()
