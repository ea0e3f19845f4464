"""Every command of README and docs/ is run: page by page, in order, at smoke size."""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import image_runs
import numpy as np
import pytest
import soundfile
from doc_pages import PAGES, lines
from PIL import Image
from processes import ROOT, Process
from runs import options, recordings
from serve_command import READY

import onepass

LIMIT_SECONDS = 600  # for a server to be ready, or a process to end
RATE_HZ = 16_000
COMMAND = ROOT / "onepass" / "__main__.py"

# What a line says, and what is run in its place: all that match, in this order.
SMALLER = (
    (r"\bwavenet-(?!smoke)[\w-]+(16|22|24)k", "wavenet-smoke"),
    (r"\bstudent-(residual-16k|paper-24k|universal-22k)", "student-smoke"),
    (r"\bguided-32", "guided-smoke"),
    (r"\bflow-(base|32)", "flow-smoke"),
    (r"\b(pixelcnn|multiscale)-cpu-\d+", r"\1-smoke --conditioning.kind class"),
    (r"\bmultiscale-text-32", "multiscale-smoke --conditioning.kind text"),
    (
        r"\bmultiscale-words-32",
        "multiscale-smoke --conditioning.kind text --conditioning.dropout 0.1",
    ),
    (
        r"\bmultiscale-video-64",
        "multiscale-smoke --conditioning.kind video --data.size 16 --data.channels 3 "
        "--output.channels 3",
    ),
    # A teacher of seconds, which lies in the folder, in place of one of hours.
    (r"--teacher shipped-teacher", "--teacher TEACHER"),
    # A smoke network is another.
    (r"--start-from shipped-(universal-teacher|teacher|kathleen) ", ""),
    (r"onepass train \.\.\.$", "onepass train wavenet-smoke --data speech --workdir run"),
    (r" \.\.\.$", " --data speech --workdir run"),
    (r"--data OUT ", "--data speech "),
    (r" --(loop\.num-steps|loop\.max-minutes|optimizer\.cooldown-steps) \d+", ""),
    (r" --(pitch-steps|clips\.clip-samples) \d+", ""),
    (r"^.*onepass (train|distill) [\w-]+-smoke .*$", r"\g<0> --loop.num-steps 2"),
    # No classifier of speech units.
    (
        r"^onepass distill student-smoke .*$",
        r"\g<0> --loss.feature 0 --loss.style 0 --clips.clip-samples 2560",
    ),
    (r" --(spoken|copy-synthesis) \d+", ""),
    (r" --beside( student-[\w-]+)+", ""),  # runs of days, of which the page gives the options
    (
        r"^onepass evaluate (teacher|student|density|terms|all|run|shipped(-[tk][\w-]+)?)"
        r"(?![\w-]).*$",
        r"\g<0> --spoken 1",
    ),
    (r"^onepass evaluate shipped-(digits|emoji).*$", r"\g<0> --samples 10"),
    # A classifier of its own would be trained for each set of images.
    (r"^onepass evaluate (fast|drawn|digits|text|words)\b.*$", r"\g<0> --samples 0"),
    (r"^(onepass sample .*)--num \d+", r"\1--num 2"),
    (r"^onepass sample teacher .*--num.*$", r"\g<0> --seconds 0.1"),
    (r"--prime-rows \d+", "--prime-rows 4"),
    (r"(plan carried-student --devices) 4", r"\1 2"),  # as many as there are rows
    (r"--probe-port \d+", "--probe-port 0"),
    (r"^onepass quickstart", "onepass quickstart --seconds 0.2 --spoken 1 --no-train"),
    # Each length and each number of rows is compiled, and warmed when it is loaded.
    (r"^onepass export (shipped|student) (?!.*--bare).*$", r"\g<0> --batches 1 --buckets 160"),
    (r"^onepass export (fast|drawn|shipped-digits) .*$", r"\g<0> --batches 1"),
    (r"^curl ", "curl --fail --silent --show-error "),
)
# What is parsed (test_docs.py) and not run here, and why.
ONLY_PARSED = {
    r"^python -m benchmarks(?!\.captions)": "tests/benchmarks run them at small sizes",
    r"^(locust|oha) ": "load generators are not installed",
    r"^serve (run|deploy) ": "Ray listens on every interface, and is not installed",
    r"^onepass launch .* examples\.": "tests/examples run the examples",
    r"^python -m onepass\.speech\.evaluate": "tests/onepass/speech has recordings with their texts",
    r"^onepass .*\bupsample\b": "tests/pixelcnn/test_enlarge_command.py trains such factors",
    r"^onepass \w+ mine ": "tests/onepass/command/test_array_command.py has a model that was saved",
    r"^python -m (pytest|examples\.)": "they are the tests, or those of tests/examples",
    r"^python3 -m venv|^(uv )?pip install|^\. ": "the environment is that of the tests",
    r"^(kubectl|sbatch|sh docs/deploy/\S+\.sh|export) ": "they need a cluster or a container",
    r"^(openssl|chmod)\b": "the tokens that they make are in the folder",
    r" --coordinator ": "tests/onepass/replicator/test_portable_processes.py has several processes",
    r"run\.py .*--layout ": "tests/onepass/replicator/test_layouts.py has several devices",
    r"^curl https:": "tests/serving/test_deployment_files.py runs nginx with a certificate",
    r"^XLA_FLAGS=": "tests/pixelcnn and tests/wavenet train on several devices of JAX",
    r"^curl http://127.0.0.1:8501/v1/models/digits$": "it asks TensorFlow Serving",
    r'"temperature": \[1, 1, 1\]': "it asks TensorFlow Serving",
}
if not shutil.which("espeak-ng"):
    ONLY_PARSED[r'^curl .*"text":| --text '] = "a text needs espeak-ng, which is not here"
# What needs nothing of its page: a line that is on several of them is run once.
ALONE = re.compile(r"^onepass (quickstart|\w+ --help)")


def write_sounds(source, folder, step=1):
    """Fills a folder with the recordings of another one, as WAV files; step -1: backwards."""
    for path in source.rglob("*.*"):
        target = folder / path.relative_to(source).with_suffix(".wav")
        target.parent.mkdir(parents=True, exist_ok=True)
        sound, rate_hz = soundfile.read(path)
        soundfile.write(target, sound[: 2 * rate_hz][::step], rate_hz)


def write_images(folder):
    for number, image in enumerate(image_runs.toys(96, 1)["images"]):
        path = folder / str(number % 8) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def write_npz(folder, make, counts):
    folder.mkdir()
    for seed, (split, count) in enumerate(counts.items()):
        arrays = make(count, seed)
        if "images" in arrays:
            arrays = {"images": arrays["images"][..., None], "labels": arrays["labels"]}
        np.savez(folder / f"toy_{split}.npz", **arrays)


def write_drawings(folder):
    """Fills a folder with one npz file for each split, of four subjects in three designs."""
    folder.mkdir()
    names = np.repeat(["dog", "cat", "unicorn", "eel"], 3)
    styles = np.tile(["noto", "twemoji", "fluent 3d"], 4)
    captions = np.array([f"{name}, {style}" for name, style in zip(names, styles, strict=True)])
    for seed, split in enumerate(("train", "dev")):
        images = image_runs.toys(12, seed)["images"][..., None]
        arrays = {"images": images, "names": names, "styles": styles, "captions": captions}
        np.savez(folder / f"emoji32_{split}.npz", **arrays)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with all that the pages take as given."""
    folder = tmp_path_factory.mktemp("data")
    shipped = recordings(tmp_path_factory.mktemp("shipped"), train=4, dev=1)
    for name in ("RECORDINGS", "speech", "speech_kathleen_en_24k"):
        write_sounds(shipped, folder / name)
    write_sounds(shipped / "dev", folder / "VOCODER")
    voices = {"kathleen": 1, "nathalie": -1}  # a copy of a recording would be left out
    for split, (name, step) in itertools.product(("train", "dev"), voices.items()):
        write_sounds(shipped / split, folder / "voices" / split / name, step)
    sound, rate_hz = soundfile.read(next(shipped.glob("dev/*")))
    for name in ("SPEECH.wav", "recording.wav"):
        soundfile.write(folder / name, sound[: rate_hz // 2], rate_hz)
    (folder / "token").write_text("a token of enough letters")
    (folder / "words.txt").write_text("nginx \u02c8\u025bnd\u0292\u026an\u02c8\u025bks\n", "utf-8")
    (folder / "docs").mkdir()
    write_images(folder / "IMAGES")
    shutil.copytree(folder / "IMAGES", folder / "images")
    shutil.copy(folder / "IMAGES" / "0" / "0.png", folder / "FILE.png")
    for name in ("images_signdigits_32", "images_trashnet_64"):
        write_npz(folder / name, image_runs.toys, {"train": 24, "dev": 8})
    write_drawings(folder / "images_emoji_32")
    write_npz(folder / "video_bridge_64", image_runs.episodes, {"train": 4, "dev": 2})
    given = ["--data", str(folder / "RECORDINGS"), "--workdir", str(folder / "TEACHER")]
    assert onepass.main(["train", "wavenet-smoke", *given, *options()]) == 0
    return folder


@pytest.fixture(scope="module")
def done():
    """The lines that need not be run again."""
    return set()


class Shell:
    """Runs lines in a folder. `close` stops the server, if one was started."""

    def __init__(self, folder):
        self._folder, self._server, self._port = folder, None, "8501"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "JAX_PLATFORMS": "cpu",
        }

    def run(self, line):
        """Runs a line; AssertionError, with what it printed, where its status is not 0."""
        words = shlex.split(line.replace(":8501", f":{self._port}"))
        if words[:2] == ["onepass", "serve"]:
            self._serve(words[2:])
        elif words[0] == "onepass" and words[1] != "launch" and "--strategy" not in words:
            assert onepass.main(words[1:]) == 0, line
        else:  # devices and the environment of a cluster are those of a new process
            program = [sys.executable, COMMAND] if words[0] == "onepass" else words[:1]
            done = subprocess.run(
                [*program, *words[1:]],
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def _serve(self, words):
        self.close()
        given = ["serve", *words, "--port", 0, "--grpc-port", 0]
        self._server = Process(COMMAND, self._folder / "server.log", *given)
        deadline = time.monotonic() + LIMIT_SECONDS
        while (ready := READY.search(self._server.output())) is None:
            assert self._server.is_running(), self._server.output()
            assert time.monotonic() < deadline, self._server.output()
            time.sleep(0.1)
        self._port = ready[3]

    def close(self):
        """Asserts that a server which gets SIGTERM leaves in good order."""
        if self._server is not None:
            self._server.signal(signal.SIGTERM)
            assert self._server.ended(60) == 0, self._server.output()

    def kill(self):
        if self._server is not None:
            self._server.kill()


def smaller(line):
    """The line that is run in place of one of a page; None where it is only parsed."""
    if any(re.search(pattern, line) for pattern in ONLY_PARSED):
        return None
    for pattern, instead in SMALLER:
        line = re.sub(pattern, instead, line)
    return line


LINES = {page: [line for line in map(smaller, lines(page)) if line] for page in PAGES}
RUN = [pytest.param(page, id=page.stem) for page in PAGES if LINES[page]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_in_order(page, data, done, tmp_path, monkeypatch):
    folder = tmp_path / "page"
    shutil.copytree(data, folder)
    monkeypatch.chdir(folder)
    shell = Shell(folder)
    try:
        for line in LINES[page]:
            if line not in done:
                shell.run(line)
            if ALONE.search(line):
                done.add(line)
        shell.close()
    finally:
        shell.kill()
    if page.stem == "first_hour":
        assert_served_as_sampled(folder)


def assert_served_as_sampled(folder):
    """Fails unless the server gave the sound that the student gave, and images."""
    (sampled,), (served,) = (list((folder / name).glob("*.wav")) for name in ("sounds", "asked"))
    expected, found = (soundfile.read(path, dtype="int16")[0] for path in (sampled, served))
    assert len(expected) > RATE_HZ // 4 and np.ptp(expected) > 100
    assert len(found) >= len(expected)
    assert np.max(np.abs(found[: len(expected)].astype(int) - expected)) <= 1
    assert (folder / "asked" / "grid.png").exists()


def test_every_replacement_and_every_exception_is_needed():
    every = [line for page in PAGES for line in lines(page)]
    for pattern in ONLY_PARSED:
        assert any(re.search(pattern, line) for line in every), pattern
    left = set(range(len(SMALLER)))
    for line in filter(smaller, every):
        for number, (pattern, instead) in enumerate(SMALLER):
            if re.search(pattern, line):
                left.discard(number)
            line = re.sub(pattern, instead, line)
    assert not left, [SMALLER[number] for number in left]


def test_every_line_that_is_run_is_of_a_program_that_is_there():
    programs = {line.split()[0] for some in LINES.values() for line in some}
    assert programs <= {"onepass", "python", "curl"}
