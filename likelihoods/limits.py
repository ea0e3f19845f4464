"""What the numbers of a likelihood may be; configurations check them without TensorFlow."""

# Above this the values of neighbouring levels are no longer apart in float32.
MAX_LEVELS = 2**22
# Above this float32 no longer tells all companded levels apart.
MAX_COMPANDED_LEVELS = 2**16


def check_levels(num_levels: int, most: int = MAX_LEVELS) -> None:
    """Returns nothing; raises ValueError unless there are between 2 and `most` levels."""
    if not 2 <= num_levels <= most:
        raise ValueError(f"`levels` must be between 2 and {most}, got {num_levels}.")


def check_components(components: int) -> None:
    """Returns nothing; raises ValueError unless a mixture has a component."""
    if components < 1:
        raise ValueError(f"`components` must be at least 1, got {components}.")
