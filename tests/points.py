"""Batches of points, as a `batches.py` draws them; one of them may be poisoned."""

import numpy as np


def open_batches(folder, settings):
    """Batch n is of normal numbers, NaN where `bad_step` of the settings is n."""

    def batch(step):
        x = np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)
        return {"x": x * (np.nan if step == settings["bad_step"] else 1.0), "unused": x}

    return batch
