"""A run lies in one folder whatever the locale: TensorFlow and Python use the same bytes."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from processes import ROOT, SETTINGS

from onepass.foundation.metrics import MetricsLog
from onepass.foundation.runtime import name_for_tensorflow

NOT_TEXT = os.fsdecode(b"caf\xe9")  # is no UTF-8


def test_a_name_that_is_utf_8_is_passed_on(tmp_path):
    folder = tmp_path / "café"
    folder.mkdir()
    with name_for_tensorflow(folder) as name:
        assert name == str(folder)


def test_metrics_lie_beside_each_other_in_a_folder_whose_name_is_no_text(tmp_path):
    run = tmp_path / NOT_TEXT
    run.mkdir()
    log = MetricsLog(run)
    log.scalars(1, {"loss": 2.0})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == [NOT_TEXT]
    (events,) = (run / "events").iterdir()
    assert events.stat().st_size > 100 and (run / "metrics.jsonl").exists()
    MetricsLog(run, first_step=1).close()


def test_a_program_lies_in_a_folder_whose_name_is_no_text(tmp_path):
    folder = tmp_path / NOT_TEXT
    folder.mkdir()
    module = tf.Module()
    module.variable = tf.Variable(np.arange(3.0))
    with name_for_tensorflow(folder) as name:
        tf.saved_model.save(module, name)
    assert (folder / "saved_model.pb").exists()
    with name_for_tensorflow(folder) as name:
        loaded = tf.saved_model.load(name)
    np.testing.assert_array_equal(loaded.variable, np.arange(3.0))
    assert [path.name for path in tmp_path.iterdir()] == [NOT_TEXT]


LOGGING = """
import sys
from pathlib import Path
from onepass.foundation.metrics import MetricsLog

log = MetricsLog(Path(sys.argv[1]))
log.scalars(1, {"loss": 2.0})
log.close()
"""


def latin(folder):
    """The environment of a Latin-1 locale, compiled there."""
    name = "en_US.ISO-8859-1"
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", folder / name]
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(command, capture_output=True, check=False)
    if not (folder / name).exists():
        pytest.skip("there is no localedef, or no sources for it")
    return {"LOCPATH": str(folder), "LC_ALL": name, "PYTHONUTF8": "0"}


def plain_c(folder):
    return {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("locale", "name"), [(latin, "café".encode("latin-1")), (plain_c, "café".encode())]
)
def test_another_locale_does_not_split_a_run(tmp_path, locale, name):
    environment = locale(tmp_path)
    root = tmp_path / "runs"
    run = os.fsencode(root) + b"/" + name
    os.makedirs(run)
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", LOGGING, run]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-500:]
    assert os.listdir(os.fsencode(root)) == [name]
    assert sorted(os.listdir(run)) == [b"events", b"metrics.jsonl"]
    assert len(os.listdir(run + b"/events")) == 1
