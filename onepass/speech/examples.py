"""Examples for training a voice: texts aligned with the frames of their recordings.

Every phoneme is a left-to-right chain of states, and every state has a diagonal Gaussian over
cepstra. Starting from an initial path, each round fits the states to their frames and then computes
the best path through each recording, until the likelihood converges (Rabiner 1989, section V,
"segmental k-means"):

    score[t, j] = log N(x_t; mean_j, variance_j)
                  + max(score[t - 1, j], score[t - 1, j - 1],
                        score[t - 1, j - 2] if skippable[j - 1])
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.fft

from onepass.foundation.rules import UserError
from onepass.foundation.runtime import in_threads
from onepass.speech.phonemes import COMMA, PAUSES, STOP, Phoneme, phonemes
from wavenet.config import MelConvention, PitchConvention
from wavenet.data.corpus import Corpus, Prepared, prepare
from wavenet.data.recordings import SPLITS, scan
from wavenet.features.frames import above_silence, log_f0_features

CEPSTRA = 13
STATES = 3  # per phoneme; the middle one may be skipped, so a phoneme lasts at least two frames
VARIANCE_FLOOR = 0.01  # share of the variance of all frames
VOWELS = "aeiouAEIOUV03@"
NEVER = -1e30
MOST_ROUNDS = 15  # of the training of an alignment


@dataclasses.dataclass(frozen=True)
class Chain:
    """The states of a recording, left to right, int or bool [states]."""

    state: np.ndarray  # the number of each state's Gaussian
    unit: np.ndarray  # index in the recording of the phoneme that each state belongs to
    skippable: np.ndarray  # whether a path may skip the state; never two in a row


def chain(numbers: Sequence[int], optional: Sequence[bool]) -> Chain:
    """Return the chain of states for phonemes whose Gaussians start at `number * STATES`.

    An optional phoneme may be missing and has a single state.
    """
    state, unit, skippable = [], [], []
    for place, (number, missing) in enumerate(zip(numbers, optional, strict=True)):
        for step in range(1 if missing else STATES):
            state.append(number * STATES + step)
            unit.append(place)
            skippable.append(missing or step == 1)
    return Chain(np.array(state), np.array(unit), np.array(skippable))


def cepstra(mel: np.ndarray) -> np.ndarray:
    """Return the cepstra of log-mel frames with first and second deltas, [frames, 3 * CEPSTRA]."""
    base = scipy.fft.dct(mel, norm="ortho", axis=1)[:, :CEPSTRA]
    first = _slope(base)
    return np.concatenate([base, first, _slope(first)], axis=1).astype(np.float32)


def _slope(frames: np.ndarray) -> np.ndarray:
    padded = np.pad(frames, ((2, 2), (0, 0)), mode="edge")
    return (2.0 * (padded[4:] - padded[:-4]) + padded[3:-1] - padded[1:-3]) / 10.0


def best_path(scores: np.ndarray, skippable: np.ndarray) -> np.ndarray:
    """Return the states of the best path from the first state to the last, int [frames].

    `scores`, float [frames, states], are the log-likelihoods of each frame in each state; a path
    may skip the `skippable` states, bool [states], the first and the last one too.
    """
    frames, states = scores.shape
    if frames < states - int(skippable.sum()):
        raise ValueError(
            f"`scores` must have at least {states - int(skippable.sum())} frames, got {frames}."
        )
    # A path may jump over a state only if the state is skippable.
    jump = np.full(states, NEVER)
    jump[2:][skippable[1:-1]] = 0.0
    total = np.full(states, NEVER)
    total[0] = scores[0, 0]
    if skippable[0] and states > 1:
        total[1] = scores[0, 1]
    came = np.zeros((frames, states), np.int8)
    for frame in range(1, frames):
        options = np.full((3, states), NEVER)
        options[0] = total
        options[1, 1:] = total[:-1]
        options[2, 2:] = total[:-2]
        options[2] += jump
        came[frame] = np.argmax(options, axis=0)
        # Unreachable states stay at NEVER instead of decreasing with every frame.
        total = np.maximum(np.take_along_axis(options, came[frame][None], 0)[0], NEVER)
        total = total + scores[frame]
    last = states - 1
    if last and skippable[last] and total[last - 1] > total[last]:
        last -= 1
    path = np.empty(frames, np.int64)
    for frame in range(frames - 1, -1, -1):
        path[frame] = last
        last -= int(came[frame, last])
    return path


def initial_path(frames: int, chain: Chain, weights: np.ndarray) -> np.ndarray:
    """Return the path in which states get frames in proportion to `weights`, int [frames]."""
    ends = np.cumsum(weights) / np.sum(weights) * frames
    return np.searchsorted(ends, np.arange(frames) + 0.5).clip(0, len(chain.state) - 1)


def typical_lengths(symbols: Sequence[str], chain: Chain) -> np.ndarray:
    """Return relative lengths of states, float [states], as the weights of `initial_path`.

    A vowel counts 2, a consonant 1 and an optional pause 0, divided equally among its states.
    """
    length = np.array([2.0 if any(c in VOWELS for c in s) else 1.0 for s in symbols])
    optional = np.bincount(chain.unit, chain.skippable) == np.bincount(chain.unit)
    length[optional] = 0.0
    return (length / np.bincount(chain.unit))[chain.unit]


def _fit_gaussians(
    features: Sequence[np.ndarray], phoneme_of_frame: Sequence[np.ndarray], count: int
) -> tuple[np.ndarray, np.ndarray]:
    x, owner = np.concatenate(features), np.concatenate(phoneme_of_frame)
    number = np.bincount(owner, minlength=count)[:, None]
    mean, square = np.zeros((2, count, x.shape[1]))
    np.add.at(mean, owner, x)
    np.add.at(square, owner, x.astype(np.float64) ** 2)
    overall = x.mean(axis=0), x.var(axis=0)
    # Two extra frames with the statistics of the whole data regularise Gaussians with few frames.
    mean = (mean + 2.0 * overall[0]) / (number + 2.0)
    square = (square + 2.0 * (overall[1] + overall[0] ** 2)) / (number + 2.0)
    return mean, np.maximum(square - mean**2, VARIANCE_FLOOR * overall[1])


def _scores(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return log N(x; mean, variance) without the constant, float [frames, states]."""
    precise = 1.0 / variance
    distance = (x**2) @ precise.T - 2.0 * x @ (mean * precise).T + np.sum(mean**2 * precise, axis=1)
    return -0.5 * (distance + np.sum(np.log(variance), axis=1))


@dataclasses.dataclass(frozen=True)
class Aligned:
    """The best path through every recording."""

    paths: list[np.ndarray]  # every frame's state, an index in the recording's chain, int [frames]
    gain: tuple[float, ...]  # of the mean log-likelihood per frame in each round, in nats


def align(
    features: Sequence[np.ndarray],
    chains: Sequence[Chain],
    guesses: Sequence[np.ndarray],
    count: int,
) -> Aligned:
    """Return the best path through every recording, by Viterbi training from the paths `guesses`.

    It stops when the mean log-likelihood per frame rises by less than 0.001 nats. The features are
    cepstra, float [frames, channels].
    """
    paths, before = list(guesses), None
    gains: list[float] = []
    for _ in range(MOST_ROUNDS):
        phoneme_of_frame = [c.state[path] for c, path in zip(chains, paths, strict=True)]
        mean, variance = _fit_gaussians(features, phoneme_of_frame, count)
        paths, total, frames = [], 0.0, 0
        for x, c in zip(features, chains, strict=True):
            scores = _scores(x, mean, variance)[:, c.state]
            paths.append(best_path(scores, c.skippable))
            total += float(scores[np.arange(len(x)), paths[-1]].sum())
            frames += len(x)
        if before is not None:
            gains.append(total / frames - before)
        before = total / frames
        if gains and gains[-1] < 1e-3:
            break
    return Aligned(paths, tuple(gains))


def durations(path: np.ndarray, chain: Chain) -> np.ndarray:
    """Return the number of frames of each phoneme of a recording, int [phonemes]."""
    return np.bincount(chain.unit[path], minlength=int(chain.unit[-1]) + 1)


PAUSE_FRAMES = 3  # a shorter silence between words is not a pause


@dataclasses.dataclass(frozen=True)
class Example:
    """An aligned recording."""

    name: str
    text: str
    phonemes: tuple[Phoneme, ...]  # of the text, with only the pauses that the speaker made
    durations: np.ndarray  # number of frames of each phoneme, int [phonemes]
    mel: np.ndarray  # on the scale of `above_silence`, float32 [frames, bands]
    pitch: np.ndarray  # the columns of `log_f0_features`, float32 [frames, 2]


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
        initial_path(len(features[n]), chains[n], typical_lengths(names[n], chains[n]))
        for n in kept
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
