"""Sound: the WaveNet teacher, its samplers, and the recordings and features that it reads."""
