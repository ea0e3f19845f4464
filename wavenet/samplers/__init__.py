"""WaveNet samplers in XLA and Numba, which draw the same waveforms up to rounding."""

from wavenet.samplers.generation import CHUNK_SAMPLES, Request, generate, stream
from wavenet.samplers.numba.sampler import NumbaSampler, NumbaVocoderSampler
from wavenet.samplers.vocoder import VocoderSampler, VocoderState
from wavenet.samplers.xla import SamplerState, XlaSampler

__all__ = [
    "CHUNK_SAMPLES",
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
