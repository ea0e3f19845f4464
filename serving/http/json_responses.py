"""JSON answers."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

NO_HEADERS: Mapping[str, str] = {}


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS
) -> Response:
    """The value as JSON; NumPy arrays are lists, and numbers that are not finite null."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, {**headers, "content-type": "application/json"})
