"""Train an exported image model for so many seconds, with JAX and NumPy, and keep its averages.

    python FOLDER/timed_training.py --seconds 360 --out RESULTS

`run.py` trains for so many steps, and its schedule is part of the step. Here the time is given and
the steps are what the device makes of it: the exported rate (constant after its warm-up) is scaled
by a factor that falls linearly to 0 at the end of the time. An update of Adam is the rate times a
direction, so the factor scales the change of the weights, and the average is made of the scaled
ones. Images lie on the device, which cuts the same batches as `batches.py`; several updates are one
program. `timed_export` packs the folder and unpacks RESULTS: the averages with the fewest bits of
the first half of dev in files below 16 MiB, and a line of metrics per evaluation.
"""

import argparse
import functools
import importlib
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

START, DEV, METRICS = "start.npz", "dev.npz", "metrics.jsonl"
PART_BYTES = 15 * 2**20  # of a file of averages
KEPT_FROM = 0.3  # share of the time before which no averages are written


def weights_of(arrays: dict) -> dict:
    """Return the weights of a checkpoint by name, and its step."""
    named = {n.removeprefix("weights/"): v for n, v in arrays.items() if n.startswith("weights/")}
    return {**named, "step": arrays["step"]}


def start_state(weights: dict, slots: list[dict]) -> dict:
    """Return all slots before the first update; averages are the weights, moments zeros."""
    state = {}
    for slot in slots:
        kind, _, name = slot["name"].partition("/")
        known = weights["step"] if kind == "step" else weights[name]
        made = np.zeros_like(known) if kind in ("first", "second") else known
        state[slot["name"]] = np.asarray(made, slot["dtype"])
    return state


def batch_plan(batches, settings: dict, count: int, steps: range) -> dict:
    """Return what batches.py draws for steps, [steps, batch] each: images, shifts, flips, drops."""
    size, seed, most = settings["batch_size"], settings["seed"], settings["shift"]
    plan: dict[str, list] = {name: [] for name in ("image", "flip", "place", "gone", "seed")}
    for step in steps:
        words = batches.example_words(seed, step, size, batches.LANES)
        seeds, flips, *places, drops = words
        located = (np.stack(places) >> np.uint64(32)) * np.uint64(2 * most + 1) >> np.uint64(32)
        plan["image"].append(batches.sampled_examples(seed, step, size, count))
        plan["flip"].append((flips >> np.uint64(63)).astype(bool) & settings["flip"])
        plan["place"].append(located.T)
        plan["gone"].append(drops / 2.0**64 < settings["dropout"])
        plan["seed"].append(batches.example_seeds(seeds))
    return {
        name: np.stack(rows).astype(bool if name in ("flip", "gone") else np.int32)
        for name, rows in plan.items()
    }


def cut_batch(stored: dict, plan: dict, most: int) -> dict:
    """Return a batch of the stored images as batches.py makes it; `plan` is of one step."""
    images, side = stored["levels"][plan["image"]], stored["levels"].shape[1]
    flipped = jnp.where(plan["flip"][:, None, None, None], images[:, :, ::-1], images)
    padded = jnp.pad(flipped, [(0, 0), (most, most), (most, most), (0, 0)], mode="edge")

    def square(image, place):
        sizes = (side, side, image.shape[-1])
        return jax.lax.dynamic_slice(image, (place[0], place[1], 0), sizes)

    batch = {"levels": jax.vmap(square)(padded, plan["place"]), "seed": plan["seed"]}
    if "label" in stored:
        batch["label"] = jnp.where(plan["gone"], -1, stored["label"][plan["image"]])
    return {name: array.astype(jnp.int32) for name, array in batch.items()}


def scaled_update(before: dict, after: dict, factor, decay: float) -> dict:
    """Return the slots after an update whose rate is `factor` times the exported one.

    Args:
      before: all slots.
      after: the slots of the exported step, at its own rate.
      factor: float32 [].
      decay: of the average; that of early steps is less, as the exported step has it.
    """
    state = dict(after)
    count = before["step"].astype(jnp.float32)
    keep = jnp.minimum(decay, (1.0 + count) / (10.0 + count))
    for name, old in before.items():
        if name.startswith("weights/"):
            state[name] = new = old + factor * (after[name] - old)
            average = name.replace("weights/", "average/", 1)
            state[average] = keep * before[average] + (1.0 - keep) * new
    return state


class Trainer:
    """The state on the device, the updates, and the bits of dev.

    Args:
      folder: that `timed_export` packed.
      steps_per_call: updates of a program.
      run: the module run.py.
      batches: the module batches.py.
    """

    def __init__(self, folder: Path, steps_per_call: int, run: Any, batches: Any):
        self.run, self.batches = run, batches
        manifest = self.run.read_manifest(folder)
        training = manifest["training"]
        self.settings, self.steps_per_call = training["batches"], steps_per_call
        self.decay = manifest["config"]["optimizer"]["average_decay"]
        # Committed to the device, as results are, so that `jit` compiles once.
        self.stored = self.run.on_device(self.run.read_npz(folder / "images.npz"))
        self.dev = self.run.read_npz(folder / DEV)
        described = manifest["functions"]
        start = start_state(self.run.read_npz(folder / START), training["slots"])
        self.state = self.run.on_device(start)
        self._updates = jax.jit(
            self._scan(self.run.load_exported(folder, described["step"]), described["step"]),
            donate_argnums=0,
        )
        self._nats = self._dev(self.run.load_exported(folder, described["dev"]), described["dev"])

    def _scan(self, program, described: dict):
        advance = self.run.advance_function(program.call, described)
        most = self.settings["shift"]

        def one(stored, carried, plan):
            (state, alive), (factor, rows) = carried, plan
            after, alive, metrics = advance(state, alive, {}, cut_batch(stored, rows, most))
            state = jax.tree.map(
                functools.partial(jnp.where, alive),
                scaled_update(state, after, factor, self.decay),
                state,
            )
            return (state, alive), metrics["bits_per_dim"]

        def updates(state, stored, plan, factors):
            start = (state, jnp.asarray(True))
            (state, alive), bits = jax.lax.scan(
                functools.partial(one, stored), start, (factors, plan)
            )
            return state, alive, bits.mean()

        return updates

    def _dev(self, program, described: dict):
        inputs = [self.dev[spec["name"]].astype(np.int32) for spec in described["inputs"]]
        names = [spec["name"] for spec in described["captured"]]
        call = jax.jit(lambda *arguments: program.call(*arguments)[0])
        # Arguments, not constants, of which XLA would compute what it can while it compiles.
        return lambda state: call(*inputs, *(state[f"average/{name}"] for name in names))

    @property
    def step(self) -> int:
        """Number of updates; this waits for the device."""
        return int(self.state["step"])

    def advance(self, step: int, factor: float):
        """Dispatch the next updates after `step`; return if all were finite, and their bits."""
        count = len(self.stored["levels"])
        steps = range(step, step + self.steps_per_call)
        plan = batch_plan(self.batches, self.settings, count, steps)
        factors = np.full(len(steps), factor, np.float32)
        self.state, alive, bits = self._updates(self.state, self.stored, plan, factors)
        return alive, bits

    def halves(self) -> list[float]:
        """Return the bits per dimension of the even and the odd dev images, by the averages."""
        numbers = np.prod(self.dev["levels"].shape[1:]) * np.log(2.0)
        bits = -np.asarray(self._nats(self.state), np.float64) / numbers
        return [float(bits[half::2].mean()) for half in (0, 1)]

    def averages(self) -> dict:
        """Return a copy of the averages by name."""
        names = [name for name in self.state if name.startswith("average/")]
        return {name.removeprefix("average/"): np.asarray(self.state[name]) for name in names}


def write_parts(folder: Path, arrays: dict, step: int) -> None:
    """Write arrays as averages_0.npz, ..., each below 16 MiB, the step in every one."""
    parts: list[dict] = [{}]
    for name, array in arrays.items():
        if sum(a.nbytes for a in parts[-1].values()) + array.nbytes > PART_BYTES:
            parts.append({})
        parts[-1][name] = array
    for number, part in enumerate(parts):
        temporary = folder / f"averages_{number}.part"
        with open(temporary, "wb") as file:
            np.savez(file, step=np.int32(step), **part)
        os.replace(temporary, folder / f"averages_{number}.npz")


def read_parts(folder: Path) -> dict:
    """Return what `write_parts` wrote, with "step"."""
    arrays: dict = {}
    for path in sorted(Path(folder).glob("averages_*.npz")):
        with np.load(path, allow_pickle=False) as file:
            part = dict(file)
        if arrays.get("step", part["step"]) != part["step"]:
            raise ValueError(f"{path} is of another step than the files before it.")
        arrays |= part
    return arrays


def train(trainer: Trainer, out: Path, seconds: float, evaluations: int, ahead: int = 2) -> None:
    """Train for so many seconds after compilation; write the best averages and the metrics."""
    start = time.monotonic()
    trainer.advance(trainer.step, 0.0)  # compiles; a factor of 0 leaves the weights
    step = trainer.step
    log(out, {"step": step, "compiled_in": time.monotonic() - start, "halves": trainer.halves()})
    begin = evaluated = time.monotonic()
    best, share = float("inf"), 0.0
    pending: deque = deque()
    while share < 1.0:
        now = time.monotonic()
        share = min((now - begin) / seconds, 1.0)
        pending.append(trainer.advance(step, 1.0 - share))
        step += trainer.steps_per_call
        if len(pending) > ahead:
            pending.popleft()[1].block_until_ready()
        if share < 1.0 and now - evaluated < seconds / evaluations:
            continue
        halves, evaluated = trainer.halves(), time.monotonic()
        alive, bits = pending[-1]
        train_bits = float(bits)
        log(
            out, {"step": step, "seconds": evaluated - begin, "train": train_bits, "halves": halves}
        )
        if not alive:
            raise SystemExit(f"A loss or gradient was not finite before step {step}.")
        if halves[0] < best and share > KEPT_FROM:
            best = halves[0]
            write_parts(out, trainer.averages(), step)


def log(out: Path, line: dict) -> None:
    """Print a line, and append it to the metrics."""
    print(json.dumps(line), flush=True)
    with open(out / METRICS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main(words: list[str] | None = None) -> int:
    """Train the folder of this file, and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--out", type=Path, required=True, help="existing folder for the results")
    parser.add_argument("--seconds", type=float, required=True, help="of training, after compiling")
    parser.add_argument("--evaluations", type=int, default=12)
    parser.add_argument("--steps-per-call", type=int, default=10)
    given = parser.parse_args(words)
    sys.path.insert(0, str(given.folder))  # run.py and its package, batches.py
    modules = (importlib.import_module(name) for name in ("run", "batches"))
    trainer = Trainer(given.folder, given.steps_per_call, *modules)
    train(trainer, given.out, given.seconds, given.evaluations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
