"""Command that measures a voice with a model: `python -m onepass.speech.evaluate --data DIR`."""

import dataclasses
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tyro

from distill.model import load as load_model
from onepass.foundation.rules import UserError
from onepass.speech.evaluation import measure_speech
from onepass.speech.examples import examples, prepare_corpus
from onepass.speech.train import write
from onepass.speech.voice import load_voice, shipped_voice


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Speak the dev texts of recordings with a model, and print the measures as JSON."""

    data: Path
    """Folder of recordings of one speaker, with their texts in train.tsv and dev.tsv."""
    model: str = "shipped"
    """Run directory, model folder or name of the model that speaks."""
    voice: Path | None = None
    """Folder of the voice; None: the shipped voice for the model's frames."""
    spoken: int = 8
    """Number of dev texts to speak."""
    out: Path | None = None
    """Folder to write the voice to, with the measures in its card; None: do not write it."""


def main(given: Arguments) -> int:
    """Measure a voice and print the measures; write the voice if `out` is given."""
    model = load_model(Path(given.model))
    mel = model.front.mel
    if mel is None:
        raise UserError(f"{given.model} reads no mel frames: it cannot speak texts.")
    voice = load_voice(given.voice) if given.voice else shipped_voice(model.spec)
    voice.check(model.spec)
    with TemporaryDirectory() as folder:
        corpus = prepare_corpus(given.data, mel, model.front.gain_db, Path(folder))
        dev = examples(corpus, mel)["dev"]
    figures, _ = measure_speech(voice, model, dev, mel, given.spoken)
    print(json.dumps(figures, indent=2))
    if given.out is not None:
        quality = voice.spec["quality"]
        measured = {**quality, "speech": figures}
        measured["dev"] = {**quality["dev"], "spoken": min(given.spoken, len(dev))}
        spec = {**voice.spec, "model": given.model, "quality": measured}
        write(given.out, dataclasses.replace(voice, spec=spec))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Arguments)))
    except (UserError, OSError) as error:
        sys.exit(f"speech: {error}")
