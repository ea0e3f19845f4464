"""A student's flows as the stages of a pipeline, on logical devices of this machine.

    python -m examples.pipeline

Distil a small student of 10, 10, 10 and 30 layers from a small teacher for one step, and compare
the gradients of each schedule with those of one device, and the live activations with those of the
simulation. This takes about two minutes on two cores.
"""

import dataclasses
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import tyro


@dataclasses.dataclass(frozen=True)
class Settings:
    """The student, its batch, and the schedules."""

    flows: tuple[int, ...] = (10, 10, 10, 30)
    """Layers of each flow, which is one stage."""
    channels: int = 8
    """Channels of the student's layers, and of the teacher's."""
    microbatches: int = 8
    """Parts of the batch."""
    rows: int = 1
    """Clips in a microbatch."""
    samples: int = 256
    """Length of a clip."""
    schedules: tuple[str, ...] = ("1f1b", "interleaved", "v-half", "v-min", "v-zb")
    """Schedules of `onepass pipeline`; 1f1b has one stage per device, the others two."""
    json: Path | None = None
    """File for the figures as JSON."""


def batch_of(settings: Settings, kind: str) -> dict[str, np.ndarray]:
    """Return the student's noise and the draws for its divergence, of all microbatches."""
    from distill.losses.divergence import standard_draws

    rows = settings.rows * settings.microbatches
    drawn = standard_draws(kind, 1, rows, settings.samples, 5).numpy()
    return {"noise": drawn[0], "draws": drawn[1:].transpose(1, 0, 2).copy()}


def export(settings: Settings, folder: Path):
    """Write the stages to the folder; return a batch, its loss and its gradients on one device."""
    import tensorflow as tf

    from distill.config import StudentConfig
    from distill.student import ParallelWaveNet
    from distill.teacher import WaveNetDensity
    from distill.training import divergence_loss, flow_stages
    from onepass.planning.pipeline.export import export_stages
    from onepass.replicator.portable.export import named_weights, specs_of
    from wavenet.config import WaveNetConfig
    from wavenet.network import WaveNet

    width = {"residual_channels": settings.channels, "gate_channels": settings.channels}
    student = ParallelWaveNet(StudentConfig(flows=settings.flows, initial_scale=0.1, **width))
    teacher = WaveNet(
        WaveNetConfig(layers=4, stacks=1, components=3, skip_channels=settings.channels, **width)
    )
    loss = divergence_loss(student, WaveNetDensity(teacher))
    frozen = {f"teacher/{name}": v for name, v in named_weights(teacher).items()}
    stages = flow_stages(student, loss, ("draws",), frozen)
    batch = batch_of(settings, student.noise_kind)
    export_stages(folder, stages, specs_of({n: a[: settings.rows] for n, a in batch.items()}))
    weights = named_weights(student)

    @tf.function(jit_compile=True, autograph=False)
    def whole():
        with tf.GradientTape() as tape:
            value = loss(student.draw(tf.constant(batch["noise"])), batch)
        return value, tape.gradient(value, weights)

    value, gradients = whole()
    return batch, float(value), {name: np.asarray(v) for name, v in gradients.items()}


def row_of(folder: Path, settings: Settings, name: str, batch, value, gradients) -> dict:
    """Return the figures of a schedule."""
    from onepass.planning.pipeline.execution import Pipeline
    from onepass.planning.pipeline.schedule import schedule, simulate

    devices = len(settings.flows) // (1 if name == "1f1b" else 2)
    made = schedule(name, devices, settings.microbatches)
    pipeline = Pipeline(folder, made)
    loss, found = pipeline.gradients(batch)
    errors = {n: np.linalg.norm(found[n] - g) / np.linalg.norm(g) for n, g in gradients.items()}
    joined, expected = (
        np.concatenate([a[n].ravel() for n in gradients]) for a in (found, gradients)
    )
    return {
        "schedule": name,
        "devices": devices,
        "loss": abs(loss - value) / abs(value),
        "gradients": float(np.linalg.norm(joined - expected) / np.linalg.norm(expected)),
        "worst": float(max(errors.values())),
        "alive": pipeline.peaks,
        "simulated": list(simulate(made).peaks),
        "kibibytes": [count / 1024 for count in pipeline.peak_bytes],
    }


def main(settings: Settings) -> None:
    """Print one line per schedule."""
    count = len(settings.flows)
    devices = f"--xla_force_host_platform_device_count={count}"
    # A number of devices that is already set comes last and takes precedence.
    os.environ["XLA_FLAGS"] = f"{devices} {os.environ.get('XLA_FLAGS', '')}".strip()
    with tempfile.TemporaryDirectory() as folder:
        known = export(settings, Path(folder))
        rows = [row_of(Path(folder), settings, name, *known) for name in settings.schedules]
    print("schedule     devices   gradient error  worst variable  alive, simulated  KiB per device")
    for row in rows:
        kibibytes = " ".join(f"{size:.0f}" for size in row["kibibytes"])
        alive, simulated = (
            "/".join(f"{n:g}" for n in row[kind]) for kind in ("alive", "simulated")
        )
        print(
            f"{row['schedule']:13s}{row['devices']:7d}{row['gradients']:17.1e}{row['worst']:16.1e}"
            f"  {alive}, {simulated}  {kibibytes}"
        )
    if settings.json:
        settings.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Settings))
