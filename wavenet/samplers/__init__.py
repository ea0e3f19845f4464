"""Samplers of WaveNets, which draw the same waveforms up to rounding."""

from wavenet.samplers.generation import Request, SpeculativeSampler, generate, stream

__all__ = ["Request", "SpeculativeSampler", "generate", "stream"]
