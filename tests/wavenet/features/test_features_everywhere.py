"""The same sound has the same frames with any number of threads, on any processor."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import hashlib
import numpy as np
from wavenet.features.conventions import MelConvention
from wavenet.features.frames import mel_spectrogram
sound = np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32)
print(hashlib.sha256(mel_spectrogram(sound, MelConvention(16_000, 200)).tobytes()).hexdigest())
"""
NO_WIDE_VECTORS = "X86_V3 X86_V4 AVX2 FMA3 AVX512F AVX512_SKX AVX512_ICL"
SURROUNDINGS = {
    "one thread": {"OPENBLAS_NUM_THREADS": "1"},
    "two threads": {"OPENBLAS_NUM_THREADS": "2"},
    "an old processor's BLAS": {"OPENBLAS_CORETYPE": "Prescott"},
    "no wide vectors": {"NPY_DISABLE_CPU_FEATURES": NO_WIDE_VECTORS},
}


def digest(variables):
    """The digest of the frames of a process of its own."""
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    environment = {**os.environ, **variables}
    made = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return made.stdout.strip()


@pytest.fixture(scope="module")
def plain():
    return digest({})


@pytest.mark.parametrize("kind", SURROUNDINGS)
def test_frames_are_the_same_to_the_last_bit_with(kind, plain):
    assert digest(SURROUNDINGS[kind]) == plain
