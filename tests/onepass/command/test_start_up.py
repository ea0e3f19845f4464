"""A help text, a version or a mistake in the words needs none of the large packages."""

import json
import shutil
import subprocess
import sys

import pytest

import onepass
import onepass.command.verbs

pytestmark = pytest.mark.integration

HEAVY = {
    *("tensorflow", "tensorflow_probability", "tf_keras", "matplotlib", "scipy", "numpy", "PIL"),
    *("numba", "jax", "soundfile", "soxr", "grpc", "starlette"),
}
# Each line of words is run in one process; after each, what has been imported is written down.
PROGRAM = """
import contextlib, io, json, sys
import onepass

HEAVY = set(json.loads(sys.argv[1]))
seen = [["import onepass", 0, sorted(HEAVY & set(sys.modules))]]
for words in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = onepass.main(words)
    seen.append([" ".join(words), status, sorted(HEAVY & set(sys.modules))])
print(json.dumps(seen))
"""
HELPS = [
    [],
    *([verb] for verb in onepass.command.verbs.RUN),
    *(["train", name] for name in ("wavenet-cpu-16k", "pixelcnn-cpu-32", "multiscale-cpu-64")),
    ["distill", "student-residual-16k"],
    *([verb, model] for verb in ("evaluate", "sample") for model in ("shipped", "shipped-digits")),
]
MISTAKES = [
    ["trian"],
    ["train", "wavnet-cpu-16k"],
    ["train", "wavenet-cpu-16k", "--data", "a", "--workdir", "b", "--network.layers", "many"],
    ["distill", "student-residual"],
    ["sample", "shipped", "--nmu", "3"],
    ["plan", "wavenet-smok", "--devices", "2"],
    ["plan", "wavenet-smoke", "--devices", "4", "--mesh", "3x2"],
    ["serve"],
    ["serve", "models", "--weights", "int4"],
]


@pytest.fixture(scope="module")
def imported():
    """Status and what was imported, after each line of words."""
    lines = [*([*words, "--help"] for words in HELPS), ["--version"], *MISTAKES]
    command = [sys.executable, "-c", PROGRAM, json.dumps(sorted(HEAVY)), json.dumps(lines)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {words: (status, heavy) for words, status, heavy in json.loads(output)}


def test_importing_the_package_imports_nothing_large(imported):
    assert imported["import onepass"] == (0, [])


@pytest.mark.parametrize("words", [*HELPS, None], ids=lambda words: " ".join(words or ["version"]))
def test_a_help_text_imports_nothing_large(imported, words):
    line = "--version" if words is None else " ".join([*words, "--help"])
    assert imported[line] == (0, [])


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_refused_before_anything_large_is_imported(imported, words):
    assert imported[" ".join(words)] == (2, [])


@pytest.mark.slow
def test_the_watched_packages_are_those_that_a_run_imports():
    code = "import onepass.command.quickstart, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"tensorflow", "matplotlib", "scipy", "numpy", "PIL", "numba"} <= set(modules)


# Completion by bash


# The words that bash would offer for a line, through the function that the script registers.
COMPLETE = """
source {script}
COMP_WORDS=({words} "{last}")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
function_name=$(complete -p onepass | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function_name onepass "{last}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    command = [sys.executable, "-m", "onepass", "--tyro-print-completion", "bash"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    path = tmp_path_factory.mktemp("completion") / "onepass.sh"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("words", "last", "offered"),
    [
        ("onepass", "tr", "train"),
        ("onepass train", "wavenet-cpu", "wavenet-cpu-16k"),
        ("onepass train multiscale-cpu-32", "--optimizer.learn", "--optimizer.learning-rate"),
        ("onepass serve", "--grpc", "--grpc-port"),
    ],
)
def test_bash_completes(script, words, last, offered):
    program = COMPLETE.format(script=script, words=words, last=last)
    found = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert offered in found.stdout.split(), found.stderr
