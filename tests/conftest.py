import os
import signal

import pytest

import onepass

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorFlow reads it once, when it is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_configure(config):
    """The quick tests' programs are compiled without LLVM's optimisations, the slow ones' with."""
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(scope="module")
def quick_compilation():
    """JAX compiles in a fraction of the time, what it makes is slower."""
    import jax  # loads slowly, and few tests need it

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def forgetting(request):
    """Networks and programs that a module keeps for its tests go with it."""
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()


@pytest.fixture
def mistake(capsys):
    """The one line that a command line ends in, after `onepass: `."""

    def mistake(*words):
        capsys.readouterr()
        status = onepass.main([str(word) for word in words])
        _, err = capsys.readouterr()
        assert status == 2
        assert err.startswith("onepass: ") and err.endswith("\n") and err.count("\n") == 1
        return err.removeprefix("onepass: ").removesuffix("\n")

    return mistake
