"""The reader of F0 learns it from frames."""

import numpy as np
import pytest
import tensorflow as tf

from onepass.likelihoods.noise import Initial
from wavenet.conditioner import PitchReader, pitch_loss, train_pitch_reader
from wavenet.data.batch_sampling import ClipSource


@pytest.mark.parametrize("bins", [0, 60])
def test_reader_learns_f0_and_voicing_of_synthetic_frames(bins):
    generator = np.random.default_rng(0)
    octaves = generator.uniform(-1.0, 1.0, 3000).astype(np.float32)
    voiced = (generator.random(3000) < 0.6).astype(np.float32)
    place = (octaves * 5 + 10)[:, None] - np.arange(20)
    frames = voiced[:, None] * np.exp(-0.5 * place**2).astype(np.float32)
    rows = np.concatenate([frames, octaves[:, None], voiced[:, None]], 1)
    source = ClipSource(
        [np.zeros(3000, np.int16)], [0], 50, frames=[rows], padding=rows[0] * 0, hop_samples=1
    )
    reader = PitchReader(20, Initial(0), bins=bins)
    side = reader.side_frames
    inner = slice(side, -side)
    before = float(pitch_loss(*reader(frames[None]), rows[None, inner, -2:]))
    train_pitch_reader(reader, source, 150, 0, lambda frames: frames[..., :20])
    assert float(pitch_loss(*reader(frames[None]), rows[None, inner, -2:])) < 0.1 * before
    read, logit = (value.numpy()[0] for value in reader(tf.constant(frames[None])))
    assert np.mean((logit > 0.0) == voiced[inner]) > 0.97
    off = np.abs(read - octaves[inner])[voiced[inner] == 1]
    assert np.median(off) < 0.1
