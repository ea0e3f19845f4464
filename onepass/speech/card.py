"""The model card of a voice."""

import json
from typing import Any

from onepass.foundation.progress import in_time


def _opinions(speech: dict[str, float]) -> str:
    names = {"dnsmos_p808": "DNSMOS P.808", "plcmos": "PLCMOS"}
    return "".join(
        f"| {words} of text spoken (of the recording's own frames spoken) | "
        f"{speech[f'{name}_text']:.2f} ({speech[f'{name}_respoken']:.2f}) |\n"
        for name, words in names.items()
        if f"{name}_text" in speech
    )


def _texture(spec: dict[str, Any]) -> str:
    if not spec.get("temperature"):
        return "it is smoother than a person's and its melody flatter."
    trained = spec["density"]
    return (
        "its melody is flatter than a person's. Frames are drawn from a density around the\n"
        f"expected ones at temperature {spec['temperature']:g}, which was trained for "
        f"{trained['steps']:,} steps{in_time(trained['training_seconds'])}\non "
        f"{trained['machine']} (`{trained['command']}`)."
    )


def card(spec: dict[str, Any]) -> str:
    """Return the model card, in Markdown, for the content of a voice's model.json."""
    frames, speech = spec["quality"]["frames"], spec["quality"]["speech"]
    dev = spec["quality"]["dev"]
    return f"""# Text to mel frames

Phonemes by espeak-ng (US English), then three small networks over them: durations, F0 and voicing,
mel frames; {spec["weights"]:,} numbers in all, run with NumPy. One voice, of modest quality:
{_texture(spec)} It was measured as below and looked at in
spectrograms, not rated by listeners.

- Data: {spec["data"]}, {spec["train_minutes"]} minutes of training. {spec["data_licence"]}
- Level: recordings are amplified by {spec["gain_db"]:+.2f} dB before anything else.
- Frames: {json.dumps(spec["mel"])}; what comes out is 1 - mel / log(floor).
- Phonemes were laid over the recordings by Viterbi training of one-Gaussian states from a guess by
  typical lengths (espeak-ng gives no durations without an MBROLA voice).
- Training: {spec["steps"]:,} steps{in_time(spec["training_seconds"])} on {spec["machine"]};
  the averages at step {spec["step"]:,}, the best on dev.
- Command: `{spec["command"]}` {spec["note"]}

Measured on {dev["recordings"]} dev recordings ({dev["seconds"]:.0f} s) that it was not trained on,
though the step was chosen by them; frames with the durations of the recording:

| | |
|---|---|
| log-mel distance from the recording, dB | {frames["log_mel_distance_db"]:.2f} |
| the same, given the recording's F0 | {frames["log_mel_distance_true_pitch_db"]:.2f} |
| the same of the mean frame of all recordings | {frames["log_mel_distance_mean_frame_db"]:.2f} |
| F0 error, cents | {frames["f0_error_cents"]:.0f} |
| the same of one F0 for all of dev | {frames["f0_error_constant_cents"]:.0f} |
| voicing error, share of frames | {frames["voicing_error"]:.3f} |
| duration of a phoneme: mean absolute error, ms | {frames["duration_error_ms"]:.1f} |
| the same of one duration for all | {frames["duration_spread_ms"]:.1f} |
| correlation of durations | {frames["duration_correlation"]:.2f} |
| length of a sentence, error | {frames["sentence_length_error_percent"]:.1f}% |

{dev["spoken"]} of their texts spoken by the model `{spec["model"]}`; log-mel distance from the
recording in dB along the best path of dynamic time warping:

| | |
|---|---|
| text spoken | {speech["warped_distance_text_db"]:.2f} |
| the recording's own frames spoken | {speech["warped_distance_respoken_db"]:.2f} |
| another sentence of the same speaker | {speech["warped_distance_other_sentence_db"]:.2f} |
| one frame, the mean of the recording | {speech["warped_distance_mean_frame_db"]:.2f} |
| texts nearer to their own recording than to {dev["recordings"] - 1} others | \
{100 * speech["found_share"]:.0f}% |
{_opinions(speech)}| level against the recording's frames spoken, dB | \
{speech["level_difference_db"]:+.1f} |
| voiced share of frames (recorded) | {speech["voiced_share"]:.2f} \
({speech["voiced_share_recorded"]:.2f}) |
| median F0, Hz | {speech["f0_median_hz"]:.0f} |
| seconds a sentence (recorded) | {speech["seconds"]:.2f} ({speech["seconds_recorded"]:.2f}) |
"""
