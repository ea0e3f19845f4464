"""What a process of the tests gives back between files, so that its memory is bounded."""

import ctypes
import gc
import os
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent
# Cached functions of the tests' helpers whose results hold variables and programs; what others
# return is small, or lies on disk.
LARGE = ("bundle", "drawn", "loaded", "model", "network_of")
GROWTH = 2**28  # bytes that files may leave behind before they are collected
_kept = [0]  # bytes after the last collection


def forget(module: ModuleType) -> None:
    """Clear the caches of a test file's functions and those of models that it shares."""
    for value in list(vars(module).values()):
        if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
            value.cache_clear()
    for helper in list(sys.modules.values()):
        if Path(getattr(helper, "__file__", None) or "/").parent == TESTS:
            for name in LARGE:
                getattr(getattr(helper, name, None), "cache_clear", int)()
    if resident_bytes() > _kept[0] + GROWTH:  # collecting takes longer than most small files
        give_back()
        _kept[0] = resident_bytes()


def resident_bytes() -> int:
    """Return the memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Free what is in cycles and in the caches of Keras, JAX and TensorFlow."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    if "keras" in sys.modules:
        sys.modules["keras"].backend.clear_session()  # collects what is in cycles, too
    else:
        gc.collect()
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context

        if context.context_safe() is not None:
            context.context().clear_kernel_cache()
    gc.freeze()  # what is left stays, and is not looked through again
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim:
        trim(0)
