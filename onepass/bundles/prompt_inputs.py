"""The inputs of signatures that take a prompt and options for choosing tokens, and their rules.

They are made of the fields of `onepass.draw.Draw`. An input that is a list for each row, such as
`prefix`, has another that counts its elements, `num_prefix`. A request may omit both; with `prefix`
but without `num_prefix`, the whole of `prefix` counts.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.draw import COUNT, LISTS

PROMPTED, PROMPTED_CHUNK = "prompted", "prompted_chunk"  # for whole rows, and for their next part
PREFIX, NUM_PREFIX = "prefix", f"{COUNT}prefix"
WITH_LOG_PROB, ENDED = "return_log_prob", "ended"
LENGTHS = ("num_samples", "num_frames")  # inputs that count a row's elements, including its prefix


def completed_prompt(known: Mapping[str, Any], given: dict[str, np.ndarray], rows: int) -> None:
    """Add the lists that a request may omit, and the numbers of their elements, in place."""
    for name, count in LISTS.items():
        if name not in known:
            continue
        lists = (given[each] for each in LISTS if LISTS[each] == count and each in given)
        if count not in given:
            widths = [array.shape[1] for array in lists]
            given[count] = np.full([rows], max(widths, default=0), np.int32)
        if name not in given and given[count].any():
            raise InvalidInput(f"`{name}` must be given if `{count}` is not 0.")
        if name not in given:
            given[name] = np.zeros([rows, 1], known[name].dtype)


def check_prompt(known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidInput for a count beyond its list, or a prefix beyond the row's length.

    In a call for a segment of a row, also raise it if the segment ends after the longest row.
    """
    for name, count in LISTS.items():
        if name in known and arrays[count].max() > arrays[name].shape[1]:
            raise InvalidInput(
                f"`{count}` must be at most the {arrays[name].shape[1]} of `{name}`, got"
                f" {arrays[count].max()}."
            )
    if NUM_PREFIX not in arrays:
        return
    for name in LENGTHS if "start" in arrays else ():
        ends = arrays["start"].astype(np.int64) + arrays.get(name, 0)
        if name in arrays and known[name].high is not None and ends.max() > known[name].high:
            raise InvalidInput(
                f"`start` + `{name}` must be at most {known[name].high:g}, got {ends.max()}."
            )
    counts = arrays[NUM_PREFIX]
    for name in LENGTHS:
        longer = counts > arrays.get(name, counts)
        if longer.any():
            row = int(np.argmax(longer))
            raise InvalidInput(
                f"`{PREFIX}` must be at most as long as `{name}`, {arrays[name][row]}, which"
                f" counts the whole, got {counts[row]}."
            )
