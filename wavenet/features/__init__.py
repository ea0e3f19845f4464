"""Features of waveforms and their inversion: mel spectrograms, F0, Griffin-Lim."""
