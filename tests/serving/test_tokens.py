"""Tokens have names, and are changed while the server runs."""

import asyncio
import io
import logging
import re

import http_running
import pytest
from fake_bundle import FakeModelStore
from serve_load import INFER

from replicator.runs.errors import UserError
from serving.engine import tokens
from serving.engine.auth import TokenAuth
from serving.engine.clients import Client, begin_client
from serving.engine.tokens import CurrentTokens, Token, read_tokens
from serving.errors import Unauthorized
from serving.observability import logs
from serving.settings import Settings

ANNA, BEN, NEW = "token-of-anna-0001", "token-of-ben-00002", "token-of-anna-0003"


@pytest.fixture
def folder(tmp_path):
    """A folder with the tokens of anna and ben, as Kubernetes mounts a Secret."""
    (tmp_path / "tokens/..data").mkdir(parents=True)
    for name, token in (("anna", ANNA), ("ben", BEN)):
        (tmp_path / "tokens/..data" / name).write_text(f"{token}\n")
        (tmp_path / "tokens" / name).symlink_to(f"..data/{name}")
    return tmp_path / "tokens"


@pytest.fixture
def always_looking(monkeypatch):
    monkeypatch.setattr(tokens, "LOOK_SECONDS", 0.0)


def bearer(token):
    return f"Bearer {token}".encode()


def test_every_file_of_a_folder_is_a_token_with_the_name_of_its_client(folder):
    current = CurrentTokens(Settings(token_file=folder))
    assert current() == {"anna": Token(ANNA), "ben": Token(BEN)}
    auth, client = TokenAuth(current), Client("10.0.0.1", "10.0.0.1")
    for name, token in (("anna", ANNA), ("ben", BEN)):
        assert asyncio.run(auth.check("/v2", bearer(token), client)) == name
    with pytest.raises(Unauthorized):
        asyncio.run(auth.check("/v2", bearer(NEW), client))


def test_a_folder_without_a_token_or_with_a_short_one_is_one_line(folder, tmp_path):
    (folder / "ben").unlink()
    (folder / "ben").write_text("short")
    with pytest.raises(UserError, match=r"The token in .*/tokens/ben must be at least 16 .* got 5"):
        read_tokens(Settings(token_file=folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no token"):
        read_tokens(Settings(token_file=tmp_path / "empty"))


def test_tokens_change_without_a_restart(folder, always_looking):
    current = CurrentTokens(Settings(token_file=folder))
    (folder / "anna").unlink()
    assert current() == {"ben": Token(BEN)}
    (folder / "anna").write_text(NEW)
    assert current() == {"anna": Token(NEW), "ben": Token(BEN)}
    one = folder.parent / "one"
    one.write_text(ANNA)
    current = CurrentTokens(Settings(token_file=one))
    one.write_text(NEW + "-longer")
    assert current() == {"": Token(NEW + "-longer")}


def test_tokens_that_cannot_be_used_leave_those_before_and_are_reported_once(
    folder, always_looking, caplog
):
    current = CurrentTokens(Settings(token_file=folder))
    (folder / "anna").unlink()
    (folder / "anna").write_text("short")
    assert current() == current() == {"anna": Token(ANNA), "ben": Token(BEN)}
    assert sum("stay as they were" in record.message for record in caplog.records) == 1
    assert "short" not in caplog.text and ANNA not in caplog.text


def test_a_token_with_a_name_is_one_client_wherever_it_comes_from():
    first, second = (begin_client((host, 1), "anna") for host in ("10.0.0.1", "10.0.0.2"))
    assert first.key == second.key != begin_client(("10.0.0.1", 1), "ben").key
    unnamed = [begin_client((host, 1), "") for host in ("10.0.0.1", "10.0.0.2")]
    assert unnamed[0].key != unnamed[1].key and all(client.has_token for client in unnamed)
    named_like_it = begin_client(("token anna", 1))
    assert named_like_it.key != first.key
    begin_client(None)


def test_a_running_server_takes_a_new_token_and_names_it_in_the_log(
    folder, always_looking, tmp_path, monkeypatch
):
    for name in (*logs.OURS, *logs.OTHERS):  # which are as they were afterwards
        for attribute in ("handlers", "propagate", "level"):
            logger = logging.getLogger(name)
            monkeypatch.setattr(logger, attribute, getattr(logger, attribute))
    said = io.StringIO()
    log = logs.configure(stream=said)
    (tmp_path / "models").mkdir()
    store = FakeModelStore(tmp_path / "models")
    store.add()

    def status(running, token):
        headers = {"Authorization": f"Bearer {token}"}
        return running.client.post(
            "/v2/models/voice/infer", content=INFER, headers=headers
        ).status_code

    with http_running.Running(store, token_file=folder) as running:
        assert [status(running, token) for token in (ANNA, BEN, NEW)] == [200, 200, 401]
        (folder / "anna").unlink()
        (folder / "anna").write_text(NEW)
        assert [status(running, token) for token in (ANNA, BEN, NEW)] == [401, 200, 200]
    log.write_all()
    lines = [line for line in said.getvalue().splitlines() if "POST /v2" in line]
    named = [re.findall(r"token=(\S+)", line) for line in lines]
    assert named == [["anna"], ["ben"], [], [], ["ben"], ["anna"]]
    assert ANNA not in said.getvalue()
