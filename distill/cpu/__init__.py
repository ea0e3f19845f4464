"""Students on a CPU: compiled kernels, tiles shared among threads, and packed weights."""
