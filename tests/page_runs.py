"""Runs the blocks of Python of a page, in order, in one namespace."""

import contextlib
import re

from processes import ROOT, Process
from serve_command import ready

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
    try:
        yield f"http://127.0.0.1:{ready(server, 600)[3]}"
    finally:
        server.kill()
