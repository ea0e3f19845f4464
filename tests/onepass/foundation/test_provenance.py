"""Where a model comes from is said where it is known, and never taken from another repository."""

import shutil
import subprocess
from pathlib import Path

import pytest

from onepass.foundation import card

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    say = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a"]
    for words in (["init", "-q"], say):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder.resolve()


@needs_git
def test_the_revision_is_that_of_the_checkout_and_not_of_a_repository_around_it(
    repository, monkeypatch
):
    monkeypatch.setattr(card, "ROOT", repository)
    words = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    head = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    assert card.git_revision() == head
    (installed := repository / "venv" / "site-packages").mkdir(parents=True)
    monkeypatch.setattr(card, "ROOT", installed)
    assert card.git_revision() == "unknown"


def test_without_git_or_outside_of_a_repository_the_revision_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "ROOT", tmp_path)
    assert card.git_revision() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert card.git_revision() == "unknown"


def test_the_checkout_is_the_folder_of_the_packages():
    assert Path(__file__).resolve().parents[3] == card.ROOT
