"""Errors as each protocol words them."""

import math
from typing import TypedDict

import orjson

from serving.errors import ServingError

OPENAI_PATHS = ("/v1/images/", "/v1/audio/")
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Error(TypedDict):
    """An error in one line."""

    error: str


class OpenaiReason(TypedDict):
    """An error in OpenAI's fields."""

    message: str
    type: str
    param: None
    code: str


class OpenaiError(TypedDict):
    """An error as OpenAI wraps it."""

    error: OpenaiReason


def is_openai_path(path: str) -> bool:
    """Whether the path is one of OpenAI's; `/v1/models` is a list that only OpenAI has."""
    return path == "/v1/models" or path.startswith(OPENAI_PATHS)


def protocol_of(path: str) -> str:
    """The protocol that a path belongs to, in a word."""
    if is_openai_path(path):
        return "openai"
    if path == "/v2" or path.startswith("/v2/"):
        return "v2"
    is_ours = path.endswith((":speak", ":draw", "/examples"))
    return "tensorflow-rest" if path.startswith("/v1/") and not is_ours else "onepass"


def error_body(path: str, status: int, message: str, code: str) -> bytes:
    """The JSON body of an error at that path.

    OpenAI: `{"error": {"message", "type", "param", "code"}}`. TensorFlow Serving, the v2 protocol
    and everything else: `{"error": "text"}`.
    """
    if not is_openai_path(path):
        return orjson.dumps(Error(error=message))
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    reason: OpenaiReason = {"message": message, "type": kind, "param": None, "code": code}
    return orjson.dumps(OpenaiError(error=reason))


def error_headers(error: ServingError) -> dict[str, str]:
    """What an error adds to its answer's headers: when to come again."""
    if error.retry_after_seconds is None:
        return {}
    return {"retry-after": str(max(1, math.ceil(error.retry_after_seconds)))}
