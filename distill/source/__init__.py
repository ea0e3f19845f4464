"""The source signal of a student: pitch, pulses and a draft waveform from a mel spectrogram."""
