"""Options of `onepass sample` for a user's model: conditions, prompts, choice of tokens."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from replicator.runs.atomic_files import read_npy
from replicator.runs.errors import UserError
from serving.bundles.condition_words import condition_of

SUFFIX = ".npy"
ConditionWords = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The options of a row, the same for a model here and on a server."""

    condition: ConditionWords = ()
    """FILE.npy [num, ...], or NUMBER, such as a class, for a model with a condition; with several,
    NAME=FILE.npy or NAME=NUMBER for each, the option repeated."""
    temperature: tuple[float, ...] = (1.0,)
    """1 samples the model, lower values approach its mode; one number, or one for each row."""
    prefix: tuple[str, ...] | None = None
    """Elements that all rows begin with; or an npy file [n] or [num, n]; or one file per row."""
    top_k: int = 0
    """Draw only from so many of the most probable tokens; 0: from all."""
    top_p: float = 1.0
    """Draw only from the most probable tokens that together have this probability."""
    stop: str | None = None
    """Element that ends a row; those after it are equal to it."""
    log_prob: bool = False
    """Also write the log-probability of every element, in nats: sample_SEED_log_prob.npy."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Autoregressive.sample` that are not its defaults.

        Raises:
          UserError: a word is no number, or a file cannot be read.
        """
        condition = condition_of(self.condition)
        heat: Any = self.temperature[0] if len(self.temperature) == 1 else list(self.temperature)
        given = {
            "condition": condition,
            "temperature": heat,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "prefix": None if self.prefix is None else prefix_of(self.prefix),
            "stop": None if self.stop is None else number_of(self.stop, "--stop"),
            "return_log_prob": self.log_prob,
        }
        defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "return_log_prob": False}
        return {
            name: value
            for name, value in given.items()
            if value is not None and not (name in defaults and value == defaults[name])
        }

    def log_prob_path(self, out: Path, seed: int) -> list[Path]:
        """Return the file to write log-probabilities to, or None if the options ask for none."""
        return [out / f"sample_{seed}_log_prob{SUFFIX}"] if self.log_prob else []


def prefix_of(words: tuple[str, ...]) -> Any:
    """Return a prefix as `Autoregressive.sample` takes it, from numbers or from npy files.

    Raises:
      UserError: a word is neither a number nor an npy file that can be read.
    """
    files = [word for word in words if word.endswith(SUFFIX)]
    if not files:
        return np.array([number_of(word, "--prefix") for word in words])
    if len(files) < len(words):
        raise UserError("--prefix must be numbers, or npy files, not both.")
    arrays = [read_npy(Path(word)) for word in files]
    return arrays[0] if len(arrays) == 1 else arrays


def number_of(word: str, option: str) -> int | float:
    """Return a word as a number, an integer where it is one.

    Raises:
      UserError: the word is not a number.
    """
    for kind in (int, float):
        try:
            number: int | float = kind(word)
        except ValueError:
            continue
        return number
    files = " or npy files" if option == "--prefix" else ""
    raise UserError(f"{option} must be numbers{files}, got {word}.")
