"""`onepass plan`: print predictions and the choice, and write the requested files."""

import json

from onepass.foundation.atomic_files import write_text
from onepass.foundation.progress import Progress
from onepass.planning.arguments import PlanArguments
from onepass.planning.measurement import Store
from onepass.planning.plan import Planner, Prediction, lines, to_json, write_plot, write_trace
from onepass.planning.programs import ModelPrograms

ENOUGH_FREE = 0.9  # share of processor time that a reliable profile needs


def run(given: PlanArguments, programs: ModelPrograms) -> int:
    """Predict a model's training step, print and write the results, and return the exit status."""
    with Progress(len(given.meshes), "planning", "configuration") as progress:
        store = Store(given.profiles, given.fresh, seconds=given.seconds, log=progress.say)
        planner = Planner(given, programs, store)
        predictions = planner.predictions(progress.advance)
    fitting = [each for each in predictions if planner.fits(each)]
    print("\n".join([*_assumptions(given, programs), "", *lines(predictions, fitting)]))
    if planner.free_share < ENOUGH_FREE:
        print(
            f"\nOther processes left {100 * planner.free_share:.0f}% of the processor time to a "
            "profile, so its times are too long. Repeat it with `--fresh` on a quiet machine."
        )
    if given.json:
        write_text(given.json, json.dumps(to_json(predictions, fitting), indent=1) + "\n")
    if given.trace:
        write_trace(given.trace, _largest(predictions).timeline)
    if given.plot:
        write_plot(given.plot, predictions, given.memory)
    return 0


def _assumptions(given: PlanArguments, programs: ModelPrograms) -> list[str]:
    cores = {"yes": "devices share the cores", "no": "each device has its own cores"}
    shared = cores.get(given.shared_cores, "processors share their cores")
    return [
        f"simulated: {given.strategy}, {programs.batch} rows per step, {given.link:g} Gbit/s and "
        f"{given.latency_us:g} us between devices; {shared}"
    ]


def _largest(predictions: list[Prediction]) -> Prediction:
    return max(predictions, key=lambda each: each.devices)
