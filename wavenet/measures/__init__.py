"""How close a vocoder's speech comes to a recording."""

from wavenet.measures.quality import (
    DB_PER_NAT,
    f0_error_cents,
    level_difference_db,
    log_mel_distance_db,
    measure,
    multi_resolution_stft_distance,
    pesq,
    stoi,
    voicing_error,
)

__all__ = [
    "DB_PER_NAT",
    "f0_error_cents",
    "level_difference_db",
    "log_mel_distance_db",
    "measure",
    "multi_resolution_stft_distance",
    "pesq",
    "stoi",
    "voicing_error",
]
