"""`onepass bench audio`: samplers of a WaveNet and students, side by side."""
