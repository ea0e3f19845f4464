"""A self-contained HTML page for comparing systems by ear on the same recordings."""

import base64
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import soundfile
from PIL import Image

from onepass.foundation.files import write_text
from wavenet.data.audio import resample
from wavenet.plots import DB_RANGE, level_db

RECORDINGS = 5  # on a page
OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
# The order of systems on a page: recording, teacher, model, its peers, and controls last.
BEFORE_PEERS = ("recording", "teacher", "model", "student")
CONTROLS = (
    *("world", "griffin_lim_mel_consistent", "griffin_lim"),
    *("source_filter", "untrained"),
)
FIGURES = {  # measures in the caption of a sound, with format strings
    "dnsmos_p808": "DNSMOS {:.2f}",
    "plcmos": "PLCMOS {:.2f}",
    "pesq": "PESQ {:.2f}",
    "f0_within_50_cents": "F0 within 50 cents {:.0%}",
    "level_difference_db": "level {:+.1f} dB",
}
WIDTH, HEIGHT = 360, 128  # size of a spectrogram in pixels
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem }
section { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)) }
figure { margin: 0 } img, audio { display: block; width: 100% } small { display: block }
img { border-radius: 4px } figcaption { font-weight: 600 } h2 { font-size: 1.1rem }
"""


class ListeningPage:
    """A callback for `copy_synthesis.compare` that collects waveforms for a page to `write`."""

    def __init__(self, path: Path, title: str, sample_rate_hz: int) -> None:
        self.path, self.title, self._rate_hz = path, title, sample_rate_hz
        self._sounds: dict[str, list[np.ndarray]] = {}
        self._measures: dict[str, list[Mapping[str, float]]] = {}
        self._names: list[str] = []

    def __call__(
        self,
        system: str,
        sounds: Sequence[np.ndarray],
        items: Sequence[dict],
        measures: Sequence[Mapping[str, float]],
    ) -> None:
        """Store the waveforms and measures of a system's first `RECORDINGS` recordings."""
        self._sounds[system] = list(sounds[:RECORDINGS])
        self._measures[system] = list(measures[:RECORDINGS])
        self._names = [item.get("text") or item["name"] for item in items[:RECORDINGS]]

    def write(self) -> None:
        """Write the page."""
        sections = (self._section(number, name) for number, name in enumerate(self._names))
        title = html.escape(self.title)
        write_text(
            self.path,
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
            "<p>The same recordings by every system, each from the recording's own features. "
            "Sounds are Opus files inside this page. Spectrograms reach up to "
            f"{self._rate_hz / 2000:g} kHz; their colours span {DB_RANGE:g} dB. "
            "The measures under each player were computed before compression with Opus; those that "
            "need a reference compare the sound with the recording.</p>\n"
            + "\n".join(sections)
            + "\n</body></html>\n",
        )

    def _section(self, number: int, name: str) -> str:
        figures = "\n".join(
            self._figure(system, self._sounds[system][number], self._measures[system][number])
            for system in order_systems(self._sounds)
        )
        return f"<h2>{html.escape(name)}</h2>\n<section>\n{figures}\n</section>"

    def _figure(self, system: str, sound: np.ndarray, measures: Mapping[str, float]) -> str:
        words = html.escape(system.replace("_", " "))
        given = {name: measures[name] for name in FIGURES if name in measures}
        said = ", ".join(FIGURES[n].format(v) for n, v in given.items() if math.isfinite(v))
        image = _data("image/jpeg", spectrogram_jpeg(sound, self._rate_hz))
        opus = _data("audio/ogg", opus_file(sound, self._rate_hz))
        return (
            f'<figure><figcaption>{words}</figcaption><img alt="spectrogram, {words}" '
            f'src="{image}"><audio controls preload="none" src="{opus}"></audio>'
            f"<small>{said}</small></figure>"
        )


def order_systems(systems: Iterable[str]) -> list[str]:
    """Return the system names in display order; NAME_at_TEMPERATURE follows NAME."""
    names = list(systems)
    families = {name: name.rsplit("_at_", 1)[0] for name in names}

    def rank(name: str) -> tuple[int, int]:
        family = families[name]
        if family in BEFORE_PEERS:
            return 0, BEFORE_PEERS.index(family)
        if family in CONTROLS:
            return 2, CONTROLS.index(family)
        return 1, list(families.values()).index(family)

    return sorted(names, key=rank)


def opus_file(sound: np.ndarray, sample_rate_hz: int) -> bytes:
    """Return the content of an Ogg Opus file of a waveform [samples] in [-1, 1], about 4 kB/s."""
    rate_hz = next((rate for rate in OPUS_RATES_HZ if rate >= sample_rate_hz), OPUS_RATES_HZ[-1])
    file = io.BytesIO()
    resampled = resample(sound, sample_rate_hz, rate_hz)
    soundfile.write(file, resampled, rate_hz, format="OGG", subtype="OPUS")
    return file.getvalue()


def spectrogram_jpeg(sound: np.ndarray, sample_rate_hz: int) -> bytes:
    """Return the content of a small JPEG spectrogram that spans `DB_RANGE` dB below the peak."""
    level = level_db(np.asarray(sound, np.float64), sample_rate_hz)
    shade = np.clip((level - level.max()) / DB_RANGE + 1.0, 0.0, 1.0)
    colours = matplotlib.colormaps["magma"](shade[::-1], bytes=True)[..., :3]
    file = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(colours))
    image.resize((WIDTH, HEIGHT), Image.Resampling.BOX).save(file, "JPEG", quality=60)
    return file.getvalue()


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
