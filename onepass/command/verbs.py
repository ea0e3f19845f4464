"""The command `onepass VERB ...`; each verb is implemented in the folder that does its work.

Help texts and argument errors need no TensorFlow: options are defined in modules that import
without it, and TensorFlow is imported after the arguments are parsed. A signal that ends the
command, and standard streams that are closed, full or have no reader, end it in one line.
"""

import contextlib
import functools
import os
import runpy
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from onepass.command.arguments import (
    CompressArguments,
    DecompressArguments,
    QuickstartArguments,
    choose_argument,
    parse,
)
from onepass.foundation.model_folders import ROOT, is_url
from onepass.foundation.progress import during
from onepass.foundation.rules import FAILURE, UserError, exit_status

if TYPE_CHECKING:
    from onepass.families import ModelFamily

SERVERS = ("serve", "launch")  # silent while they run without errors
HELP = frozenset({"-h", "--help"})
COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")
INTERRUPTED, NO_READER = 130, 141  # 128 + SIGINT, 128 + SIGPIPE
LONGEST_LINE = 500  # characters of an unexpected error
REMOTE_HELP = "\n  onepass sample http://HOST:PORT/NAME --help   for a model that is served"


def main(arguments: list[str] | None = None) -> int:
    """Run the command `onepass` and return its exit status.

    Args:
      arguments: the arguments after `onepass`; None: those of the process.

    Returns:
      0; 2 for a user's mistake; 1 for any other failure; 128 + n if signal n ended the command.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    error: BaseException | None = None
    status = 0
    with signals_interrupt() as received, watched_output() as output:
        try:
            status = _run(sys.argv[1:] if arguments is None else arguments)
        except SystemExit as exit_:  # after --help
            status = int(exit_.code or 0)
        except (Exception, KeyboardInterrupt) as caught:
            error = caught
    if output.lost is not None:
        say_error(f"standard output cannot be written: {output.lost.strerror}.")
        return NO_READER if isinstance(output.lost, BrokenPipeError) else FAILURE
    if error is not None:
        return _report_error(error)
    return 128 + received[0] if received and status == INTERRUPTED else status


def _report_error(error: BaseException) -> int:
    """Print an error in one line and return the exit status; with ONEPASS_TRACEBACK, raise it."""
    if isinstance(error, Interrupted):
        say_error(f"interrupted by {error}.")
        return 128 + error.number
    if isinstance(error, KeyboardInterrupt):
        say_error("interrupted.")
        return INTERRUPTED
    if os.environ.get("ONEPASS_TRACEBACK"):
        raise error
    say_error(_one_line(error))
    return exit_status(error)


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in HELP:
        print(_help())
        return 0
    if first == "--version":
        print(f"onepass {sys.modules['onepass'].__version__}")
        return 0
    if first.split("=")[0] in COMPLETION:
        from onepass.command.completion import run as run_completion

        run_completion(arguments)
        return 0
    verb = choose_argument(arguments, RUN, "verb", "onepass")
    if verb in SERVERS or not HELP.isdisjoint(arguments):
        return RUN[verb](arguments[1:])
    with during(f"onepass {verb}"):
        return RUN[verb](arguments[1:])


def parse_for_tensorflow(*given: Any, **named: Any) -> Any:
    """Return parsed command-line arguments, after importing TensorFlow for the caller."""
    parsed = parse(*given, **named)
    _import_tensorflow_quietly()
    return parsed


def _import_tensorflow_quietly() -> None:
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _quickstart(rest: list[str]) -> int:
    """A network's derived step, speech, images and training, in a few minutes."""
    given = parse_for_tensorflow(QuickstartArguments, rest, "onepass quickstart")
    from onepass.command.quickstart import run

    return run(given)


def _train(rest: list[str]) -> int:
    """Train a model on a folder: onepass train PRESET --data DIR --workdir RUN."""
    return _of_preset("train", "--data DIR --workdir RUN", rest)


def _distill(rest: list[str]) -> int:
    """Train a fast student: onepass distill PRESET --teacher RUN --workdir RUN."""
    return _of_preset("distill", "--teacher RUN --workdir RUN", rest)


def _of_preset(verb: str, needed: str, rest: list[str]) -> int:
    from onepass.families import of_presets, run_training

    families = of_presets(verb)
    if rest and rest[0] in HELP:
        abouts = {name: family.presets[name].about for name, family in families.items()}
        print(_help_of_presets(verb, needed, abouts))
        return 0
    preset = choose_argument(rest, families, "preset", f"onepass {verb}")
    return run_training(families[preset], preset, rest[1:], parse_for_tensorflow)


def _evaluate(rest: list[str]) -> int:
    """Measure a trained model: onepass evaluate RUN [--data DIR] [--json]."""
    if rest and rest[0] in HELP:
        return _help_of_models("evaluate", "[--data DIR] [--json]")
    from onepass.families import run_evaluate
    from onepass.models import family_of

    return run_evaluate(family_of, _family_of_model(rest), rest, parse_for_tensorflow)


def _sample(rest: list[str]) -> int:
    """Generate sounds or images: onepass sample RUN --out DIR."""
    from onepass.command.sample.command import run_sample, run_served

    if any(map(is_url, rest)):
        return run_served(rest, parse)
    if rest and rest[0] in HELP:
        return _help_of_models("sample", "--out DIR [--num N] [--seed S]", REMOTE_HELP)
    return run_sample(_family_of_model(rest).makes, rest, parse, _import_tensorflow_quietly)


def _compress(rest: list[str]) -> int:
    """Compress files losslessly: onepass compress MODEL FILES... --out FILE.onepass."""
    given = parse_for_tensorflow(CompressArguments, rest, "onepass compress")
    from onepass.command.compression_command import compress

    return compress(given)


def _decompress(rest: list[str]) -> int:
    """Restore compressed files: onepass decompress MODEL FILE.onepass --out DIR."""
    given = parse_for_tensorflow(DecompressArguments, rest, "onepass decompress")
    from onepass.command.compression_command import decompress

    return decompress(given)


def _export(rest: list[str]) -> int:
    """Write a bundle to serve: onepass export RUN --out MODELS/NAME/1."""
    from serving.command import run_export

    return run_export(rest, parse_for_tensorflow)


def _serve(rest: list[str]) -> int:
    """Serve bundles over HTTP and gRPC: onepass serve MODELS [--host --port ...]."""
    from serving.command import run_serve

    return run_serve(rest, parse, _import_tensorflow_quietly)


def _help_of_models(verb: str, needed: str, more: str = "") -> int:
    print(
        f"usage: onepass {verb} MODEL {needed} [options]\n\nMODEL is a run directory, a model "
        "folder or a shipped model, and decides the options:\n"
        f"  onepass {verb} shipped --help          for a model of sound\n"
        f"  onepass {verb} shipped-digits --help   for a model of images\n"
        f"  onepass {verb} FOLDER --help           for a model that `onepass.save` wrote{more}"
    )
    return 0


def _family_of_model(words: list[str]) -> "ModelFamily":
    from onepass import families
    from onepass.models import family_of

    found = filter(None, map(family_of, [*_positional(words), *words]))
    return next(found, None) or families.registered(families.STUDENT)


def _positional(words: list[str]) -> list[str]:
    before = ["", *words]
    pairs = zip(words, before, strict=False)
    return [word for word, last in pairs if not word.startswith("-") and last[:1] != "-"]


def _bench(rest: list[str]) -> int:
    """Compare with peers, from a checkout: onepass bench [audio|images|...]."""
    program = ROOT / "benchmarks" / "__main__.py"
    if not program.is_file():
        raise UserError(
            "the benchmarks are not installed with the package: run `python -m benchmarks` in a "
            "checkout of the source."
        )
    sys.path.insert(0, str(ROOT))
    return runpy.run_path(str(program))["main"](rest, "onepass bench")


def _plan(rest: list[str]) -> int:
    """Predict step time and memory: onepass plan RUN|PRESET --devices N."""
    from onepass.command.plan import run_plan

    return run_plan(rest, parse, _import_tensorflow_quietly)


def _launch(rest: list[str]) -> int:
    """Start a cluster of processes: onepass launch --workers 2 -- onepass train ... ."""
    from onepass.replicator.launch.command import run

    return run(rest, parse, [sys.executable, "-m", "onepass"])


def _pipeline(rest: list[str]) -> int:
    """Compare pipeline schedules: onepass pipeline --devices 8 --microbatches 32."""
    from onepass.planning.pipeline.command import run

    return run(rest, parse)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    if not isinstance(error, OSError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"failed: {text[:LONGEST_LINE]} (ONEPASS_TRACEBACK=1 prints the traceback)"


def _help() -> str:
    abouts = {verb: (run.__doc__ or "").removesuffix(".").rstrip() for verb, run in RUN.items()}
    lines = [f"  {verb:12s}{about[:1].lower()}{about[1:]}" for verb, about in abouts.items()]
    return (
        "usage: onepass VERB [options]\n\nFast inference for autoregressive generative models: "
        "train, distil, sample, export, serve.\n\nverbs:\n"
        + "\n".join(lines)
        + "\n\nonepass VERB --help lists the options of a verb. onepass --version prints the "
        "version;\nonepass --tyro-print-completion bash|zsh|tcsh prints a completion script. "
        "ONEPASS_TRACEBACK=1\nprints the traceback of an error."
    )


def _help_of_presets(verb: str, needed: str, abouts: Mapping[str, str]) -> str:
    indent = 4 + max(map(len, abouts))
    fill = functools.partial(textwrap.fill, width=100, subsequent_indent=" " * indent)
    lines = [fill(text, initial_indent=f"  {n}".ljust(indent)) for n, text in abouts.items()]
    return (
        f"usage: onepass {verb} PRESET {needed} [options]\n\npresets:\n"
        + "\n".join(lines)
        + f"\n\nonepass {verb} PRESET --help lists every option."
    )


_EVERY = (
    *(_quickstart, _train, _distill, _evaluate, _sample, _compress, _decompress, _export, _serve),
    *(_bench, _plan, _launch, _pipeline),
)
# Each verb's function, whose docstring is the verb's line in the help text.
RUN: dict[str, Callable[[list[str]], int]] = {run.__name__[1:]: run for run in _EVERY}


# Signals that end a process from outside and can be caught.
ENDING = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal such as SIGTERM asks the process to stop, as Ctrl-C does."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Raise `Interrupted` for the first of `ENDING` that arrives; the list that is yielded has it.

    A signal can arrive twice, because shells, terminals and `timeout` may send it both to a process
    and to its group. Signals that are ignored, such as SIGHUP under nohup, or that already have a
    handler are left alone, and so are all outside the main thread.
    """
    received: list[int] = []
    replaced: list[signal.Signals] = []

    def raise_once(number: int, frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise Interrupted(number)

    if threading.current_thread() is threading.main_thread():
        replaced = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, raise_once)
    try:
        yield received
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


class Output:
    """Standard output that remembers the first error in writing to it as `lost`."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write text to the stream."""
        return self._call(self._stream.write, text)

    def flush(self) -> None:
        """Flush the stream."""
        self._call(self._stream.flush)

    def _call(self, method: Callable, *arguments: str) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            self.lost = self.lost or error
            raise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped stream."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def watched_output() -> Iterator[Output]:
    """Replace standard output with an `Output` inside the block, and flush it at the end.

    What the locale cannot write is escaped.
    """
    _open_closed()
    before = sys.stdout
    if hasattr(before, "reconfigure"):  # but not if it is a stand-in
        before.reconfigure(errors="backslashreplace")
    output = Output(before)
    sys.stdout = output
    try:
        yield output
    finally:
        sys.stdout = before
        with contextlib.suppress(OSError):
            output.flush()
        if output.lost is not None:
            _discard(1)  # otherwise Python would try again at exit


def say_error(line: str) -> None:
    """Print a line to standard error if it is writable."""
    try:
        print(f"onepass: {line}", file=sys.stderr, flush=True)
    except OSError:
        _discard(2)


def _open_closed() -> None:
    """Open closed standard descriptors on the null device, so that no file takes their numbers.

    Python sets such a stream to None. Writing to standard output fails as if it were closed, while
    what is written to standard error is dropped.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
