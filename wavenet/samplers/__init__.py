"""WaveNet samplers in XLA and Numba, which draw the same waveforms up to rounding."""

from wavenet.samplers.generation import Request, generate, stream
from wavenet.samplers.numba.sampler import NumbaSampler, NumbaVocoderSampler
from wavenet.samplers.vocoder import VocoderSampler
from wavenet.samplers.xla import XlaSampler

__all__ = [
    "NumbaSampler",
    "NumbaVocoderSampler",
    "Request",
    "VocoderSampler",
    "XlaSampler",
    "generate",
    "stream",
]
