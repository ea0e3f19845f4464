"""Seconds until a bundle is warm in a new process, with XLA's programs kept on disk and without."""

from collections.abc import Mapping
from pathlib import Path

from onepass.bench.report import Measures, Row
from onepass.bench.serving.rows import SECONDS
from onepass.bench.worker_group import Group
from replicator.runs.progress import Progress

MODULE = "onepass.bench.serving.in_process"
LOAD, WARM, KEPT = "load", "warm", "warm, XLA kept"


class Cold:
    """A bundle that a new process loads each time it is asked.

    Args:
      path, backend: what is loaded, and what computes.
      kept: folder for XLA's programs.
      limit_seconds: that it may take.
    """

    def __init__(self, path: Path, backend: str, kept: Path, limit_seconds: float):
        self._path, self._backend = path, backend
        self._kept, self._limit_seconds = kept, limit_seconds
        self._warm = 0.0

    def prepare(self) -> None:
        """Fills the folder."""
        self.kept()

    def load(self) -> float:
        """Seconds to be loaded."""
        answer = self._asked({})
        self._warm = answer["warm"]
        return answer["load"]

    def warm(self) -> float:
        """Seconds to be warm, after the last `load`."""
        return self._warm

    def kept(self) -> float:
        """Seconds to be warm where XLA finds its programs."""
        flags = f"--tf_xla_persistent_cache_directory={self._kept}"
        return self._asked({"TF_XLA_FLAGS": flags})["warm"]

    def _asked(self, environment: dict[str, str]) -> dict[str, float]:
        group = Group("A cold start", [environment], self._limit_seconds, MODULE)
        try:
            group.ask()
            return group.ask(do="load", path=str(self._path), backend=self._backend)[0]
        finally:
            group.stop()


def measures_of(
    bundles: Mapping[str, tuple[Path, str]], folder: Path, limit_seconds: float
) -> Measures:
    """Rows of each bundle, by the name they show, with its folder and its backend."""
    measures: Measures = []
    colds = {
        name: Cold(path, backend, folder / f"xla-{name}", limit_seconds)
        for name, (path, backend) in bundles.items()
    }
    with Progress(len(colds), "filling XLA's folders", "bundle") as progress:
        for name, cold in colds.items():
            cold.prepare()
            progress.advance()
            measures += [
                (Row(LOAD, name, 1, SECONDS), cold.load),
                (Row(WARM, name, 1, SECONDS), cold.warm),
                (Row(KEPT, name, 1, SECONDS, WARM), cold.kept),
            ]
    return measures
