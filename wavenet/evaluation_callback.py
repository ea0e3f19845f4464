"""What a run looks at while it trains: bits per sample on dev, a sound and its spectrogram."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from replicator.runs.errors import UserError
from replicator.runs.metrics import MetricsLog
from replicator.training.state import TrainState
from wavenet.data import audio
from wavenet.data.corpus import Corpus, whole
from wavenet.density import Density
from wavenet.network import WaveNet
from wavenet.plots import spectrogram_png
from wavenet.presets import TrainConfig
from wavenet.samplers.generation import Request, generate

NAMES_SHOWN = 5
SAMPLE_SECONDS = 2.0
DEV_SECONDS = 30.0  # of dev recordings looked at while training; `evaluate` takes them all


class Watcher:
    """Called by the trainer; gives the bits per sample on dev under the average weights."""

    def __init__(
        self, network: WaveNet, state: TrainState, corpus: Corpus, config: TrainConfig, folder: Path
    ):
        self.network, self.state, self.config, self.folder = network, state, config, folder
        self.density = Density(network)
        known = corpus.speakers[: config.network.speakers]
        self.recordings = up_to(
            dev_recordings(network, corpus, config.data.features, known),
            DEV_SECONDS * config.data.sample_rate_hz,
        )

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Bits per sample on dev; logs it, and a sound with its spectrogram."""
        with self.state.averaged():
            bits = self._bits()
            log.scalars(step, {"dev_bits_per_sample": bits})
            self._sample(log, step)
        return bits

    def _bits(self) -> float:
        total = samples = 0.0
        for item in self.recordings:
            levels = self.network.likelihood.encode(item["waveform"]).numpy()
            total -= float(
                np.sum(
                    self.density.log_prob(levels, *condition_of(self.network, item)),
                    dtype=np.float64,
                )
            )
            samples += len(levels)
        return total / samples / math.log(2.0)

    def _sample(self, log: MetricsLog, step: int) -> None:
        rate_hz = self.config.data.sample_rate_hz
        item = self.recordings[0]
        length = min(int(SAMPLE_SECONDS * rate_hz), len(item["waveform"]))
        frames, speaker = condition_of(self.network, item)
        request = Request(
            length,
            seed=0,
            frames=None if frames is None else frames[None],
            speaker=None if speaker is None else np.array([speaker], np.int32),
        )
        levels = generate(self.network, request)[0]
        waveform = self.network.likelihood.decode(levels).numpy()
        path = self.folder / f"step_{step:08d}"
        audio.write(path.with_suffix(".wav"), waveform, rate_hz)
        pair = {"sampled": waveform, "recorded": item["waveform"][:length]}
        spectrogram_png(path.with_suffix(".png"), pair, rate_hz)
        log.audio(step, "sample", waveform, rate_hz)
        log.image(
            step, "spectrogram", np.asarray(Image.open(path.with_suffix(".png")).convert("RGB"))
        )


def dev_recordings(
    network: WaveNet, corpus: Corpus, features: Sequence[str], known: Sequence[str]
) -> list[dict]:
    """The dev recordings that a network can be asked about, as `corpus.whole` gives them.

    Args:
      network: with speakers, those of others are left out and "speaker" is its number of one.
      corpus: whose dev split to take.
      features: see `corpus.whole`.
      known: the names of the network's speakers, in the order of their numbers.

    Raises UserError if none is left.
    """
    if not corpus.splits.get("dev"):
        raise UserError("There is no dev recording.")
    items = list(whole(corpus, "dev", features))
    if not network.config.speakers:
        return items
    names = [corpus.speakers[item["speaker"]] for item in items]
    kept = [
        {**item, "speaker": list(known).index(name)}
        for item, name in zip(items, names, strict=True)
        if name in known
    ]
    if not kept:
        raise UserError(
            f"No dev recording is of a speaker that the model knows ({_some(known)}); they are of "
            f"{_some(sorted(set(names)))}."
        )
    return kept


def condition_of(network: WaveNet, item: dict) -> tuple[np.ndarray | None, int | None]:
    """The frames and the speaker of a whole recording that the network is conditioned on."""
    return (
        item["frames"] if network.config.feature_channels else None,
        item["speaker"] if network.config.speakers else None,
    )


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(name or "(no name)" for name in names[:NAMES_SHOWN])
    return listed + (", ..." if len(names) > NAMES_SHOWN else "")


def up_to(items: list[dict], samples: float) -> list[dict]:
    """The first recordings, at least one, that together last so many samples."""
    chosen: list[dict] = []
    for item in items:
        if chosen and sum(len(i["waveform"]) for i in chosen) + len(item["waveform"]) > samples:
            break
        chosen.append(item)
    return chosen
