"""Two sources of schemas: `Registry`, a client of Confluent's REST interface, and `Directory`, of files.

A process requests each schema once, by id or by numbered version. If the registry lacks a schema, the process
requests it again only after a while.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener
from uuid import UUID

from mpbroker.registry.schemas import (
    Kind,
    RegistryConfigError,
    RegistryUnavailable,
    Schema,
    SchemaError,
    SchemaId,
    UnknownSchema,
    of_kind,
)

_PAUSE_SECONDS = 0.25
# How long a schema that the registry lacks is not asked for again.
_MISSING_FOR_SECONDS = 10.0
_ANSWER_BYTES_MAX = 16 << 20
_REFERENCES_MAX = 256
_DEPTH_MAX = 64
_LATEST = "latest"
_ID_MAX = (1 << 31) - 1
_NOT_FOUND = 404
# Subject, version, schema. A 404 without them is of a server that is no registry, or of a wrong path.
_UNKNOWN = (40401, 40402, 40403)
_SERVER_ERROR = 500
_RETRIED = (408, 429, 500, 502, 503, 504)
_SERIALIZED: Final = "format=serialized"
_NO_TEXT: Final = re.compile(r"[\x00-\x08\x0e-\x1f]").search
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
# Names of settings, those of Confluent's clients; each may begin with schema.registry.
_PREFIX: Final = "schema.registry."
_NAMES: Final = (
    *("url", "basic.auth.credentials.source", "basic.auth.user.info", "bearer.auth.token"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
)
_SCHEMES: Final = ("http://", "https://")
Place = str | Mapping[str, str]


def is_address(place: str) -> bool:
    """Return whether a place is the address of a registry, and not a directory."""
    return place.lower().startswith(_SCHEMES)


def open_schemas(place: Place, headers: Mapping[str, str] | None = None) -> Registry | Directory:
    """Open a registry, or a directory with schemas if the place is a path. Raises RegistryConfigError.

    The place is an address that begins with http:// or https://, or several with commas between them, or
    settings by the names of Confluent's clients. `headers` go with each request.
    """
    if isinstance(place, str):
        if not is_address(place):
            directory = Path(place)
            if not directory.is_dir():
                # Before an @ may be a password.
                shown = place.rpartition("@")[2]
                raise RegistryConfigError(
                    f"registry: {shown} is neither an http(s) address nor a directory with schemas"
                )
            return Directory(directory)
        place = {"url": place}
    return _registry(
        {name.removeprefix(_PREFIX): value for name, value in place.items()}, dict(headers or {})
    )


def _registry(settings: Mapping[str, str], headers: dict[str, str]) -> Registry:
    if wrong := [name for name in settings if name not in _NAMES]:
        raise RegistryConfigError(f"registry: it has no setting {wrong[0]}, only {', '.join(_NAMES)}")
    urls = tuple(url.strip().rstrip("/") for url in settings.get("url", "").split(",") if url.strip())
    if not urls or not all(map(is_address, urls)):
        raise RegistryConfigError("registry: it needs a url that begins with http:// or https://")
    if user := settings.get("basic.auth.user.info"):
        headers["Authorization"] = _basic(user)
    if token := settings.get("bearer.auth.token"):
        headers["Authorization"] = f"Bearer {token}"
    names = ("ca.location", "certificate.location", "key.location", "key.password")
    tls = Tls(*(settings.get(f"ssl.{name}", "") for name in names))
    registry = Registry(urls, tuple(sorted(headers.items())), tls)
    for url in urls:
        try:
            whole = urlsplit(url)
            is_usable = bool(whole.hostname and (whole.port is None or whole.port)) and "@" not in whole.path
        except ValueError:
            is_usable = False
        if not is_usable:
            shown = url.rpartition("@")[2]
            raise RegistryConfigError(
                f"registry: {shown} has no host, a wrong port, or a / in its password (write %2F)"
            )
    try:
        _opener(tls)
    except OSError as error:
        raise RegistryConfigError(f"registry: {error}") from error
    return registry


def _basic(user: str) -> str:
    return f"Basic {base64.b64encode(user.encode()).decode()}"


@dataclass(frozen=True)
class Directory:
    """A directory of files `<id>.avsc`, `<subject>-v<version>.avsc`, and `<subject>.avsc` for the latest.

    Protobuf has the ending `.proto`, JSON Schema `.json`.
    """

    path: Path

    def by_id(self, number: SchemaId, kind: Kind | None = None) -> Schema:
        found = self._read(str(number), kind)
        return found._replace(id=number) if isinstance(number, int) else found

    def by_subject(self, subject: str, version: int | str, kind: Kind | None = None) -> Schema:
        return self._read(subject if version == _LATEST else f"{subject}-v{version}", kind)

    def register(self, subject: str, schema: Schema) -> int:  # noqa: ARG002 - as `Registry` has it
        raise RegistryConfigError(f"{self.path} is a directory: {subject} is registered in a registry only")

    find = register

    def _read(self, name: str, wanted: Kind | None) -> Schema:
        for kind, ending in _ENDINGS.items():
            path = self.path / f"{name}{ending}"
            if wanted not in (None, kind) or Path(path.name) != path.relative_to(self.path):
                continue
            try:
                return Schema(kind, path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise RegistryUnavailable(f"the schema {path} cannot be read: {error}") from error
        ending = _ENDINGS[wanted] if wanted is not None else ".avsc, .proto or .json"
        raise UnknownSchema(f"schema {self.path / name}{ending} does not exist")


_ENDINGS: Final = {Kind.AVRO: ".avsc", Kind.PROTOBUF: ".proto", Kind.JSON: ".json"}


@dataclass(frozen=True)
class Tls:
    """Files in PEM form: the authority that signs the server's certificate, the client's own certificate."""

    authority: str = ""
    certificate: str = ""
    key: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Registry:
    """A server, or several that have the same schemas. An address may contain user and password.

    Methods raise UnknownSchema, SchemaError, RegistryUnavailable.
    """

    # Both may contain a password.
    urls: tuple[str, ...] = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: Tls = Tls()
    tries: int = 4
    answers_within_seconds: float = 10.0

    def by_id(self, number: SchemaId, kind: Kind | None = None) -> Schema:
        if isinstance(number, int) and not 0 < number <= _ID_MAX:
            raise UnknownSchema(f"{number} is no id of a schema")
        where = f"/schemas/{'ids' if isinstance(number, int) else 'guids'}/{number}"
        document, form = self._document(where, kind)
        return _schema({"id": number, **document} if isinstance(number, int) else document, self, form, kind)

    def by_subject(self, subject: str, version: int | str, kind: Kind | None = None) -> Schema:
        document, form = self._document(_version_path(subject, version), kind)
        return _schema(document, self, form, kind)

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema as the subject's newest version, unless the subject has it. Return its id."""
        return self._post(f"/subjects/{quote(subject, safe='')}/versions", schema)

    def find(self, subject: str, schema: Schema) -> int:
        """Return the id that a schema has in a subject."""
        return self._post(f"/subjects/{quote(subject, safe='')}", schema)

    def _post(self, path: str, schema: Schema) -> int:
        if schema.references:
            raise SchemaError("a schema with references is registered by the registry's own tools")
        body = {"schema": schema.text, "schemaType": schema.kind}
        document = self.ask(path, json.dumps(body).encode())
        number = document.get("id") if isinstance(document, dict) else None
        if not isinstance(number, int):
            raise RegistryUnavailable(f"{path}: the registry answers without the id of the schema")
        return number

    def _document(self, path: str, kind: Kind | None) -> tuple[dict[str, Any], str]:
        """Return a document, and the query parameter for requests of its references ("" for none).

        Protobuf is requested as descriptors, which need no compiler. Some registries give only the text, and
        Apicurio 3 an error, or the bytes of a descriptor as if they were text: they are asked for the text.
        """
        if kind is not Kind.PROTOBUF:
            found = self._kept(path, "")
            if kind is not None or found.get("schemaType") != Kind.PROTOBUF:
                return found, ""
        try:
            found = self._kept(path, _SERIALIZED)
        except RegistryUnavailable as error:
            if not _is_server_error(error.__cause__):
                raise
        else:
            if not _NO_TEXT(found["schema"]):
                return found, _SERIALIZED
        return self._kept(path, ""), ""

    def _kept(self, path: str, form: str) -> dict[str, Any]:
        whole = f"{path}{'&' if '?' in path else '?'}{form}" if form else path
        if path.endswith(f"/{_LATEST}"):
            return _checked(self.ask(whole), whole)
        return _document_at(self, whole).get()

    def ask(self, path: str, body: bytes | None = None) -> Any:
        """Ask for the document at this path, a few times if the registry is busy.

        Raises UnknownSchema, RegistryUnavailable.
        """
        for turn in range(self.tries * len(self.urls)):
            if turn and turn % len(self.urls) == 0:
                time.sleep(_PAUSE_SECONDS)
            shown, request = self._request(self.urls[turn % len(self.urls)], path, body)
            try:
                with _opener(self.tls).open(request, timeout=self.answers_within_seconds) as answer:
                    return json.loads(answer.read(_ANSWER_BYTES_MAX))
            except HTTPError as error:
                failure = _refused(shown, error)
                if error.code not in _RETRIED or (path.endswith(_SERIALIZED) and _is_server_error(error)):
                    raise failure from error
            except (URLError, OSError, HTTPException, ValueError) as error:
                failure = RegistryUnavailable(f"{shown}: the registry does not answer: {error}")
        raise failure

    def _request(self, url: str, path: str, body: bytes | None) -> tuple[str, Request]:
        """Return (the request's address without user and password, to be shown in errors; the request)."""
        parts = urlsplit(url)
        address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path + path, "", ""))
        request = Request(address, body, {"Accept": f"{_MEDIA_TYPE}, application/json", **dict(self.headers)})
        if body is not None:
            request.add_header("Content-Type", _MEDIA_TYPE)
        if parts.username is not None:
            request.add_header(
                "Authorization", _basic(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
            )
        return address, request


def _version_path(subject: str, version: int | str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{quote(str(version), safe='')}"


def _refused(shown: str, error: HTTPError) -> Exception:
    """Return the error for an answer whose status is an error."""
    try:
        document = json.loads(error.read(_ANSWER_BYTES_MAX))
        code, said = document.get("error_code"), str(document.get("message", ""))
    except (ValueError, AttributeError, OSError, HTTPException):
        code, said = None, ""
    finally:
        error.close()
    if error.code == _NOT_FOUND and code in _UNKNOWN:
        return UnknownSchema(f"the registry has no {shown}")
    hint = " (is this the address of a registry?)" if error.code == _NOT_FOUND else ""
    return RegistryUnavailable(f"{shown}: the registry answers {error.code} {said or error.reason}{hint}")


def _is_server_error(error: BaseException | None) -> bool:
    return isinstance(error, HTTPError) and error.code == _SERVER_ERROR


class _NoRedirects(HTTPRedirectHandler):
    """Turns each redirect into an error, because the other server must not get the password."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


@lru_cache(maxsize=64)
def _opener(tls: Tls) -> OpenerDirector:
    context = ssl.create_default_context(cafile=tls.authority or None)
    if tls.certificate:
        context.load_cert_chain(tls.certificate, tls.key or None, tls.password or None)
    return build_opener(_NoRedirects, HTTPSHandler(context=context))


class _Document:
    """A document of a registry that never changes: a schema by its id, or a subject's numbered version.

    Several threads share one request for the document. A missing document is not asked for again for a while.
    """

    def __init__(self, registry: Registry, path: str) -> None:
        self._registry = registry
        self._path = path
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._missing = ""
        self._ask_again_at = 0.0

    def get(self) -> dict[str, Any]:
        """Return the document. Raises UnknownSchema, RegistryUnavailable."""
        with self._lock:
            if self._found is None:
                if self._missing and time.monotonic() < self._ask_again_at:
                    raise UnknownSchema(self._missing)
                try:
                    self._found = _checked(self._registry.ask(self._path), self._path)
                except UnknownSchema as error:
                    self._missing = str(error)
                    self._ask_again_at = time.monotonic() + _MISSING_FOR_SECONDS
                    raise
            return self._found


_document_at = lru_cache(maxsize=4096)(_Document)


def _checked(document: Any, path: str) -> dict[str, Any]:
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise RegistryUnavailable(f"{path}: the answer has no schema. Is this the address of a registry?")
    return document


def _schema(document: Mapping[str, Any], registry: Registry, form: str, wanted: Kind | None) -> Schema:
    """Return the schema of a document, with the texts of all schemas that it needs."""
    try:
        kind = Kind(document.get("schemaType") or Kind.AVRO)
        guid = document.get("guid")
        bare = Schema(kind, document["schema"], (), int(document.get("id", 0)), UUID(guid) if guid else None)
    except (TypeError, ValueError) as error:
        raise UnknownSchema(f"schema {document.get('id', '')}: {error}") from error
    of_kind(bare, wanted)
    found: dict[str, str] = {}
    try:
        _collect(document, registry, form, found, ())
    except (KeyError, TypeError) as error:
        raise SchemaError(f"schema {bare.id}: its references cannot be read: {error!r}") from error
    return bare._replace(references=tuple(found.items()))


def _collect(
    document: Mapping[str, Any], registry: Registry, form: str, found: dict[str, str], within: tuple[str, ...]
) -> None:
    """Add to `found` the schemas that a document needs, each after those that it needs itself."""
    for reference in document.get("references") or ():
        name = reference["name"]
        if name in within or len(within) > _DEPTH_MAX:
            raise SchemaError(f"schemas need each other, or too many others: {' > '.join((*within, name))}")
        if name in found:
            continue
        # A version that is deleted is still needed by what refers to it.
        path = f"{_version_path(reference['subject'], reference['version'])}?deleted=true"
        needed = registry._kept(path, form)
        _collect(needed, registry, form, found, (*within, name))
        found[name] = needed["schema"]
        if len(found) > _REFERENCES_MAX:
            raise SchemaError(f"a schema needs more than {_REFERENCES_MAX} others")
