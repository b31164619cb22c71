"""Protobuf schemas as text and as descriptors: what they import, and what no schema may make a host do."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from mpbroker.registry import protobuf
from mpbroker.registry.schemas import Kind, Schema, SchemaError

HEAD = 'syntax = "proto3"; '


def text(body: str, **needed: str) -> Schema:
    references = tuple((f"{name}.proto", HEAD + one) for name, one in needed.items())
    return Schema(Kind.PROTOBUF, HEAD + body, references)


def serialized(imports: str, references: tuple[tuple[str, str], ...] = ()) -> Schema:
    file = FileDescriptorProto(name="x", syntax="proto3", dependency=[imports])
    file.message_type.add(name="A")
    return Schema(Kind.PROTOBUF, base64.b64encode(file.SerializeToString()).decode(), references)


@pytest.mark.process
def test_paths_count_the_messages_of_the_text() -> None:
    messages = protobuf.messages_of(
        text("message A { map<string, B> m = 1; message C { message D {} } } message B {}")
    )
    paths = {"A": (0,), "A.C": (0, 0), "A.C.D": (0, 0, 0), "B": (1,)}
    for name, path in paths.items():
        found = messages.named(name)
        assert (messages.at(path).full_name, messages.path_of(found)) == (name, path)
    # As confluent-kafka counts in Python.
    assert messages.at((0, 1)).full_name == "A.C"
    for path in ((2,), (0, 2), (0, -1), (-1,), (0, 0, 1)):
        with pytest.raises(ValueError, match="no message at"):
            messages.at(path)


@pytest.mark.process
def test_files_that_clients_do_not_register_are_there() -> None:
    imports = "google/protobuf/timestamp.proto"
    assert protobuf.messages_of(text(f'import "{imports}"; message A {{ google.protobuf.Timestamp t = 1; }}'))
    assert protobuf.messages_of(
        text('import "google/type/date.proto"; message A { google.type.Date d = 1; }')
    )
    for shipped in (imports, "google/type/date.proto", "google/protobuf/api.proto", "confluent/meta.proto"):
        assert protobuf.messages_of(serialized(shipped)).named(None).name == "A"


@pytest.mark.parametrize(
    ("imports", "said"),
    [
        ("other.proto", "imports other.proto, which it does not reference"),
        ("google/protobuf/../os.proto", "does not reference"),
        ("google/protobuf/nosuch.proto", "google.protobuf.nosuch_pb2 is not installed"),
    ],
)
def test_imports_that_nobody_has_are_named(imports: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        protobuf.messages_of(serialized(imports))


@pytest.mark.process
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (text("message {"), "1:28: Expected message name"),
        (text("message A { Nosuch n = 1; }"), '"Nosuch" is not defined'),
        (text('import "b.proto";', b="message"), "b.proto"),
        (text('import "/etc/passwd";'), "/etc/passwd"),
        (Schema(Kind.PROTOBUF, HEAD, (("../x.proto", HEAD),)), "'../x.proto' is no name of a file"),
        (Schema(Kind.PROTOBUF, HEAD, (("/x.proto", HEAD),)), "'/x.proto' is no name of a file"),
    ],
)
def test_texts_that_are_no_schema_are_refused(schema: Schema, said: str) -> None:
    with pytest.raises(SchemaError, match=said) as raised:
        protobuf.messages_of(schema)
    assert "/tmp" not in str(raised.value)


@pytest.mark.process
def test_a_text_is_compiled_once_also_one_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = text("message Once {}"), text("message Once {")
    assert protobuf.messages_of(good) is protobuf.messages_of(good)
    with pytest.raises(SchemaError) as first:
        protobuf.messages_of(bad)
    monkeypatch.setattr(protobuf, "_compiled", None)
    with pytest.raises(SchemaError) as second:
        protobuf.messages_of(bad)
    assert str(second.value) == str(first.value)


def test_a_schema_without_messages_has_no_first_one() -> None:
    with pytest.raises(SchemaError, match="no messages"):
        protobuf.messages_of(Schema(Kind.PROTOBUF, "CgA=")).named(None)


def test_bytes_that_are_no_message_are_refused() -> None:
    found = protobuf.messages_of(serialized("google/protobuf/any.proto")).named(None)
    with pytest.raises(ValueError, match="it is no message A"):
        protobuf.read(found, b"\xff")
