"""Samplers of WaveNets, which draw the same waveforms up to rounding."""

from wavenet.samplers.generation import Request, SpeculativeSampler, generate, stream
from wavenet.samplers.numba.sampler import NumbaSampler, NumbaVocoderSampler

__all__ = [
    "NumbaSampler",
    "NumbaVocoderSampler",
    "Request",
    "SpeculativeSampler",
    "generate",
    "stream",
]
