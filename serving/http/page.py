"""The web page: a few files that come with the package, and no others."""

import importlib.resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.errors import NotFound

PACKAGE, FOLDER = "serving", "page"
FRONT = "index.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


class Page:
    """The endpoints; the files are read once."""

    def __init__(self) -> None:
        self._files = dict(_files())

    def routes(self) -> list[Route]:
        """The page at `/`, and what it is made of under `/page/`."""
        return [Route("/", self.front), Route("/page/{file}", self.file)]

    async def front(self, request: Request) -> Response:
        """The page itself."""
        return self._response(FRONT)

    async def file(self, request: Request) -> Response:
        """One of its files."""
        return self._response(request.path_params["file"])

    def _response(self, name: str) -> Response:
        if name not in self._files:
            raise NotFound("There is nothing at this path.")
        content, content_type = self._files[name]
        headers = {
            "content-type": content_type,
            "content-security-policy": POLICY,
            "cache-control": "no-cache",
        }
        return Response(content, headers=headers)


def _files():
    folder = importlib.resources.files(PACKAGE) / FOLDER
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        content_type = TYPES.get(file.name[file.name.rfind(".") :])
        if file.is_file() and content_type:
            yield file.name, (file.read_bytes(), content_type)
