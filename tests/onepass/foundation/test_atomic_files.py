"""Files that declare more than they have, or nest too deeply, are refused in one line."""

import fcntl
import io
import json
import zipfile

import numpy as np
import pytest
from hostile_files import refused

from onepass.foundation.files import read_npy, read_npz, write_text
from onepass.foundation.model_folders import read_folder, read_spec
from onepass.foundation.run_directory import Checkpoints, RunDirectory

DEEP = "[" * 10_000 + "]" * 10_000


def declaring(shape, version):
    """An npy file of 32 bytes whose header declares a shape."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    getattr(np.lib.format, f"write_array_header_{version}_0")(file, header)
    return file.getvalue() + bytes(32)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("shape", [(2**60,), (2**31, 2**31), (9,)])
def test_an_array_that_declares_more_than_it_has_takes_no_memory(shape, version, tmp_path):
    data = declaring(shape, version)
    (tmp_path / "a.npy").write_bytes(data)
    assert "cannot be read as an npy file" in refused(read_npy, tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("weights.npy", data)
    line = refused(read_npz, tmp_path / "a.npz")
    assert line.endswith(
        f"its header declares {4 * np.prod(shape, dtype=object):,} bytes, and it has 32"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_an_array_that_has_what_it_declares_is_read(version, tmp_path):
    (tmp_path / "a.npy").write_bytes(declaring((8,), version))
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), np.zeros(8))


def test_what_a_killed_process_left_half_written_is_removed_by_the_next_write(tmp_path):
    left, locked = ".onepass-0123456789abcdef.npz", ".onepass-fedcba9876543210"
    for name in (left, locked, ".keep"):
        (tmp_path / name).write_bytes(b"half")
    with open(tmp_path / locked) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_text(tmp_path / "a.json", "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".keep", locked, "a.json"]


def test_a_description_that_nests_deeply_is_one_line(tmp_path):
    for name in ("model.json", "config.json", "autoregressive.json", "scores.json"):
        (tmp_path / name).write_text(DEEP)
    for read in (read_folder, lambda path: RunDirectory.open(path).config(), read_spec):
        assert str(tmp_path) in refused(read, tmp_path)
    assert Checkpoints(tmp_path).scores() == []
    with pytest.raises(RecursionError):
        json.loads(DEEP)
