"""The command: `onepass VERB ...`. Each verb lives on the floor that does its work."""

import contextlib
import difflib
import importlib
import io
import os
import re
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

VERBS = {
    "quickstart": "speak, draw, train and report on what is shipped, in a few minutes",
    "train": "train a model on a folder: onepass train PRESET --data DIR --workdir RUN",
    "distill": "a fast student of it: onepass distill PRESET --teacher RUN --workdir RUN",
    "evaluate": "figures of a trained model: onepass evaluate RUN [--data DIR] [--json]",
    "sample": "sounds or pictures from a trained model: onepass sample RUN --out DIR",
    "export": "a bundle to serve: onepass export RUN --out MODELS/NAME/1",
    "serve": "answer over HTTP and gRPC: onepass serve MODELS [--host --port ...]",
    "bench": "measure side by side: onepass bench audio|images|scaling|serving",
    "launch": "a cluster of processes: onepass launch --workers 2 -- onepass train ...",
}
BENCHES = {
    "audio": "benchmarks.audio",
    "images": "benchmarks.images",
    "scaling": "benchmarks.scaling",
    "serving": "benchmarks.serving",
}
HELP = ("-h", "--help")
USAGE_ERROR, INTERRUPTED = 2, 130
REMOTE_HELP = "\n  onepass sample http://HOST:PORT/NAME --help   of a model that is served"
REWORDED = (
    (r"^Error parsing (?:config\.)?(\S+):", r"\1:"),
    (r": invalid literal for int\(\) with base 10: ", " must be a whole number, got "),
    (r": could not convert string to float: ", " must be a number, got "),
)


class UsageError(ValueError):
    """A command line that cannot be understood; its message is one line."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status of a command line: 0; 2 for a mistake; 128 + a signal that ended it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except SystemExit as exit_:  # after --help
        return int(exit_.code or 0)
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
    if arguments and arguments[0] in HELP:
        print(_help())
        return 0
    verb = _chosen(arguments, VERBS, "verb", "onepass")
    remote = verb == "sample" and any(_is_remote(word) for word in arguments)
    if verb != "launch" and not remote:  # which only start or ask others
        _import_tensorflow_quietly()
    return globals()[f"_{verb}"](arguments[1:])


def _import_tensorflow_quietly() -> None:
    """Imports TensorFlow, whose start-up notes ignore every log level, with stderr put aside."""
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        importlib.import_module("tensorflow").get_logger().setLevel("ERROR")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _quickstart(rest: list[str]) -> int:
    return importlib.import_module("serving.quickstart").run(rest, parse)


def _train(rest: list[str]) -> int:
    from pixelcnn import command as pictures
    from pixelcnn import presets as of_pictures
    from wavenet import command as sounds
    from wavenet import presets as of_sounds

    presets = {**of_sounds.PRESETS, **of_pictures.PRESETS}
    if rest and rest[0] in HELP:
        print(_help_of_presets("train", "--data DIR --workdir RUN", presets))
        return 0
    preset = _chosen(rest, presets, "preset", "onepass train")
    command = sounds if preset in of_sounds.PRESETS else pictures
    return command.run_train(preset, rest[1:], parse)


def _distill(rest: list[str]) -> int:
    from distill.command import run_distill
    from distill.presets import PRESETS

    if rest and rest[0] in HELP:
        print(_help_of_presets("distill", "--teacher RUN --workdir RUN", PRESETS))
        return 0
    return run_distill(_chosen(rest, PRESETS, "preset", "onepass distill"), rest[1:], parse)


def _launch(rest: list[str]) -> int:
    from replicator.launch.command import run

    return run(rest, parse, [sys.executable, str(Path(__file__).resolve())])


def _evaluate(rest: list[str]) -> int:
    sounds, pictures = "distill.command", "pixelcnn.command"
    return _of_kind("evaluate", "[--data DIR] [--json]", rest, sounds, pictures)


def _sample(rest: list[str]) -> int:
    if any(_is_remote(word) for word in rest):
        return importlib.import_module("serving.remote_sampling").run_sample(rest, parse)
    sounds, pictures = "distill.command", "pixelcnn.painting"
    return _of_kind("sample", "--out DIR [--num N] [--seed S]", rest, sounds, pictures)


def _export(rest: list[str]) -> int:
    return importlib.import_module("serving.export").run_export(rest, parse)


def _serve(rest: list[str]) -> int:
    return importlib.import_module("serving.server").run_serve(rest, parse)


def _of_kind(verb: str, needed: str, rest: list[str], sounds: str, pictures: str) -> int:
    """Runs a verb from the floor that the model named in the arguments belongs to."""
    kinds = map(_model_kind, [*_positional(rest), *rest])
    of_pictures = next(filter(None, kinds), "sound") == "picture"
    if rest and rest[0] in HELP:
        print(
            f"usage: onepass {verb} MODEL {needed} [options]\n\nMODEL is a run directory, a model "
            "folder or a shipped model, and decides the options:\n"
            f"  onepass {verb} shipped --help          of a model of sounds\n"
            f"  onepass {verb} shipped-digits --help   of a model of pictures"
            + (REMOTE_HELP if verb == "sample" else "")
        )
        return 0
    module = importlib.import_module(pictures if of_pictures else sounds)
    return getattr(module, f"run_{verb}")(rest, parse)


def _is_remote(word: str) -> bool:
    return word.startswith(("http://", "https://", "grpc://"))


def _positional(words: list[str]) -> list[str]:
    """The words that are neither options nor may be the values of options."""
    before = ["", *words]
    pairs = zip(words, before, strict=False)
    return [word for word, last in pairs if not word.startswith("-") and last[:1] != "-"]


def _model_kind(word: str) -> str | None:
    """What the model that a word names makes, "sound" or "picture"; None where it names none."""
    from pixelcnn.shipped import FOLDERS
    from pixelcnn.training import KINDS
    from replicator.runs.model_folder import kind_of

    if Path(word).exists():
        kind = kind_of(Path(word))
        return kind and ("picture" if kind in KINDS else "sound")
    if word.startswith("shipped"):
        return "picture" if word in FOLDERS else "sound"
    return None


def _bench(rest: list[str]) -> int:
    if rest and rest[0] in HELP:
        print(f"usage: onepass bench {{{','.join(BENCHES)}}} [--json FILE] [options]")
        return 0
    bench = _chosen(rest, BENCHES, "bench", "onepass bench")
    return importlib.import_module(BENCHES[bench]).run(rest[1:], parse)


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
        raise UsageError(f"{_complaint(told.getvalue())} (see {program} --help)") from None


def _chosen(arguments: list[str], known: Collection[str], what: str, program: str) -> str:
    """The first argument, one of the known words."""
    names = ", ".join(known)
    if not arguments:
        raise UsageError(f"name a {what}: {names} (see {program} --help)")
    word = arguments[0]
    if word not in known:
        near = difflib.get_close_matches(word, known, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {names}."
        raise UsageError(f"there is no {what} `{word}`; {hint}")
    return word


def _complaint(boxed: str) -> str:
    """What tyro's box says, in one short line, without the help that it repeats."""
    sections = _sections(boxed)
    text = " ".join(" ".join(sections[0]).split()) if sections else "it cannot be read"
    if text.startswith("Missing from"):
        return f"{' and '.join(_options(sections[0]))} must be given"
    for pattern, replacement in REWORDED:
        text = re.sub(pattern, replacement, text)
    near = [
        option.split()[0]
        for section in sections[1:]
        if section[0].startswith(("Arguments similar to", "Perhaps you meant"))
        for option in _options(section)
    ]
    return text.rstrip(".") + (f"; did you mean {near[0]}?" if near else "")


def _sections(boxed: str) -> list[list[str]]:
    """The lines of each part of a box, drawn with lines or in ASCII, without colours and frame."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
    sections: list[list[str]] = [[]]
    for line in text.splitlines()[1:]:  # the first one is the title
        if re.fullmatch(r"[│ ]*[─-]{3,}[│ ]*", line):
            sections.append([])
        elif line[:1] in ("│", " ") and line.strip("│ "):
            sections[-1].append(line[2:].rstrip("│ "))
    return [section for section in sections if section]


def _options(section: list[str]) -> list[str]:
    """The options that a section lists, such as `--data PATH`; their help is indented further."""
    return [line.strip() for line in section if re.match(r" {4}\S", line)]


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


def _help_of_presets(verb: str, needed: str, presets) -> str:
    indent = 4 + max(len(name) for name in presets)
    lines = [
        textwrap.fill(
            preset.about,
            100,
            initial_indent=f"  {name}".ljust(indent),
            subsequent_indent=" " * indent,
        )
        for name, preset in presets.items()
    ]
    return (
        f"usage: onepass {verb} PRESET {needed} [options]\n\npresets:\n"
        + "\n".join(lines)
        + f"\n\nonepass {verb} PRESET --help lists every option."
    )


if __name__ == "__main__":
    sys.exit(main())
