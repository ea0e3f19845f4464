"""Checkpoints that go back into variables."""

import numpy as np
import pytest
import tensorflow as tf

from replicator import strategies
from replicator.runs.checkpoints import Checkpoints
from replicator.runs.errors import UserError, in_one_line
from replicator.training.resumption import assign_arrays, resume_variables


def variables():
    return {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable(3)}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"a": np.zeros(2, np.float16)}, "got float16"),
        ({"a": np.zeros(3, np.float32)}, r"got float32 \(3,\)"),
        ({"b": None}, "got none"),
    ],
)
def test_an_array_that_does_not_fit_sets_nothing(change, found):
    into, arrays = variables(), {"a": np.ones(2, np.float32), "b": np.int32(7)} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(UserError, match=f"`{next(iter(change))}` must have .*{found}"):
        assign_arrays(into, arrays)
    assert into["a"].numpy().tolist() == [1.0, 2.0] and into["b"].numpy() == 3


def test_the_newest_checkpoint_is_in_the_variables(tmp_path):
    checkpoints, into = Checkpoints(tmp_path), variables()
    resume_variables(strategies.single(), checkpoints, into)
    assert into["b"].numpy() == 3
    for step in (1, 2):
        checkpoints.save(step, {"a": np.full(2, step, np.float32), "b": np.int32(step)})
    resume_variables(strategies.single(), checkpoints, into)
    assert into["a"].numpy().tolist() == [2.0, 2.0] and into["b"].numpy() == 2


def test_a_mistake_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as caught, in_one_line("own"):
        raise UserError("That is wrong.")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "own: That is wrong.\n"
