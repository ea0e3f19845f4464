"""The inputs of signatures that take a prompt, and the rules for these inputs.

A row begins with the first `num_prefix` elements of `prefix`, and ends with `stop` if `has_stop` is
1. Without these inputs, a request has neither a prefix nor a stop; with `prefix` but without
`num_prefix`, the whole of `prefix` counts.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput

PROMPTED, PROMPTED_CHUNK = "prompted", "prompted_chunk"  # for whole rows, and for their next part
PREFIX, NUM_PREFIX, STOP, HAS_STOP = "prefix", "num_prefix", "stop", "has_stop"
TOP_K, TOP_P = "top_k", "top_p"
WITH_LOG_PROB, ENDED = "return_log_prob", "ended"
LENGTHS = ("num_samples", "num_frames")  # inputs that count a row's elements, including its prefix


def completed_prompt(known: Mapping[str, Any], given: dict[str, np.ndarray], rows: int) -> None:
    """Add the inputs for a prefix and a stop that a request may omit.

    Args:
      known: inputs of the signature.
      given: checked inputs of the request, changed in place.
      rows: number of rows of the request.

    Raises:
      InvalidInput: `num_prefix` is not 0 although there is no prefix.
    """
    if HAS_STOP in known and STOP in given and HAS_STOP not in given:
        given[HAS_STOP] = np.ones([rows], np.int32)
    if NUM_PREFIX not in known:
        return
    prefix = given.get(PREFIX)
    if prefix is None:
        given[PREFIX] = np.zeros([rows, 1], known[PREFIX].dtype)
    if NUM_PREFIX not in given:
        given[NUM_PREFIX] = np.full([rows], 0 if prefix is None else prefix.shape[1], np.int32)
    elif prefix is None and given[NUM_PREFIX].any():
        raise InvalidInput(f"`{PREFIX}` must be given if `{NUM_PREFIX}` is not 0.")


def check_prompt(known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidInput for a `num_prefix` that exceeds the given prefix or the row's length.

    In a call for a segment of a row, also raise it if the segment ends after the longest row.
    """
    if NUM_PREFIX not in arrays:
        return
    for name in LENGTHS if "start" in arrays else ():
        ends = arrays["start"].astype(np.int64) + arrays.get(name, 0)
        if name in arrays and known[name].high is not None and ends.max() > known[name].high:
            raise InvalidInput(
                f"`start` + `{name}` must be at most {known[name].high:g}, got {ends.max()}."
            )
    counts, width = arrays[NUM_PREFIX], arrays[PREFIX].shape[1]
    if counts.max() > width:
        raise InvalidInput(
            f"`{NUM_PREFIX}` must be at most the {width} of `{PREFIX}`, got {counts.max()}."
        )
    for name in LENGTHS:
        longer = counts > arrays.get(name, counts)
        if longer.any():
            row = int(np.argmax(longer))
            raise InvalidInput(
                f"`{PREFIX}` must be at most as long as `{name}`, {arrays[name][row]}, which"
                f" counts the whole, got {counts[row]}."
            )
