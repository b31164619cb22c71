"""The client of registries: what it asks, how often, and what it makes of answers."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from mpbroker.registry import rest
from mpbroker.registry.rest import Directory, open_schemas
from mpbroker.registry.schemas import (
    Kind,
    RegistryConfigError,
    RegistryUnavailable,
    Schema,
    SchemaError,
    UnknownSchema,
)
from tests.support.certificates import Authority
from tests.support.polling import PATIENCE_S
from tests.support.schema_registry import SchemaRegistry, serving

INNER_PROTO = 'syntax = "proto3"; package shop; message Inner { int64 id = 1; }'
OUTER_PROTO = 'syntax = "proto3"; import "inner.proto"; message Outer { shop.Inner one = 1; }'
INT = '"int"'


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(rest, "_PAUSE_SECONDS", 0)
    with serving() as server:
        server.add("numbers", INT)
        yield server


def test_a_schema_is_found_by_id_guid_and_subject_and_asked_for_once(registry: SchemaRegistry) -> None:
    schemas = open_schemas(f"{registry.url}/")
    found = schemas.by_id(1)
    assert (found.kind, found.text, found.id, found.references) == (Kind.AVRO, INT, 1, ())
    assert isinstance(found.guid, UUID)
    assert schemas.by_id(found.guid).text == INT
    assert schemas.by_subject("numbers", "latest") == schemas.by_subject("numbers", 1) == found
    assert schemas.by_id(1) == found
    assert registry.asked == [
        "GET /schemas/ids/1",
        f"GET /schemas/guids/{found.guid}",
        "GET /subjects/numbers/versions/latest",
        "GET /subjects/numbers/versions/1",
    ]
    with pytest.raises(UnknownSchema, match="is AVRO, not JSON"):
        schemas.by_id(1, Kind.JSON)


def test_a_schema_that_the_registry_lacks_is_asked_for_once_in_a_while(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas = open_schemas(registry.url)
    for _ in range(3):
        with pytest.raises(UnknownSchema, match=f"the registry has no {registry.url}/schemas/ids/2"):
            schemas.by_id(2)
    assert registry.asked == ["GET /schemas/ids/2"]
    registry.add("texts", '"string"')
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + rest._MISSING_FOR_SECONDS)
    assert schemas.by_id(2).text == '"string"'
    assert registry.asked == ["GET /schemas/ids/2"] * 2
    for number in (0, 1 << 31):
        with pytest.raises(UnknownSchema, match="no id"):
            schemas.by_id(number)


def test_threads_that_want_one_schema_ask_once(registry: SchemaRegistry) -> None:
    schemas = open_schemas(registry.url)
    together = threading.Barrier(8)

    def ask(number: int) -> str:
        together.wait(PATIENCE_S)
        try:
            return schemas.by_id(number).text
        except UnknownSchema:
            return "unknown"

    for number, answer in ((1, INT), (4, "unknown")):
        registry.asked.clear()
        with ThreadPoolExecutor(together.parties) as threads:
            assert set(threads.map(ask, [number] * together.parties)) == {answer}
        assert registry.asked == [f"GET /schemas/ids/{number}"]


def test_references_are_found_in_their_order_also_deleted_ones(registry: SchemaRegistry) -> None:
    """Two that need the same third one get it once."""

    def needs(*subjects: str) -> list[dict[str, object]]:
        return [{"name": f"n.{one}", "subject": one, "version": 1} for one in subjects]

    registry.add("a", "A")
    registry.add("b", "B", references=needs("a"))
    registry.add("c", "C", references=needs("a"))
    registry.add("d", "D", references=needs("c", "b"))
    registry.deleted.add(("a", 1))
    found = open_schemas(registry.url).by_subject("d", "latest")
    assert found.references == (("n.a", "A"), ("n.c", "C"), ("n.b", "B"))
    assert registry.asked.count("GET /subjects/a/versions/1?deleted=true") == 1
    with pytest.raises(UnknownSchema):
        open_schemas(registry.url).by_subject("a", 1)


def test_schemas_that_need_each_other_are_refused(registry: SchemaRegistry) -> None:
    registry.add("a", "A", references=[{"name": "b", "subject": "b", "version": 1}])
    registry.add("b", "B", references=[{"name": "a", "subject": "a", "version": 1}])
    with pytest.raises(SchemaError, match="need each other"):
        open_schemas(registry.url).by_subject("a", 1)
    registry.add("c", "C", references=[{"name": "c"}])
    with pytest.raises(SchemaError, match="cannot be read"):
        open_schemas(registry.url).by_subject("c", 1)


def test_protobuf_is_asked_for_as_descriptors(registry: SchemaRegistry) -> None:
    number = registry.add("p", "CgA=", "PROTOBUF")["id"]
    schemas = open_schemas(registry.url)
    assert schemas.by_id(number, Kind.PROTOBUF).kind is Kind.PROTOBUF
    assert registry.asked == [f"GET /schemas/ids/{number}?format=serialized"]
    # Without knowing that it is Protobuf, a second request is needed.
    registry.asked.clear()
    assert open_schemas(f"{registry.url}/,{registry.url}").by_id(number).kind is Kind.PROTOBUF
    assert registry.asked == [f"GET /schemas/ids/{number}", f"GET /schemas/ids/{number}?format=serialized"]


@pytest.mark.parametrize("broken", ["error", "bytes"])
def test_protobuf_is_asked_for_as_text_where_a_registry_breaks_descriptors(
    registry: SchemaRegistry, broken: str
) -> None:
    """Apicurio 3.3.3 does both."""
    registry.breaks_descriptors = broken
    registry.add("inner", INNER_PROTO, "PROTOBUF")
    references = [{"name": "inner.proto", "subject": "inner", "version": 1}]
    number = registry.add("outer", OUTER_PROTO, "PROTOBUF", references)["id"]
    found = open_schemas(registry.url).by_id(number)
    assert (found.text, found.references) == (OUTER_PROTO, (("inner.proto", INNER_PROTO),))
    assert registry.asked == [
        f"GET /schemas/ids/{number}",
        f"GET /schemas/ids/{number}?format=serialized",
        "GET /subjects/inner/versions/1?deleted=true",
    ]


def test_schemas_are_registered_and_looked_up(registry: SchemaRegistry) -> None:
    schemas = open_schemas(registry.url)
    text = Schema(Kind.AVRO, '"string"')
    with pytest.raises(UnknownSchema):
        schemas.find("a/b ü", text)
    number = schemas.register("a/b ü", text)
    assert schemas.find("a/b ü", text) == schemas.register("a/b ü", text) == number
    assert list(registry.subjects) == ["numbers", "a/b ü"]
    with pytest.raises(SchemaError, match="with references"):
        schemas.register("x", Schema(Kind.AVRO, "A", (("b", "B"),)))


def test_a_registry_is_told_the_password_and_no_message_has_it(registry: SchemaRegistry) -> None:
    place = registry.url.replace("http://", "http://ann:p%40ss@")
    schemas = open_schemas(place, {"X-Tenant": "t"})
    assert schemas.by_id(1).text == INT
    assert registry.authorization == "Basic " + base64.b64encode(b"ann:p@ss").decode()
    assert "p%40ss" not in repr(schemas)
    with pytest.raises(UnknownSchema) as raised:
        schemas.by_id(77)
    assert "ss@" not in str(raised.value)


def test_settings_have_the_names_of_confluent(registry: SchemaRegistry) -> None:
    settings = {"schema.registry.url": registry.url, "basic.auth.user.info": "ann:p@ss"}
    registry.wanted_authorization = "Basic " + base64.b64encode(b"ann:p@ss").decode()
    assert open_schemas(settings).by_id(1).text == INT
    assert "p@ss" not in repr(open_schemas(settings))
    registry.wanted_authorization = "Bearer abc"
    assert open_schemas({"url": registry.url, "bearer.auth.token": "abc"}).by_id(1).text == INT
    with pytest.raises(RegistryUnavailable, match="answers 401 Unauthorized"):
        open_schemas(settings | {"basic.auth.user.info": "ann:no"}).by_id(1)
    for wrong, said in (
        ({"url": registry.url, "basic.auth.user": "x"}, "no setting basic.auth.user, only url"),
        ({"basic.auth.user.info": "x:y"}, "begins with http"),
        ({"url": "ftp://x"}, "begins with http"),
        ({"url": "http://x:y"}, "[Pp]ort"),
        ({"url": registry.url, "ssl.ca.location": "/nowhere"}, "No such file"),
    ):
        with pytest.raises(RegistryConfigError, match=said):
            open_schemas(wrong)


def test_another_server_of_several_answers_and_one_that_is_no_registry_is_an_error(
    registry: SchemaRegistry,
) -> None:
    with serving() as other:
        gone = other.url
    assert open_schemas(f"{gone}, {registry.url}").by_id(1).text == INT
    registry.failures = 1
    assert open_schemas(f"{registry.url},{registry.url}/").by_id(1).text == INT
    with pytest.raises(RegistryUnavailable, match=r"404 HTTP 404 Not Found \(is this the address"):
        open_schemas(f"{registry.url}/wrong").by_id(1)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        open_schemas(gone).by_id(1)


def test_a_redirect_is_not_followed_since_another_server_must_not_get_the_password(
    registry: SchemaRegistry,
) -> None:
    registry.redirects_to = "http://127.0.0.1:1/"
    with pytest.raises(RegistryUnavailable, match="answers 302"):
        open_schemas(registry.url).by_id(1)


def test_a_registry_with_tls_is_trusted_by_its_authority(tmp_path: Path) -> None:
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("registry").write(tmp_path / "server.pem"))
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    with serving(context) as server:
        server.add("numbers", INT)
        settings = {"url": server.url, "ssl.ca.location": str(tmp_path / "ca.pem")}
        assert open_schemas(settings).by_id(1).text == INT


def test_a_directory_has_schemas_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text(INT)
    (tmp_path / "2.json").write_text(json.dumps({"type": "object"}))
    (tmp_path / "orders-value.proto").write_text("message A {}")
    schemas = open_schemas(str(tmp_path))
    assert isinstance(schemas, Directory)
    assert schemas.by_id(1) == Schema(Kind.AVRO, INT, id=1)
    assert schemas.by_id(2, Kind.JSON).kind is Kind.JSON
    assert schemas.by_subject("orders-value", "latest").kind is Kind.PROTOBUF
    for lacking in (lambda: schemas.by_id(2, Kind.AVRO), lambda: schemas.by_subject("../1", "latest")):
        with pytest.raises(UnknownSchema, match="does not exist"):
            lacking()
    with pytest.raises(RegistryConfigError, match="is a directory"):
        schemas.register("x", Schema(Kind.AVRO, INT))
    with pytest.raises(RegistryConfigError, match="neither an http"):
        open_schemas(str(tmp_path / "nowhere"))
