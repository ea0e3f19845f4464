"""Audio: the WaveNet, its samplers, and the recordings and features that it reads."""
