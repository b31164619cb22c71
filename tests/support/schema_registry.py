"""A registry with Confluent's REST interface, for tests: it answers what current clients ask, as servers do.

It keeps texts as they come, and compares them as they are: no canonical form, no compatibility.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID

from mpbroker.registry import protobuf
from mpbroker.registry.schemas import Kind, Schema

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
References = list[dict[str, Any]]


class Failed(Exception):
    """An answer with an error code; the HTTP status is its first three digits."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SchemaRegistry(ThreadingHTTPServer):
    """Subjects and schemas in memory. `asked`: method and path of each request, but those of associations."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[int, int]] = {}
        self.deleted: set[tuple[str, int]] = set()
        self.asked: list[str] = []
        self.failures = 0
        self.authorization: str | None = None
        self.wanted_authorization: str | None = None
        self.redirects_to: str | None = None
        # False: Protobuf leaves as it came, as registries without format=serialized do.
        self.gives_descriptors = True
        # What Apicurio 3.3.3 answers instead: an error if there is a package, else bytes as text.
        self.breaks_descriptors = ""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_port}"

    def add(
        self, subject: str, schema: Any, kind: str = "AVRO", references: References | None = None
    ) -> dict[str, Any]:
        """Register a schema; give its document. The id is the same for the same schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        document: dict[str, Any] = {"schema": text, "schemaType": kind}
        if references:
            document["references"] = references
        digest = hashlib.md5(text.encode(), usedforsecurity=False)
        document["guid"] = str(UUID(bytes=digest.digest()))
        with self._lock:
            number = next((n for n, one in self.schemas.items() if one == document), len(self.schemas) + 1)
            self.schemas[number] = document
            versions = self.subjects.setdefault(subject, {})
            version = next((v for v, n in versions.items() if n == number), len(versions) + 1)
            versions[version] = number
            self.deleted.discard((subject, version))
        return self.version(subject, version)

    def version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}

    def form(self, document: dict[str, Any], form: str | None) -> dict[str, Any]:
        """Give a document in the wanted form: Protobuf may be wanted as base64 of a descriptor."""
        is_text = document["schemaType"] == "PROTOBUF" and not protobuf._serialized(document["schema"])
        if not (is_text and form == "serialized" and self.gives_descriptors):
            return document
        if self.breaks_descriptors == "error":
            raise Failed(500, "expected First.proto to have a path ending with shop/First.proto")
        if self.breaks_descriptors:
            return {**document, "schema": "\n\x05First\x12\x04shop"}
        needed = [
            (one["name"], self.version(one["subject"], one["version"])["schema"])
            for one in document.get("references", ())
        ]
        *_, main = protobuf._descriptors(Schema(Kind.PROTOBUF, document["schema"], tuple(needed)))
        return {**document, "schema": base64.b64encode(main.SerializeToString()).decode()}


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, answer: Callable[[list[str], dict[str, str], Any], Any]) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if steps[0] != "associations":
            self.server.asked.append(f"{self.command} {self.path}")
        self.server.authorization = self.headers["Authorization"]
        if self.server.redirects_to is not None:
            self.send_response(302)
            self.send_header("Location", self.server.redirects_to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        code, found = 200, None
        try:
            if self.server.failures:
                self.server.failures -= 1
                raise Failed(503, "the registry catches up")
            if self.server.wanted_authorization not in (None, self.server.authorization):
                raise Failed(401, "Unauthorized")
            found = answer(steps, query, body)
        except Failed as error:
            code = int(str(error.code)[:3])
            found = {"error_code": error.code, "message": str(error)}
        data = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", MEDIA_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _get(self, steps: list[str], query: dict[str, str], _body: Any) -> Any:
        registry = self.server
        form = query.get("format")
        with_deleted = query.get("deleted", "").lower() == "true"
        match steps:
            case ["associations", *_]:
                return []
            case ["schemas", "types"]:
                return ["JSON", "PROTOBUF", "AVRO"]
            case ["schemas", "ids", number]:
                document = registry.schemas.get(int(number))
                if document is None:
                    raise Failed(40403, f"Schema {number} not found")
                return registry.form(document, form)
            case ["schemas", "ids", number, "versions"]:
                return [
                    {"subject": subject, "version": version}
                    for subject, versions in registry.subjects.items()
                    for version, one in versions.items()
                    if one == int(number)
                ]
            case ["schemas", "guids", guid]:
                for document in registry.schemas.values():
                    if document["guid"] == guid:
                        return registry.form(document, form)
                raise Failed(40403, "Schema not found")
            case ["subjects"]:
                return sorted(registry.subjects)
            case ["subjects", subject, "versions"]:
                return self._versions(subject, with_deleted)
            case ["subjects", subject, "versions", version]:
                return registry.form(self._version(subject, version, with_deleted), form)
            case ["config"]:
                return {"compatibilityLevel": "BACKWARD"}
        raise Failed(404, "HTTP 404 Not Found")

    def _post(self, steps: list[str], _query: dict[str, str], body: Any) -> Any:
        kind = body.get("schemaType") or "AVRO"
        references = body.get("references") or []
        match steps:
            case ["subjects", subject, "versions"]:
                if kind == Kind.AVRO:
                    _check_json(body["schema"])
                return self.server.add(subject, body["schema"], kind, references)
            case ["subjects", subject]:
                for version in self._versions(subject, with_deleted=False):
                    found = self.server.version(subject, version)
                    if (found["schema"], found["schemaType"]) == (body["schema"], kind):
                        return found
                raise Failed(40403, "Schema not found")
        raise Failed(404, "HTTP 404 Not Found")

    def _delete(self, steps: list[str], _query: dict[str, str], _body: Any) -> Any:
        match steps:
            case ["subjects", subject, "versions", version]:
                found = self._version(subject, version, with_deleted=False)["version"]
                self.server.deleted.add((subject, found))
                return found
        raise Failed(404, "HTTP 404 Not Found")

    def _versions(self, subject: str, with_deleted: bool) -> list[int]:
        there = self.server.subjects.get(subject, {})
        found = [one for one in there if with_deleted or (subject, one) not in self.server.deleted]
        if not found:
            raise Failed(40401, f"Subject '{subject}' not found.")
        return found

    def _version(self, subject: str, version: str, with_deleted: bool) -> dict[str, Any]:
        there = self._versions(subject, with_deleted)
        wanted = max(there) if version in ("latest", "-1") else int(version)
        if wanted not in there:
            raise Failed(40402, f"Version {version} not found.")
        return self.server.version(subject, wanted)

    def log_message(self, *_arguments: Any) -> None:
        """Print nothing."""


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise Failed(42201, f"Invalid schema: {error}") from error


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[SchemaRegistry]:
    """Serve a registry that is empty."""
    server = SchemaRegistry(context)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
