"""Warnings of mode collapse: failures of a student while its loss falls."""

import dataclasses
import math

QUIET_DB = -6.0  # below the recordings
TOO_SURE_NATS = 1.5  # below the teacher's entropy
WHISPERED_SHARE = 0.5  # of the frames that should be voiced
LEAST_VOICED = 0.1  # share of frames, below which nothing is said about whispering


@dataclasses.dataclass(frozen=True)
class HealthMetrics:
    """Metrics on dev recordings that show whether a student has collapsed.

    Attributes:
      level_db: of its sound relative to the recordings.
      entropy_nats: of a sample given those before it.
      teacher_entropy_nats: the same of the teacher, on the recordings.
      voiced: share of voiced frames.
      recorded_voiced: share of voiced frames in the recordings.
    """

    level_db: float
    entropy_nats: float
    teacher_entropy_nats: float
    voiced: float
    recorded_voiced: float


def collapse_warnings(health: HealthMetrics) -> list[str]:
    """Return a line for each symptom of collapse; none for a healthy student."""
    found = []
    if not math.isfinite(health.level_db) or health.level_db < QUIET_DB:
        found.append(
            f"the student falls silent: {-health.level_db:.1f} dB below the recordings. More draws "
            "(--loss.draws), a larger --loss.squared or a lower rate may help."
        )
    if health.entropy_nats < health.teacher_entropy_nats - TOO_SURE_NATS:
        found.append(
            f"the student's noise dies out: {health.entropy_nats:.1f} nats per sample, the "
            f"teacher's {health.teacher_entropy_nats:.1f}. A larger --loss.kl "
            "or more --loss.draws may help."
        )
    voiced = health.recorded_voiced > LEAST_VOICED
    if voiced and health.voiced < WHISPERED_SHARE * health.recorded_voiced:
        found.append(
            f"the student whispers: {100 * health.voiced:.0f} % of its frames are voiced, "
            f"{100 * health.recorded_voiced:.0f} % of the recordings'. More --loss.multi, a "
            "draft or a source (--student.draft-passes, --student.source) may help."
        )
    return found
