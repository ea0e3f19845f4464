"""The command: `onepass VERB ...`. Each verb lives on the floor that does its work."""

import contextlib
import difflib
import importlib
import io
import os
import re
import sys
import tempfile

VERBS = {
    "quickstart": "train, speak and report on shipped data, in a few minutes",
    "train": "train a model on a folder: onepass train PRESET --data DIR --workdir RUN",
    "evaluate": "figures of a trained model: onepass evaluate RUN [--data DIR] [--json]",
    "sample": "sounds from a trained model: onepass sample RUN --out DIR",
    "portable": "export a run's step for a machine with JAX, or bring its weights back",
    "bench": "measure side by side: onepass bench audio [--json FILE]",
}
BENCHES = {"audio": "benchmarks.audio"}
USAGE_ERROR, INTERRUPTED = 2, 130


class UsageError(ValueError):
    """A command line that cannot be understood; its message is one line."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status of a command line: 0, 2 for a mistake, 130 after Ctrl-C."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("onepass: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("ONEPASS_TRACEBACK"):
            raise
        print(f"onepass: {_one_line(error)}", file=sys.stderr)
        return USAGE_ERROR


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else USAGE_ERROR
    verb, rest = arguments[0], arguments[1:]
    _known(verb, VERBS, "verb")
    _import_tensorflow_quietly()
    return globals()[f"_{verb}"](rest)


def _import_tensorflow_quietly() -> None:
    """Imports TensorFlow, whose start-up notes ignore every log level, with stderr put aside."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            importlib.import_module("tensorflow")
        except BaseException:
            notes.seek(0)
            os.write(stderr, notes.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _quickstart(rest: list[str]) -> int:
    return importlib.import_module("serving.quickstart").run(rest, parse)


def _train(rest: list[str]) -> int:
    from wavenet.command import run_train
    from wavenet.presets import PRESETS

    if not rest or rest[0] in ("-h", "--help"):
        lines = [f"  {name:22s}{preset.about}" for name, preset in PRESETS.items()]
        print(
            "usage: onepass train PRESET --data DIR --workdir RUN [options]\n\npresets:\n"
            + "\n".join(lines)
            + "\n\nonepass train PRESET --help lists every option."
        )
        return 0 if rest else USAGE_ERROR
    _known(rest[0], PRESETS, "preset")
    return run_train(rest[0], rest[1:], parse)


def _evaluate(rest: list[str]) -> int:
    return importlib.import_module("wavenet.command").run_evaluate(rest, parse)


def _sample(rest: list[str]) -> int:
    return importlib.import_module("wavenet.command").run_sample(rest, parse)


def _portable(rest: list[str]) -> int:
    return importlib.import_module("wavenet.exporting").run(rest, parse)


def _bench(rest: list[str]) -> int:
    if not rest or rest[0] in ("-h", "--help"):
        print(f"usage: onepass bench {{{','.join(BENCHES)}}} [--json FILE] [options]")
        return 0 if rest else USAGE_ERROR
    _known(rest[0], BENCHES, "bench")
    return importlib.import_module(BENCHES[rest[0]]).run(rest[1:], parse)


def parse(kind, arguments: list[str], program: str, default=None, description: str | None = None):
    """The dataclass `kind` read from arguments; UsageError, in one line, if they do not fit."""
    import tyro

    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(
                kind, args=arguments, prog=program, default=default, description=description
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UsageError(f"{_plain(told.getvalue())} (onepass: try {program} --help)") from None


def _known(word: str, known, what: str) -> None:
    if word in known:
        return
    near = difflib.get_close_matches(word, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}."
    raise UsageError(f"there is no {what} `{word}`; {hint}")


def _plain(text: str) -> str:
    """What a boxed, coloured message says, on one line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"[╭╮╰╯│─━┃]+", " ", text)
    return " ".join(text.split()).split(" For full helptext")[0]


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{name}"
    return " ".join(str(error).split())


def _help() -> str:
    lines = [f"  {verb:12s}{about}" for verb, about in VERBS.items()]
    return (
        "usage: onepass VERB [options]\n\nGenerative models trained one sample at a time and "
        "sampled in one pass.\n\nverbs:\n"
        + "\n".join(lines)
        + "\n\nonepass VERB --help tells the rest; ONEPASS_TRACEBACK=1 shows where an error "
        "came from."
    )


if __name__ == "__main__":
    sys.exit(main())
