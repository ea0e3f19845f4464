"""The shell completes verbs, presets and options, by the script that the command prints."""

import shutil
import subprocess
import sys

import pytest

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

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
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
