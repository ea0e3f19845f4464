"""Measures of synthetic speech: similarity to a recording, and naturalness."""

from wavenet.measures.opinion import dnsmos_p808, opinions, plcmos
from wavenet.measures.perceptual import pesq, stoi
from wavenet.measures.pitch import f0_error_cents, f0_within_50_cents, voicing_error
from wavenet.measures.quality import measure
from wavenet.measures.residual import residual_kurtosis
from wavenet.measures.spectral import (
    DB_PER_NAT,
    log_mel_distance_db,
    multi_resolution_stft_distance,
)

__all__ = [
    "DB_PER_NAT",
    "dnsmos_p808",
    "f0_error_cents",
    "f0_within_50_cents",
    "log_mel_distance_db",
    "measure",
    "multi_resolution_stft_distance",
    "opinions",
    "pesq",
    "plcmos",
    "residual_kurtosis",
    "stoi",
    "voicing_error",
]
