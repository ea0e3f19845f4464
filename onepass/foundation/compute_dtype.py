"""The dtype of a network's arithmetic, with a warning if the processor does not support it."""

import functools
import sys
from pathlib import Path

import tensorflow as tf

CPU_INFO = Path("/proc/cpuinfo")
INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})


def compute_dtype(name: str) -> tf.DType:
    """Return the dtype of a network's arithmetic.

    If it is bfloat16 and this machine has neither an accelerator nor, as far as is known, bfloat16
    instructions, the first call prints a warning on standard error: TensorFlow then converts every
    number to float32 and back, and a training step takes several times as long as in float32.
    """
    if name == "bfloat16":
        _warn_where_slow()
    return tf.as_dtype(name)


@functools.cache
def _warn_where_slow() -> None:
    accelerated = any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU"))
    if accelerated or has_instructions() is not False:
        return
    print(
        "warning: this processor has no instructions for bfloat16, which takes several times as "
        "long as float32 here; set `compute_dtype` to float32 to compute faster.",
        file=sys.stderr,
        flush=True,
    )


def has_instructions() -> bool | None:
    """Return whether the processor has bfloat16 instructions; None if that is unknown."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return None
    flags = [
        line.partition(":")[2].split()
        for line in text.splitlines()
        if line.lower().startswith(("flags", "features"))
    ]
    return not INSTRUCTIONS.isdisjoint(flags[0]) if flags else None
