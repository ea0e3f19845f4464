"""The bundles that `onepass bench serving` serves, and the arrays that they are called with."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import soundfile
import tensorflow as tf

import speech.phonemes
from onepass.bench.serving.arguments import DIGITS, SHIPPED, STUDENT
from replicator.runs.errors import UserError
from replicator.runs.progress import Progress
from serving.bundles.bundle import FORMAT, SPEC_FILE
from serving.bundles.export import export
from serving.bundles.export_arguments import ExportArguments
from serving.bundles.feature_extractor import feature_extractor
from serving.bundles.manifest import write_manifest
from serving.bundles.signature import COMPILED, PLAIN, Arrays, Signature, TensorInfo
from serving.http.example_recordings import examples
from serving.http.uploaded_recordings import decode_recording

NULL = "null"
LARGE = "null 64KB"  # the same bundle, called with more
SMALL_VALUES, LARGE_VALUES = 16, 16_000  # float32
BATCHES = (1, 2, 4, 8)
LABEL = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """What is called: a bundle NAME/1, and an .npz file with the inputs of a call of one row."""

    folder: Path
    inputs: Path

    @property
    def model(self) -> str:
        """The name that the bundle is served under."""
        return self.folder.parent.name


@dataclasses.dataclass(frozen=True)
class Utterance:
    """What is spoken: the frames of a recording, and the recording itself.

    has_text: whether a text can be spoken as well.
    """

    case: Case
    wav: Path
    has_text: bool = False


def bundles(folder: Path, names: tuple[str, ...], given: Path | None) -> dict[str, Path]:
    """The folder NAME/1 of each bundle, made in `folder`, or copied from there if it is given.

    Shipped models are exported in the fewest sizes: a student to one row, which is how it speaks.
    """
    made = {name: folder / f"models-{name}" / name / "1" for name in names}
    with Progress(len(made), "exporting", "bundle") as progress:
        for name, path in made.items():
            if name == NULL:
                write_null(path)
            elif given is not None:
                copy(_latest(given / name), path)
            else:
                batches = (1,) if name == STUDENT else ()
                export(ExportArguments(Path(SHIPPED[name]), path, batches=batches, warm=False))
            progress.advance()
    return made


def copy(bundle: Path, folder: Path) -> None:
    """Writes the same bundle to another folder."""
    shutil.copytree(bundle, folder)


def _latest(folder: Path) -> Path:
    versions = [path for path in folder.glob("*") if path.name.isdecimal()]
    if not versions:
        raise UserError(f"There is no bundle {folder}/VERSION.")
    return max(versions, key=lambda path: int(path.name))


def write_null(folder: Path) -> None:
    """Writes a bundle whose call gives the values back that it is given."""
    spec = tf.TensorSpec([None, None], tf.float32, name="values")
    module = tf.Module()
    call = tf.function(lambda values: {"values": tf.identity(values)}, input_signature=[spec])
    concrete = call.get_concrete_function()
    tf.saved_model.save(module, str(folder), {PLAIN: concrete, COMPILED: concrete})
    values = {"values": TensorInfo(np.dtype(np.float32), (None, None))}
    signature = Signature(values, values).to_dict()
    serving = {
        "format": FORMAT,
        "signatures": {PLAIN: signature, COMPILED: signature},
        "allowed_batches": BATCHES,
        "limits": {"max_batch": max(BATCHES)},
    }
    said = {"kind": "pixelcnn", "size": 1, "channels": 1, "classes": [], "serving": serving}
    (folder / SPEC_FILE).write_text(json.dumps(said), encoding="utf-8")
    write_manifest(folder)


def cases(folder: Path, made: dict[str, Path]) -> dict[str, Case]:
    """What is called of the bundles there are, by the name that rows have for it."""
    models = {NULL: NULL, LARGE: NULL, DIGITS: DIGITS}
    return {
        name: Case(made[models[name]], _stored(folder, name, inputs))
        for name, inputs in inputs_by_case().items()
        if models[name] in made
    }


def inputs_by_case() -> dict[str, Arrays]:
    """Of the null bundle, few and many numbers; of the digits, one of them."""
    generator = np.random.default_rng(0)
    inputs: dict[str, Arrays] = {
        name: {"values": generator.normal(size=[1, size]).astype(np.float32)}
        for name, size in ((NULL, SMALL_VALUES), (LARGE, LARGE_VALUES))
    }
    inputs[DIGITS] = {"label": np.array([LABEL], np.int32), "seed": np.array([1], np.int64)}
    return inputs


def utterance(folder: Path, bundle: Path, seconds: float) -> Utterance:
    """So many seconds of shipped recordings, and their frames."""
    spec = json.loads((bundle / SPEC_FILE).read_text(encoding="utf-8"))
    rate_hz = spec["sample_rate_hz"]
    waveforms = [
        decode_recording(each.path.read_bytes(), rate_hz, max_seconds=each.seconds + 1)
        for each in examples().values()
    ]
    length = round(seconds * rate_hz)
    waveform = np.resize(np.concatenate(waveforms), [length])
    wav = folder / "utterance.wav"
    soundfile.write(wav, waveform, rate_hz, subtype="PCM_16")
    frames = np.asarray(feature_extractor(spec).frames(waveform), np.float32)[None]
    inputs = {"frames": frames, "num_frames": np.array([frames.shape[1]], np.int32)}
    has_text = shutil.which(speech.phonemes.PROGRAM) is not None
    return Utterance(Case(bundle, _stored(folder, STUDENT, inputs)), wav, has_text)


def _stored(folder: Path, name: str, inputs: Arrays) -> Path:
    path = folder / f"{name.replace(' ', '_')}.npz"
    np.savez(path, **inputs)  # type: ignore[arg-type]
    return path
