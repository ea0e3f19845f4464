"""The web page, from files that the package includes."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Page(StaticFiles):
    """The page at `/`, and its files under `/page/`."""

    def __init__(self) -> None:
        super().__init__(packages=[("serving", "page")])

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/", self.front), Mount("/page", self)]

    async def front(self, request: Request) -> Response:
        """Return the page."""
        return await self.get_response("index.html", request.scope)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return one of its files."""
        response = await super().get_response(path, scope)
        response.headers["content-security-policy"] = POLICY
        response.headers["cache-control"] = "no-cache"
        return response
