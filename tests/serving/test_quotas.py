"""What a token is good for: requests a minute, seconds of sound and images a day."""

import re

import grpc_running
import http_running
import numpy as np
import pytest
from fake_bundle import CHANNELS, HOP, RATE, SIDES
from grpc_running import refused
from serve_load import INFER

from replicator.runs.errors import UserError
from serving.engine.quotas import DAY_SECONDS, Quota
from serving.engine.rate_limits import Buckets
from serving.engine.tokens import Token, read_tokens
from serving.errors import TooLarge, TooManyRequests
from serving.grpc.messages import message
from serving.grpc.tensors import encode
from serving.observability.metrics import Metrics
from serving.settings import Settings

ANNA, BEN = "token-of-anna-0001", "token-of-ben-00002"
DRAW, SPEAK = "/v1/models/shapes:predict", "/v1/models/voice:speak"
FRAME_SECONDS = HOP / RATE


@pytest.fixture
def folder(tmp_path):
    """The tokens of anna, whose limits a test may write, and of ben, who has none."""
    (tmp_path / "tokens").mkdir()
    for name, token in (("anna", ANNA), ("ben", BEN)):
        (tmp_path / "tokens" / name).write_text(token)
    return tmp_path / "tokens"


def limited(folder, *lines):
    (folder / "anna").write_text("\n".join([ANNA, *lines]))


def asked(running, path, token=ANNA, **body):
    headers = {"Authorization": f"Bearer {token}"}
    return running.client.post(path, json=body, headers=headers)


def counted(metrics, name):
    """{(token, limit): value} of a counter."""
    text = metrics.render()[0].decode()
    found = re.findall(rf'^{name}{{limit="(\w+)",token="(\w*)"}} (\S+)$', text, re.M)
    return {(token, limit): float(value) for limit, token, value in found}


def test_limits_are_lines_below_the_token(folder):
    limited(folder, "requests_per_minute = 2", "", "images_per_day = 0  # none")
    found = read_tokens(Settings(token_file=folder))
    assert found == {"anna": Token(ANNA, 2, images_per_day=0), "ben": Token(BEN)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("images_per_hour = 2", "There is no limit `images_per_hour`"),
        ("images_per_day = -1", "`images_per_day` in .*anna must be at least 0, got -1"),
        ("requests_per_minute = 0.5", "`requests_per_minute` in .* must be at least 1, got 0.5"),
        ("images_per_day = nan", "at least 0, got nan"),
        ("images_per_day = true", "at least 0, got True"),
        ("another line", "The lines after the token in .*anna must be NAME = NUMBER"),
    ],
)
def test_a_limit_that_cannot_be_is_one_line_that_names_it(folder, line, said):
    limited(folder, line)
    with pytest.raises(UserError, match=said) as raised:
        read_tokens(Settings(token_file=folder))
    assert ANNA not in str(raised.value)


def test_what_was_used_comes_back_steadily_and_what_was_owed_is_waited_off():
    seconds = [0.0]
    quota = Quota(Buckets(lambda: seconds[0]), Metrics(), "anna", Token(ANNA, images_per_day=100))
    quota.check("images_per_day", 100)
    quota.use("images_per_day", 60)
    quota.use("images_per_day", 60)  # of a request that was under way at the same time
    with pytest.raises(TooManyRequests, match="good for 100 images a day") as raised:
        quota.check("images_per_day", 10)
    assert raised.value.retry_after_seconds == pytest.approx(0.3 * DAY_SECONDS)
    seconds[0] = 0.31 * DAY_SECONDS
    quota.check("images_per_day", 10)
    with pytest.raises(TooLarge, match="got 101 at once"):
        quota.check("images_per_day", 101)
    quota.check("sound_seconds_per_day", 1e9)


def test_a_token_over_its_requests_is_answered_429_and_no_other_is(folder, tmp_path):
    limited(folder, "requests_per_minute = 2")
    with http_running.Running(http_running.store(tmp_path / "m"), token_file=folder) as running:
        answers = [asked(running, DRAW, instances=[{}]) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30
        assert answers[2].json()["error"] == "This token is good for 2 requests a minute."
        assert asked(running, DRAW, BEN, instances=[{}]).status_code == 200
        assert running.client.get("/healthz").status_code == 200
    assert counted(running.metrics, "onepass_token_refused_total") == {
        ("anna", "requests_per_minute"): 1
    }
    used = counted(running.metrics, "onepass_token_used_total")
    assert used["anna", "requests_per_minute"] == 2 and used["ben", "images_per_day"] == 1


def test_images_and_seconds_of_sound_are_counted_as_they_are_made(folder, tmp_path):
    seconds = 20 * FRAME_SECONDS
    limited(folder, "images_per_day = 3", f"sound_seconds_per_day = {seconds}")
    with http_running.Running(http_running.store(tmp_path / "m"), token_file=folder) as running:
        rows = [{"row": n} for n in range(2)]
        draws = [asked(running, DRAW, instances=rows[:n]) for n in (2, 2, 1)]
        assert [answer.status_code for answer in draws] == [200, 429, 200]
        assert "3 images a day" in draws[1].json()["error"]
        assert asked(running, DRAW, instances=rows * 2).status_code == 413
        sound = [asked(running, SPEAK, frames=[[0.1] * CHANNELS] * n) for n in (12, 12, 8)]
        assert [answer.status_code for answer in sound] == [200, 429, 200]
        assert running.client.post("/v2/models/voice/infer", content=INFER).status_code == 401
    used = counted(running.metrics, "onepass_token_used_total")
    assert used["anna", "images_per_day"] == 3
    assert used["anna", "sound_seconds_per_day"] == pytest.approx(seconds)


def test_an_image_that_comes_scale_by_scale_counts_once(folder, tmp_path):
    limited(folder, "images_per_day = 2")
    with http_running.Running(http_running.store(tmp_path / "m"), token_file=folder) as running:
        drawn = asked(running, "/v1/models/shapes:draw", num=2, **{"class": "class 3"})
        assert len(drawn.text.splitlines()) == 2 * len(SIDES)
        assert asked(running, "/v1/models/shapes:draw", **{"class": 3}).status_code == 429


def test_what_could_not_be_made_is_not_counted(folder, tmp_path):
    store = http_running.store(tmp_path / "m")
    store.controls["shapes", 1].fails_on = 9
    limited(folder, "images_per_day = 1")
    with http_running.Running(store, token_file=folder) as running:
        statuses = [asked(running, DRAW, instances=[{"seed": n}]).status_code for n in (9, 9, 1, 1)]
    assert statuses == [500, 500, 200, 429]


def test_grpc_says_resource_exhausted_and_when_to_come_again(folder, tmp_path):
    limited(folder, f"sound_seconds_per_day = {8 * FRAME_SECONDS}")
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "voice"
    encode(grpc_running.frames(1, 5), request.inputs["frames"])
    encode(np.array([5], np.int32), request.inputs["num_frames"])
    answer = message("tensorflow.serving.PredictResponse")
    store = grpc_running.store(tmp_path / "m")
    with grpc_running.Running(store, token_file=folder) as running, running.channel() as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            type(request).SerializeToString,
            answer.FromString,
        )
        metadata = (("authorization", f"Bearer {ANNA}"),)
        assert predict(request, metadata=metadata).outputs
        with refused("RESOURCE_EXHAUSTED", "seconds of sound a day") as errors:
            predict(request, metadata=metadata)
    trailing = dict(errors[0].trailing_metadata())
    assert int(trailing["retry-after"]) >= 1
    assert counted(running.metrics, "onepass_token_refused_total") == {
        ("anna", "sound_seconds_per_day"): 1
    }
