"""A folder is the old one or the new one, whatever fails."""

import errno
import os

import pytest

from onepass.foundation.files import replacing_folder
from onepass.foundation.rules import UserError


def write(folder, text):
    with replacing_folder(folder) as new:
        for name in ("one", "two"):
            (new / name).write_text(text)


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_the_new_folder_does_not_have_is_kept(tmp_path):
    write(tmp_path / "a", "old")
    (tmp_path / "a" / "mine").mkdir()
    (tmp_path / "a" / "mine" / "notes").write_text("mine")
    (tmp_path / "a" / "link").symlink_to("one")
    write(tmp_path / "a", "new")
    assert (tmp_path / "a" / "mine" / "notes").read_text() == "mine"
    assert (tmp_path / "a" / "link").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert texts(tmp_path / "real") == {"one": "new", "two": "new"}


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("call", ["link", "replace", "mkdir"])
@pytest.mark.parametrize("there", [True, False])
def test_an_error_of_the_file_system_is_one_line_and_leaves_the_old(
    there, call, code, tmp_path, monkeypatch
):
    before = {"one": "old", "two": "old", "mine": "old"}
    if there:
        write(tmp_path / "a", "old")
        (tmp_path / "a" / "mine").write_text("old")

    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        if call == ("replace" if there else "link"):  # it is not called
            write(tmp_path / "a", "new")
            return
        with pytest.raises(UserError, match=r"^Cannot write [^\n]*/a: [^\n]*unchanged\.$"):
            write(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] * there
    if there:
        assert texts(tmp_path / "a") == before


def test_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "new" / "a") as folder:
        (folder / "one").write_text("half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
