"""Recordings with their phonemes and each phoneme's number of frames."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.cores import in_threads
from onepass.foundation.errors import UserError
from onepass.speech.alignment import STATES, align, cepstra, chain, durations, initial_path
from onepass.speech.alignment import typical_lengths as typical
from onepass.speech.phonemes import COMMA, PAUSES, STOP, Phoneme, phonemes
from wavenet.data import SPLITS, Corpus, Prepared, prepare, scan
from wavenet.features import MelConvention, PitchConvention, above_silence, log_f0_features

PAUSE_FRAMES = 3  # a shorter silence between words is not a pause


@dataclasses.dataclass(frozen=True)
class Example:
    """An aligned recording.

    Attributes:
      phonemes: the phonemes of the text, with only the pauses that the speaker made.
      durations: int [phonemes], number of frames of each phoneme.
      mel: float32 [frames, bands], mel frames on the scale of `above_silence`.
      pitch: float32 [frames, 2], the columns of `log_f0_features`.
    """

    name: str
    text: str
    phonemes: tuple[Phoneme, ...]
    durations: np.ndarray
    mel: np.ndarray
    pitch: np.ndarray


def prepare_corpus(
    data: Path, mel: MelConvention, gain_db: float, cache_folder: str | os.PathLike[str] | None
) -> Corpus:
    """Return the recordings of a folder with their mel and pitch frames."""
    report = scan(data, mel.sample_rate_hz, cache_folder=cache_folder)
    pitch = PitchConvention(mel.sample_rate_hz, mel.hop_samples, 90.0, 450.0)
    corpus = prepare(report, mel=mel, pitch=pitch, gain_db=gain_db, cache_folder=cache_folder)
    for split in SPLITS:
        if not any(p.text for p in corpus.splits.get(split, ())):
            raise UserError(f"{data}: no recording of {split} has a text in a table.")
    return corpus


def examples(corpus: Corpus, mel: MelConvention) -> dict[str, list[Example]]:
    """Return the aligned examples of each split; one alignment is trained on all splits.

    Recordings without a text or too short for their phonemes are left out.
    """
    spoken = [p for members in corpus.splits.values() for p in members if p.text]
    sequences = in_threads(lambda p: _between_words(phonemes(p.text)), spoken, "reading", "text")
    found = _align_examples(mel, spoken, sequences)
    names = {p.name: split for split, members in corpus.splits.items() for p in members}
    return {split: [e for e in found if names[e.name] == split] for split in corpus.splits}


def _between_words(spoken: Sequence[Phoneme]) -> list[Phoneme]:
    found: list[Phoneme] = []
    for phoneme in spoken:
        if phoneme.starts_word and found and not found[-1].is_pause:
            found.append(Phoneme(COMMA, clause=phoneme.clause))
        found.append(phoneme)
    return found


def _align_examples(
    mel: MelConvention, spoken: Sequence[Prepared], sequences: Sequence[Sequence[Phoneme]]
) -> list[Example]:
    # The aligner treats all pauses as the same silence; only the network distinguishes them.
    names = [[STOP if p.is_pause else p.symbol for p in s] for s in sequences]
    number = {name: n for n, name in enumerate(sorted({name for s in names for name in s}))}
    optional = [[p.is_pause for p in s] for s in sequences]
    chains = [chain([number[name] for name in s], o) for s, o in zip(names, optional, strict=True)]
    features = [cepstra(p.mel) for p in spoken]
    fits = [len(x) >= np.sum(~c.skippable) for x, c in zip(features, chains, strict=True)]
    kept = [n for n, fit in enumerate(fits) if fit]
    guesses = [
        initial_path(len(features[n]), chains[n], typical(names[n], chains[n])) for n in kept
    ]
    chains, features = [chains[n] for n in kept], [features[n] for n in kept]
    found = align(features, chains, guesses, len(number) * STATES)
    return [
        _example(mel, spoken[n], sequences[n], durations(path, c))
        for n, path, c in zip(kept, found.paths, chains, strict=True)
    ]


def _example(
    mel: MelConvention, recording: Prepared, sequence: Sequence[Phoneme], frames: np.ndarray
) -> Example:
    made, lengths = _pauses_made(sequence, frames)
    loudness = above_silence(recording.mel, mel)
    pitch = log_f0_features(recording.f0_hz, recording.f0_hz > 0.0)
    return Example(recording.name, recording.text, made, lengths, loudness, pitch)


def _pauses_made(
    sequence: Sequence[Phoneme], frames: np.ndarray
) -> tuple[tuple[Phoneme, ...], np.ndarray]:
    """Return the phonemes and their lengths without pauses shorter than PAUSE_FRAMES.

    Their frames are added to the phoneme before them or, at the start, after them.
    """
    made: list[Phoneme] = []
    lengths: list[int] = []
    owed = 0
    for phoneme, count in zip(sequence, frames.tolist(), strict=True):
        if phoneme.symbol in PAUSES and count < PAUSE_FRAMES:
            if lengths:
                lengths[-1] += count
            else:
                owed += count
            continue
        made.append(phoneme)
        lengths.append(count + owed)
        owed = 0
    return tuple(made), np.array(lengths)
