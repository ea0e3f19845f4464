"""Samplers of WaveNets, which draw the same waveforms up to rounding."""
