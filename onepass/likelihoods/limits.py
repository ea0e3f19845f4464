"""Limits on the settings of likelihoods, which configurations check without TensorFlow."""

from onepass.foundation.rules import must_be

MAX_LEVELS = 2**22  # above this, the values of some adjacent levels are equal in float32
MAX_COMPANDED_LEVELS = 2**16  # above this, the values of some companded levels are equal in float32
# With more tokens of equal probability, a uniform float32 number cannot choose every one.
MAX_TOKENS = 2**20


def check_levels(num_levels: int, most: int = MAX_LEVELS) -> None:
    """Raise ValueError unless there are between 2 and `most` levels."""
    if not 2 <= num_levels <= most:
        raise ValueError(must_be("levels", f"between 2 and {most}", num_levels))


def check_components(components: int) -> None:
    """Raise ValueError unless a mixture has at least one component."""
    if components < 1:
        raise ValueError(must_be("components", "at least 1", components))
