"""The command that trains a voice, and the card that it writes."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from distill.model import load as load_model
from onepass.foundation.files import replacing_folder, write_npz, write_text
from onepass.foundation.metrics import training_seconds
from onepass.foundation.progress import in_time
from onepass.foundation.rules import UserError, require, to_json
from onepass.foundation.runtime import machine_name
from onepass.speech.density_training import DensityConfig, train_density
from onepass.speech.evaluation import frame_measures, measure_speech, variance_corrections
from onepass.speech.examples import Example, examples, prepare_corpus
from onepass.speech.network import VoiceConfig
from onepass.speech.phonemes import QUESTION
from onepass.speech.training import Scale, SpeechConfig, read_trained_weights, scale_of, train
from onepass.speech.voice import KIND, SPEC_FILE, WEIGHTS_FILE, Voice, load_voice
from wavenet.config import MelConvention
from wavenet.data import audio
from wavenet.plots import spectrogram_png


def _opinions(speech: dict[str, float]) -> str:
    names = {"dnsmos_p808": "DNSMOS P.808", "plcmos": "PLCMOS"}
    return "".join(
        f"| {words} of text spoken (of the recording's own frames spoken) | "
        f"{speech[f'{name}_text']:.2f} ({speech[f'{name}_respoken']:.2f}) |\n"
        for name, words in names.items()
        if f"{name}_text" in speech
    )


def _texture(spec: dict[str, Any]) -> str:
    if not spec.get("temperature"):
        return "it is smoother than a person's and its melody flatter."
    trained = spec["density"]
    return (
        "its melody is flatter than a person's. Frames are drawn from a density around the\n"
        f"expected ones at temperature {spec['temperature']:g}, which was trained for "
        f"{trained['steps']:,} steps{in_time(trained['training_seconds'])}\non "
        f"{trained['machine']} (`{trained['command']}`)."
    )


def card(spec: dict[str, Any]) -> str:
    """Return the model card, in Markdown, for the content of a voice's model.json."""
    quality, when = spec["quality"], in_time(spec["training_seconds"])
    said = {"texture": _texture(spec), "opinions": _opinions(quality["speech"]), "in_time": when}
    said |= {"others": quality["dev"]["recordings"] - 1, "mel": json.dumps(spec["mel"])}
    template = Path(__file__).with_name("card.md").read_text("utf-8")
    return template.format(spec=spec, **quality, **said)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train the text front end on recordings with texts; a stopped run is resumed."""

    data: Path
    """Folder of recordings of one speaker, with their texts in train.tsv and dev.tsv."""
    workdir: Path
    """Run directory; a run with the same configuration is resumed."""
    config: Annotated[SpeechConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=SpeechConfig
    )
    density: DensityConfig = dataclasses.field(default_factory=DensityConfig)
    start_from: Path | None = None
    """Folder of a trained voice, to which only a density is added; None: train a new voice."""
    out: Path | None = None
    """Folder for the voice (model.json, weights.npz and card.md); None: do not write it."""
    model: str = "shipped"
    """The model that the frames are for; it also synthesises the speech measured for the card."""
    spoken: int = 8
    """Number of dev texts spoken for the card, at least 2; the audio is written to RUN/spoken."""
    data_licence: str = "unknown"
    """Licence and owner of the recordings, for the card."""
    note: str = ""
    """A remark on the training, for the card."""


def main(given: Arguments) -> int:
    """Train, and write the voice if `out` is given; return the exit status."""
    model = load_model(Path(given.model))
    mel = model.front.mel
    if mel is None:
        raise UserError(f"{given.model} reads no mel frames: there is nothing to learn for text.")
    require(given.spoken >= 2, "spoken", "at least 2", given.spoken)
    corpus = prepare_corpus(given.data, mel, model.front.gain_db, given.workdir / "features")
    found = examples(corpus, mel)
    scale = scale_of(found["train"], mel)
    if given.start_from is None:
        _, outcome = train(found, scale, given.config, given.workdir)
        print(outcome.summary(given.workdir, "best dev {:.3f}", ""))
        if outcome.exit_status:
            return outcome.exit_status
        voice = _finish_voice(given, found["train"], scale, mel)
        origin = _origin(given, found["train"], voice)
    else:
        voice, origin = load_voice(given.start_from), {}
        voice.check(model.spec)
    if given.density.channels:
        folder = given.workdir / "density"
        voice, outcome = train_density(voice, found, scale, given.density, folder)
        print(outcome.summary(folder, "best dev {:.3f} nats", ""))
        if outcome.exit_status:
            return outcome.exit_status
        origin |= _origin_of_density(given, voice, folder)
    if given.out is None:
        return 0
    voice = dataclasses.replace(voice, spec={**voice.spec, **origin})
    quality = _measure_voice(given, voice, model, found["dev"], scale, mel)
    spec = {**voice.spec, "gain_db": model.front.gain_db, "quality": quality}
    write(given.out, dataclasses.replace(voice, spec=spec))
    print(json.dumps(quality, indent=2))
    return 0


def write(folder: Path, voice: Voice) -> None:
    """Write a voice and its card to a folder; weights are stored as float16."""
    halves = {name: value.astype(np.float16) for name, value in voice.weights.items()}
    with replacing_folder(folder) as new:
        write_npz(new / WEIGHTS_FILE, halves)
        write_text(new / SPEC_FILE, json.dumps(voice.spec, indent=2) + "\n")
        write_text(new / "card.md", card(voice.spec))


def _finish_voice(
    given: Arguments, train_split: list[Example], scale: Scale, mel: MelConvention
) -> Voice:
    """Return the trained voice, its variance and durations corrected."""
    weights, step = read_trained_weights(given.workdir)
    sizes = VoiceConfig(len(scale.symbols) + 1, mel.bands)
    spec = {
        "kind": KIND,
        "config": to_json(sizes),
        "symbols": list(scale.symbols),
        "mel": mel.to_dict(),
        "harmonics": scale.table,
        "duration_stretch": 1.0,
    }
    plain = {"mel_stretch": np.ones_like(scale.weights["mel_mean"])}
    voice = Voice(sizes, scale.symbols, {**weights, **scale.weights, **plain}, spec)
    bands, seconds = variance_corrections(voice, train_split, scale)
    corrected = {**spec, "duration_stretch": seconds, "step": step}
    weights = {**voice.weights, "mel_stretch": bands}
    return dataclasses.replace(voice, weights=weights, spec=corrected)


def _measure_voice(
    given: Arguments, voice: Voice, model: Any, dev: list[Example], scale: Scale, mel: MelConvention
) -> dict[str, Any]:
    synthesised, sounds = measure_speech(voice, model, dev, mel, given.spoken)
    folder = given.workdir / "spoken"
    folder.mkdir(exist_ok=True)
    for name, pair in sounds.items():
        path = folder / Path(name).with_suffix(".wav").name
        audio.write(path, pair["text"], mel.sample_rate_hz)
        spectrogram_png(path.with_suffix(".png"), pair, mel.sample_rate_hz)
    seconds = sum(len(e.mel) for e in dev) * voice.hop_seconds
    return {
        "frames": frame_measures(voice, dev, scale),
        "speech": synthesised,
        "dev": {"recordings": len(dev), "seconds": seconds, "spoken": len(sounds)},
    }


def _origin(given: Arguments, train_split: list[Example], voice: Voice) -> dict:
    seconds = sum(len(e.mel) for e in train_split) * voice.hop_seconds
    asked = any(p.clause == QUESTION for e in train_split for p in e.phonemes)
    return {
        "data": given.data.name,
        "data_licence": given.data_licence,
        "questions": asked,
        "train_minutes": round(seconds / 60.0, 1),
        "weights": sum(value.size for value in voice.weights.values()),
        "steps": given.config.loop.num_steps,
        "training_seconds": round(training_seconds(given.workdir)),
        "machine": machine_name(),
        "model": given.model,
        "note": given.note,
        "command": f"python -m onepass.speech.train --data {given.data.name} --workdir run "
        f"--loop.num-steps {given.config.loop.num_steps} --out FOLDER",
    }


def _origin_of_density(given: Arguments, voice: Voice, folder: Path) -> dict:
    steps = given.density.loop.num_steps
    return {
        "weights": sum(value.size for value in voice.weights.values()),
        "density": {
            "steps": steps,
            "training_seconds": round(training_seconds(folder)),
            "machine": machine_name(),
            "command": f"python -m onepass.speech.train --data {given.data.name} --model "
            f"{given.model} "
            f"--workdir run --density.loop.num-steps {steps} --out FOLDER"
            + (" --start-from VOICE" if given.start_from else ""),
        },
    }


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Arguments)))
    except (UserError, OSError) as error:
        sys.exit(f"speech: {error}")
