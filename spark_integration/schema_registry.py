"""Finds Avro schemas by id and by subject: in a registry with Confluent's interface, or in a directory.

(Confluent: GET /schemas/ids/{id}, GET /subjects/{subject}/versions/{version}.)
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from mpbroker.reading.errors import OptionError

_ANSWERS_WITHIN_SECONDS = 10.0
_TRIES = 4
_PAUSE_SECONDS = 0.25
# A schema that the registry lacks is not asked for again in this time.
_MISSING_FOR_SECONDS = 10.0
_NOT_FOUND = 404
_TOO_MANY = 429
_SERVER_ERRORS = 500
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryUnavailable(RuntimeError):
    """The registry does not answer, or refuses.

    Do not report a record as corrupt for this: the registry may have its schema.
    """


class UnknownSchema(ValueError):
    """No schema has this id, subject or version."""


def open_schemas(place: str, headers: Mapping[str, str] | None = None) -> Registry | Directory:
    """Open a registry if the place begins with http:// or https://, else a directory. Raises OptionError."""
    if place.startswith(("http://", "https://")):
        return Registry(place, tuple(sorted((headers or {}).items())))
    directory = Path(place)
    if not directory.is_dir():
        raise OptionError(f"registry: {place} is neither an http(s) address nor a directory with schemas")
    return Directory(directory)


@dataclass(frozen=True)
class Directory:
    """A directory of files `<id>.avsc`, `<subject>-v<version>.avsc`, and `<subject>.avsc` for the latest."""

    path: Path

    def by_id(self, number: int) -> Any:
        return self._read(f"{number}.avsc")

    def by_subject(self, subject: str, version: int | str) -> Any:
        return self._read(f"{subject}.avsc" if version == "latest" else f"{subject}-v{version}.avsc")

    def _read(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise UnknownSchema(f"schema {path} does not exist") from error
        except (OSError, ValueError) as error:
            raise RegistryUnavailable(f"the schema {path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Registry:
    """A server. User and password may stand in the address; headers are for other kinds of authentication.

    A schema never changes, so it may be kept. Methods raise UnknownSchema, RegistryUnavailable.
    """

    # Both may contain a password.
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def by_id(self, number: int) -> Any:
        return _whole(self, f"/schemas/ids/{number}")

    def by_subject(self, subject: str, version: int | str) -> Any:
        return _whole(self, f"/subjects/{quote(subject, safe='')}/versions/{version}")

    def ask(self, path: str) -> Any:
        """Ask for the document at this path, a few times if the registry is busy.

        Raises UnknownSchema, RegistryUnavailable.
        """
        shown, request = self._request(path)
        for tries_left in range(_TRIES - 1, -1, -1):
            try:
                with urlopen(request, timeout=_ANSWERS_WITHIN_SECONDS) as answer:
                    return json.load(answer)
            except HTTPError as error:
                if error.code == _NOT_FOUND:
                    raise UnknownSchema(f"the registry has no {shown}") from error
                if (error.code != _TOO_MANY and error.code < _SERVER_ERRORS) or not tries_left:
                    raise RegistryUnavailable(
                        f"{shown}: the registry answers {error.code} {error.reason}"
                    ) from error
            except (URLError, OSError, ValueError) as error:
                if not tries_left:
                    raise RegistryUnavailable(f"{shown}: the registry does not answer: {error}") from error
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _request(self, path: str) -> tuple[str, Request]:
        """Return the address without the password, for messages, and the request."""
        parts = urlsplit(self.url)
        address = urlunsplit(
            (parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/") + path, "", "")
        )
        request = Request(
            address, headers={"Accept": f"{_MEDIA_TYPE}, application/json", **dict(self.headers)}
        )
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        return address, request


class _Document:
    """A document of a registry that never changes: a schema by its id, or a subject's numbered version.

    Several threads share one request for the document. A missing document is not asked for again for a while.
    """

    def __init__(self, registry: Registry, path: str) -> None:
        self._registry = registry
        self._path = path
        self._lock = threading.Lock()
        self._found: Any = None
        self._missing = ""
        self._ask_again_at = 0.0

    def get(self) -> Any:
        """Return the document. Raises UnknownSchema, RegistryUnavailable."""
        with self._lock:
            if self._found is None:
                if self._missing and time.monotonic() < self._ask_again_at:
                    raise UnknownSchema(self._missing)
                try:
                    self._found = self._registry.ask(self._path)
                except UnknownSchema as error:
                    self._missing = str(error)
                    self._ask_again_at = time.monotonic() + _MISSING_FOR_SECONDS
                    raise
            return self._found


_document = lru_cache(maxsize=4096)(_Document)


def _whole(registry: Registry, path: str) -> Any:
    """Return the schema at the path, with the definitions of all schemas that it references included."""
    document = registry.ask(path) if path.endswith("/latest") else _document(registry, path).get()
    kind = document.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise UnknownSchema(f"the schema at {path} is {kind}, not AVRO")
    named = {
        reference["name"]: registry.by_subject(reference["subject"], reference["version"])
        for reference in document.get("references", ())
    }
    return _with_references(_parsed(document["schema"]), named)


def _parsed(text: str) -> Any:
    """Parse a schema, which is JSON; a primitive one may be a bare word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_references(schema: Any, named: dict[str, Any]) -> Any:
    """Return the schema with the first occurrence of each name replaced by its definition in `named`."""
    if isinstance(schema, str):
        return named.pop(schema, schema)
    if isinstance(schema, list):
        return [_with_references(branch, named) for branch in schema]
    if isinstance(schema, dict):
        inner = {
            key: _with_references(value, named)
            for key, value in schema.items()
            if key in ("type", "items", "values")
        }
        if "fields" in schema:
            inner["fields"] = [
                {**one, "type": _with_references(one["type"], named)} for one in schema["fields"]
            ]
        return {**schema, **inner}
    return schema
