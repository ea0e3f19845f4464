import gc
import os
import re
import signal
import sys
from pathlib import Path

import costs
import forgetting
import four_devices
import made_once
import pytest
import slow_cases
import tiers

import onepass
from onepass.networks.from_torch.triton_order import import_triton

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorFlow reads it once, when it is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


TESTS = Path(__file__).parent
UNOPTIMISED = ("laws", "onepass")  # folders of tests whose graphs run as they were traced
# Files that take longest, begun first: processes that share the files then end at the same time.
# Those after the first one need no step machine, which the first process compiles meanwhile.
LONGEST = (
    *("test_laws", "test_causality", "test_export_images", "test_attention", "test_rates"),
    *("test_frames", "test_own_agreement", "test_changes", "test_export_audio"),
    *("test_own_prompts", "test_student_cpu", "test_on_machine", "test_export"),
    *("test_storage", "test_stored_networks", "test_compilations", "test_served_weights"),
    *("test_files", "test_image_compression", "test_tables", "test_prefix_state"),
    *("test_image_command", "test_sample_command", "test_reading", "test_golden", "test_machine"),
    *("test_array_command", "test_incremental", "test_any_length"),
    *("test_distill", "test_sandbox", "test_program_scan", "test_array_compression"),
    *("test_conditions", "test_any_teacher", "test_shipped_student", "test_docs_python"),
    *("test_own_conditions", "test_collectives", "test_portable", "test_launch"),
    *("test_strategies", "test_failures", "test_page"),
)
PROGRESS = re.compile(r"[\w ']+: (\d+/\d+ \w+, |\d+ s so far)|step \d+: dev ")


# Without LLVM's optimisations, and with the emitters of loops that are quicker to compile: together
# half the time of compiling, and none of the quick tests runs a program for long.
QUICK_COMPILATION = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def pytest_configure(config):
    """The slow tests' programs are compiled as users compile theirs, all others' quickly."""
    gc.disable()  # until all is imported, of which nothing goes
    import_triton()  # of torch's usual wheel, where it is there; some test imports TensorFlow first
    config.option.markexpr = tiers.refined_selection(config.option.markexpr)
    if tiers.compiles_quickly(config.option.markexpr):
        os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)
    if made_once.VARIABLE not in os.environ:
        made_once.open_folder()
    if tiers.is_quick(config.option.markexpr):
        # Its kernels are compiled for every shape. The other tiers have them.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
        # Processes that wait for each other in the other tiers need more.
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    if hasattr(config, "workerinput"):  # one of several processes: threads would be in their way
        for threads in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(threads, "1")
    config.pluginmanager.register(tiers.ProcessWatch())
    config.addinivalue_line("markers", "four_devices(engine): see tests/four_devices.py")
    config.pluginmanager.register(four_devices.FourDevices())
    config.pluginmanager.register(costs.Costs())
    config.option.loadscopereorder = False  # of pytest-xdist: by the number of tests in a file


def place_of(path):
    """Return the path of a test file below tests/; of a file elsewhere, its name."""
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else path.name


def pytest_ignore_collect(collection_path, config):
    """Import no file without quick tests for the quick ones, unless it is named."""
    is_test = collection_path.match("test_*.py")
    if not is_test or not tiers.is_quick(config.option.markexpr):
        return None
    named = {Path(word.partition("::")[0]).resolve() for word in config.args}
    if collection_path in named:
        return None
    return tiers.has_no_quick_test(collection_path, place_of(collection_path)) or None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config, items):
    entries = {item: slow_cases.listed(item) for item in items}
    for item in filter(entries.get, items):
        item.add_marker("slow")
    for item in items:
        if tiers.is_whole(place_of(item.path)):
            item.add_marker(tiers.INTEGRATION)
    if not any("::" in word for word in config.args):
        files = {place_of(item.path) for item in items}
        if names := slow_cases.unknown({*entries.values()} - {None}, files):
            raise pytest.UsageError(f"tests/slow_cases.py has names of no test: {names}")
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish(session):
    """Look for no garbage among what the libraries keep, seldom among what a file keeps.

    It took a tenth of the tests' time. `forgetting` collects what is in cycles between files. What
    Numba compiles and keeps on disk is compiled by one process for all.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # objects, about half a gigabyte of them at the most
    gc.enable()
    if tiers.is_quick(session.config.option.markexpr) and "tensorflow" in sys.modules:
        record_no_stacks()
    if "numba" in sys.modules:
        made_once.compile_in_turn()


def record_no_stacks():
    """Let TensorFlow note one stack of Python for all operations of graphs.

    It walks the whole stack for every operation, a fifteenth of these tests' time.
    """
    from tensorflow.python.util import tf_stack

    stack = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: stack


@pytest.fixture
def eager():
    """Train for a few steps without tracing them."""
    from runs import eagerly  # loads slowly

    with eagerly():
        yield


@pytest.fixture(scope="module")
def quick_compilation():
    """JAX compiles in a fraction of the time, what it makes is slower."""
    import jax  # loads slowly, and few tests need it

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def forgotten(request):
    """Networks and programs that a module keeps for its tests go with it."""
    yield
    forgetting.forget(request.module)


@pytest.fixture(scope="module", autouse=True)
def graphs_as_they_are(request):
    """Let quick tests of the core run graphs as they were traced, which each run a few times.

    TensorFlow's passes over them take longer, a quarter of these tests' time.
    """
    folder = place_of(request.path).partition("/")[0]
    is_quick = tiers.is_quick(request.config.option.markexpr)
    if folder not in UNOPTIMISED or not is_quick or "tensorflow" not in sys.modules:
        yield
        return
    optimizer = sys.modules["tensorflow"].config.optimizer
    optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture
def loaded_once(monkeypatch):
    """Commands load each of the users' models once: that of its folder stays as it is."""
    import own_models  # loads slowly

    monkeypatch.setattr("onepass.models.load", own_models.load_once)


@pytest.fixture
def mistake(capsys):
    """The one line that a command line ends in, after `onepass: `."""

    def mistake(*words, status=2):
        capsys.readouterr()
        assert onepass.main([str(word) for word in words]) == status
        _, err = capsys.readouterr()
        # A busy machine takes long enough for lines of progress.
        (line,) = [line for line in err.splitlines() if not PROGRESS.match(line)]
        assert line.startswith("onepass: ") and err.endswith("\n")
        return line.removeprefix("onepass: ")

    return mistake
