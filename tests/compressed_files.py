"""Compressed files of every variant, as earlier programs wrote them: their models and elements.

The weights come from integer arithmetic, so that a file is of the same model on every machine; the
elements, drawn from the model and a few that it did not expect, are stored. `python
tests/compressed_files.py` writes the files that are missing.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fine_models import LEVELS, Steps, mixed, outputs, softmax

FOLDER = Path(__file__).parent / "onepass" / "compression" / "files"
ELEMENTS = FOLDER / "elements.npz"


def words(count: int, seed: int) -> np.ndarray:
    """Integers in [0, 1024) that look random, int64 [count]."""
    mixed = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(7919 * seed)) * np.uint64(
        2654435761
    )
    mixed = (mixed % np.uint64(2**32)) ^ (mixed % np.uint64(2**32) >> np.uint64(15))
    mixed = mixed * np.uint64(2246822519) % np.uint64(2**32)
    return (mixed >> np.uint64(22)).astype(np.int64)


def exact(variables: Any, gain: float = 1.0) -> None:
    """Give variables weights that are multiples of a power of two."""
    for i, variable in enumerate(variables):
        shape = tuple(variable.shape)
        fan = int(np.prod(shape[:-1])) if shape else 1
        drawn = (words(int(np.prod(shape)), 100 + i).reshape(shape) - 512) / 512.0
        variable.assign((gain * drawn * 2.0 ** -(fan.bit_length() // 2)).astype(np.float32))


@dataclasses.dataclass(frozen=True)
class Case:
    """A compressed file."""

    model: Callable[[], Any]
    draw: Callable[[Any, dict[str, Any]], np.ndarray]  # elements to store
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of `compress`
    versions: tuple[int, ...] = (2,)  # of the format in which there is a file


def images(architecture: str, gain: float = 1.0) -> Callable[[], Any]:
    def make():
        import image_densities

        model = image_densities.model_of(architecture)
        exact(model.network.trainable_variables, gain)
        return model

    return make


def pixels(model: Any, options: dict[str, Any]) -> np.ndarray:
    drawn = model.sample(condition=options["condition"], seed=1, num=5)
    drawn[1, :2] = 255
    return drawn


def sound(**fields: Any) -> Callable[[], Any]:
    def make():
        from onepass.trained import Trained
        from wavenet.config import DataConfig, WaveNetConfig
        from wavenet.front import SoundFront
        from wavenet.model import SoundSampler
        from wavenet.network import WaveNet

        small = dict(layers=4, stacks=2, residual_channels=6, gate_channels=6, skip_channels=8)
        network = WaveNet(WaveNetConfig(**(small | fields)), 0)
        exact(network.trainable_variables)
        speakers = ("one", "two", "three")[: network.config.speakers]
        config: Any = None
        front = SoundFront(DataConfig(), 1, 0.0, speakers)
        return Trained(SoundSampler(network, config), front, {"kind": "wavenet"})

    return make


def samples(model: Any, options: dict[str, Any]) -> np.ndarray:
    from wavenet.front import Request
    from wavenet.samplers.generation import generate

    speaker = None
    if "speaker" in options:
        speaker = np.array([model.front.speaker_number(options["speaker"])])
    levels = generate(model.network, Request(SAMPLES, 1, speaker=speaker), "cached")[0]
    levels[20:25] = (top := model.network.config.levels) // 2
    return (levels - top // 2).astype(np.int16) if top == LEVELS else levels.astype(np.uint8)


def recordings(drawn: np.ndarray) -> list[np.ndarray]:
    """Three recordings of stored samples."""
    return np.split(drawn, [90, 91])


def rows(*shape: int) -> Callable[[Any, dict[str, Any]], np.ndarray]:
    def draw(model: Any, options: dict[str, Any]) -> np.ndarray:
        length = shape[1] if len(shape) == 2 else shape[1:]
        symbols = model.symbols(model.sample(shape[0], length, 1, **options)).numpy()
        symbols[0, 1], symbols[0, 2] = 0, model.codec.levels - 1
        return model.codec.decode(symbols).numpy()

    return draw


def own(name: str) -> Callable[[], Any]:
    """A model of `own_models`, of exact weights."""

    def make():
        import own_models

        model = own_models.MAKERS[name]()
        exact(model.network.trainable_variables)
        return model

    return make


def of(network: Callable, distribution: str, *sizes: Any) -> Callable[[], Any]:
    """A model of a function."""

    def make():
        import onepass

        return onepass.Autoregressive(network, getattr(onepass.likelihoods, distribution)(*sizes))

    return make


def one_condition(shape: tuple[int, ...]) -> np.ndarray:
    return ((words(int(np.prod(shape)), 3) - 512) / 512.0).astype(np.float32).reshape(shape)


def of_images(architecture: str, gain: float = 1.0, **options: Any) -> Case:
    return Case(images(architecture, gain), pixels, options, versions=(1,))


def of_sound(options: dict[str, Any] | None = None, **fields: Any) -> Case:
    return Case(sound(**fields), samples, options or {}, versions=(3,))


CLASSES = ["cat", 2, "eel", 1, 0]
MAPS = [np.full([8, 8], i % 2) for i in range(5)]
CAPTIONS = ["stripes", "a slope", "stripes", "a slope", "a bright half"]
SAMPLES = 150
DRAWN_WITH = ("condition", "speaker")  # options of `compress` that a sampler takes too
OLD = (1, 2)  # arrays of the first version have other least scales and another digest
LOGISTICS = of(mixed, "LogisticMixture", LEVELS, 3)
TWO = (2, 24)
LINEAR = dict(filter_width=2, components=3, front_width=5, linear_prediction=True, input_gain=4.0)
OF_SPEAKERS = dict(likelihood="categorical", levels=256, filter_width=2, speakers=3)
CASES: dict[str, Case] = {
    "pixelcnn": of_images("PixelCNN", condition=CLASSES, batch=2),
    "pixelcnn-tolerance-0": of_images("PixelCNN", condition=2, tolerance=0.0),
    "pixelcnn-tolerance-1e-3": of_images("PixelCNN", condition=2, tolerance=1e-3),
    "softmax": of_images("PixelCNN, softmax", 4.0, condition=1, batch=3),
    "maps": of_images("PixelCNN, maps", condition=MAPS),
    "colour": of_images("multiscale A, colour", condition=CLASSES, batch=2),
    "captions": of_images("multiscale B, captions", condition=CAPTIONS),
    "sound": of_sound(**LINEAR),
    "sound-tolerance-0": of_sound({"tolerance": 0.0}, filter_width=3, components=2),
    "sound-tolerance-1e-3": of_sound({"tolerance": 1e-3}, filter_width=3, components=2),
    "gaussian": of_sound(likelihood="gaussian", filter_width=3),
    "speakers": of_sound({"speaker": "two"}, **OF_SPEAKERS),
    "logistics": Case(LOGISTICS, rows(*TWO), versions=OLD),
    "logistics-tolerance-0": Case(LOGISTICS, rows(*TWO), {"tolerance": 0.0}),
    "logistics-tolerance-1e-3": Case(LOGISTICS, rows(*TWO), {"tolerance": 1e-3}),
    "normals": Case(of(mixed, "GaussianMixture", LEVELS, 3), rows(*TWO), versions=OLD),
    "normal": Case(of(outputs, "Gaussian", LEVELS), rows(*TWO)),
    "softmax-arrays": Case(of(softmax, "Categorical", 1000), rows(*TWO), versions=OLD),
    "cumulative": Case(of(outputs, "FromTFP", Steps, 2, LEVELS), rows(*TWO), versions=OLD),
    "table": Case(own("own"), rows(3, 20), versions=OLD),
    "conditioned": Case(own("conditioned"), rows(*TWO), {"condition": one_condition((2, 24, 2))}),
    "grey": Case(own("picture"), rows(2, 4, 5, 1), versions=OLD),
    "classes": Case(own("classes"), rows(2, 4, 5, 1), {"condition": np.array([3, 1])}),
}
FILES = [(name, version) for name, case in CASES.items() for version in case.versions]


def path_of(name: str, version: int) -> Path:
    return FOLDER / f"{name}.v{version}.onepass"


def compressed(case: Case, model: Any, drawn: np.ndarray, **more: Any) -> bytes:
    """The file of a case's stored elements."""
    import onepass

    if model.kind == "autoregressive":
        return onepass.compress(model, drawn, **case.options, **more)
    whole = recordings(drawn) if case.draw is samples else drawn
    return model.compress(whole, **case.options, **more)


def stored() -> dict[str, np.ndarray]:
    if not ELEMENTS.exists():
        return {}
    with np.load(ELEMENTS) as found:
        return dict(found)


def main() -> None:
    """Write the files that are missing."""
    from onepass.compression.container import read

    FOLDER.mkdir(exist_ok=True)
    elements = stored()
    for name, case in CASES.items():
        model = case.model()
        if name not in elements:
            options = {key: case.options[key] for key in DRAWN_WITH if key in case.options}
            elements[name] = case.draw(model, options)
        data = compressed(case, model, elements[name])
        path = path_of(name, read(data).version)
        if not path.exists():
            path.write_bytes(data)
            print(f"{path}: {len(data):,} bytes")
    np.savez_compressed(ELEMENTS, allow_pickle=False, **elements)


if __name__ == "__main__":
    main()
