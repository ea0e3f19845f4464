"""What a process of the tests gives back after every file, so that its memory is bounded."""

import ctypes
import gc
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent
# Cached functions of the tests' helpers whose results hold variables and programs; what others
# return is small, or lies on disk.
LARGE = ("bundle", "drawn", "model", "network_of")


def forget(module: ModuleType) -> None:
    """Clear the caches of a test file's functions and those of models that it shares."""
    for value in list(vars(module).values()):
        if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
            value.cache_clear()
    for helper in list(sys.modules.values()):
        if Path(getattr(helper, "__file__", None) or "/").parent == TESTS:
            for name in LARGE:
                getattr(getattr(helper, name, None), "cache_clear", int)()
    give_back()


def give_back() -> None:
    """Free what is in cycles and in the caches of Keras, JAX and TensorFlow."""
    if "keras" in sys.modules:
        sys.modules["keras"].backend.clear_session()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context

        if context.context_safe() is not None:
            context.context().clear_kernel_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim:
        trim(0)
