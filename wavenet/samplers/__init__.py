"""WaveNet samplers in XLA and Numba, which draw the same waveforms up to rounding."""

from wavenet.samplers.generation import Request, generate, stream
from wavenet.samplers.numba.sampler import NumbaSampler, NumbaVocoderSampler
from wavenet.samplers.vocoder import VocoderSampler, VocoderState
from wavenet.samplers.xla import SamplerState, XlaSampler

__all__ = [
    "NumbaSampler",
    "NumbaVocoderSampler",
    "Request",
    "SamplerState",
    "VocoderSampler",
    "VocoderState",
    "XlaSampler",
    "generate",
    "stream",
]
