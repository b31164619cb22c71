"""The static files of the console's web page, which are read once: a request never opens a file."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

FOLDER: Final = "static"
INDEX: Final = "index.html"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A static file of the web page. `tag`, its ETag (RFC 9110), changes with the content."""

    body: bytes
    kind: str
    tag: str


class PageFiles:
    """The static files of the web page, by the path in the URL of a request."""

    def __init__(self) -> None:
        self._found: dict[str, PageFile] = {}
        for one in files("mpbroker.console").joinpath(FOLDER).iterdir():
            kind = KINDS.get(f".{one.name.rpartition('.')[2]}")
            if kind is not None:
                body = one.read_bytes()
                tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
                path = "/" if one.name == INDEX else f"/{one.name}"
                self._found[path] = PageFile(body, kind, tag)

    def get(self, path: str) -> PageFile | None:
        return self._found.get(path)
