"""The recordings that a model is evaluated on, and their conditions."""

from collections.abc import Sequence

import numpy as np

from onepass.foundation.files import first_of
from onepass.foundation.rules import UserError
from wavenet.data.corpus import Corpus, full_recordings
from wavenet.dev_parts import DevPart, dev_part
from wavenet.network import WaveNet

LONGEST_SECONDS = 30  # longer recordings are cut, to bound memory


def dev_recordings(
    network: WaveNet,
    corpus: Corpus,
    features: Sequence[str],
    known: Sequence[str],
    part: DevPart = "dev",
) -> list[dict]:
    """Return a part of the dev recordings by speakers that the network knows.

    They are items of `full_recordings`, cut to `LONGEST_SECONDS`. With the names `known`,
    recordings by others are left out, and "speaker" is the index in `known`.
    """
    if not corpus.splits.get("dev"):
        raise UserError("There is no dev recording.")
    most = LONGEST_SECONDS * corpus.sample_rate_hz
    items = [
        _beginning(item, most, corpus.hop_samples)
        for item in full_recordings(corpus, "dev", features)
    ]
    if network.config.speakers:
        items = _of_known_speakers(items, corpus.speakers, known)
    return dev_part(items, part)


def _beginning(item: dict, samples: int, hop_samples: int) -> dict:
    if len(item["waveform"]) <= samples:
        return item
    cut = {name: item[name][:samples].copy() for name in ("waveform", "samples")}
    if "frames" in item:
        cut["frames"] = item["frames"][: -(-samples // hop_samples)].copy()
    return {**item, **cut}


def _of_known_speakers(
    items: Sequence[dict], speakers: Sequence[str], known: Sequence[str]
) -> list[dict]:
    names = [speakers[item["speaker"]] for item in items]
    pairs, number = zip(items, names, strict=True), {name: n for n, name in enumerate(known)}
    kept = [{**item, "speaker": number[name]} for item, name in pairs if name in number]
    if not kept:
        others = first_of([name or "(no name)" for name in sorted(set(names))])
        raise UserError(
            f"No dev recording is of a speaker that the model knows ({first_of(known)}); they "
            f"are of {others}."
        )
    return kept


def condition_of(network: WaveNet, item: dict) -> tuple[np.ndarray | None, int | None]:
    """Return a recording's frames and speaker; each is None if the network does not use it."""
    return (
        item["frames"] if network.config.feature_channels else None,
        item["speaker"] if network.config.speakers else None,
    )


def up_to(items: list[dict], samples: float) -> list[dict]:
    """Return the first recordings, at least one, with a total length of at most `samples`."""
    chosen: list[dict] = []
    for item in items:
        if chosen and sum(len(i["waveform"]) for i in chosen) + len(item["waveform"]) > samples:
            break
        chosen.append(item)
    return chosen
