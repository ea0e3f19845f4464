"""The command: `onepass VERB ...`. Each verb lives on the floor that does its work."""

import importlib
import os
import sys
import textwrap
from pathlib import Path

from onepass.arguments import chosen, parse

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
    "audio": "onepass.bench.audio.command",
    "images": "onepass.bench.images.command",
    "scaling": "onepass.bench.scaling.command",
    "serving": "onepass.bench.serving.command",
}
HELP = ("-h", "--help")
USAGE_ERROR, INTERRUPTED = 2, 130
REMOTE_HELP = "\n  onepass sample http://HOST:PORT/NAME --help   of a model that is served"


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
    verb = chosen(arguments, VERBS, "verb", "onepass")
    remote = verb == "sample" and any(_is_remote(word) for word in arguments)
    if verb != "launch" and not remote:  # which only start or ask others
        _import_tensorflow_quietly()
    return RUN[verb](arguments[1:])


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
    return importlib.import_module("onepass.quickstart").run(rest, parse)


def _train(rest: list[str]) -> int:
    from pixelcnn import command as pictures
    from pixelcnn import presets as of_pictures
    from wavenet import command as sounds
    from wavenet import presets as of_sounds

    presets = {**of_sounds.PRESETS, **of_pictures.PRESETS}
    if rest and rest[0] in HELP:
        print(_help_of_presets("train", "--data DIR --workdir RUN", presets))
        return 0
    preset = chosen(rest, presets, "preset", "onepass train")
    command = sounds if preset in of_sounds.PRESETS else pictures
    return command.run_train(preset, rest[1:], parse)


def _distill(rest: list[str]) -> int:
    from distill.command import run_distill
    from distill.presets import PRESETS

    if rest and rest[0] in HELP:
        print(_help_of_presets("distill", "--teacher RUN --workdir RUN", PRESETS))
        return 0
    return run_distill(chosen(rest, PRESETS, "preset", "onepass distill"), rest[1:], parse)


def _launch(rest: list[str]) -> int:
    from replicator.launch.command import run

    return run(rest, parse, [sys.executable, "-m", "onepass"])


def _evaluate(rest: list[str]) -> int:
    sounds, pictures = "distill.command", "pixelcnn.command"
    return _of_kind("evaluate", "[--data DIR] [--json]", rest, sounds, pictures)


def _sample(rest: list[str]) -> int:
    if any(_is_remote(word) for word in rest):
        return importlib.import_module("serving.client.sampling").run_sample(rest, parse)
    sounds, pictures = "distill.command", "pixelcnn.sample_command"
    return _of_kind("sample", "--out DIR [--num N] [--seed S]", rest, sounds, pictures)


def _export(rest: list[str]) -> int:
    return importlib.import_module("serving.bundles.export").run_export(rest, parse)


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
    bench = chosen(rest, BENCHES, "bench", "onepass bench")
    return importlib.import_module(BENCHES[bench]).run(rest[1:], parse)


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


RUN = {
    "quickstart": _quickstart,
    "train": _train,
    "distill": _distill,
    "evaluate": _evaluate,
    "sample": _sample,
    "export": _export,
    "serve": _serve,
    "bench": _bench,
    "launch": _launch,
}
