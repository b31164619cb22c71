"""The schema of Kafka's messages as objects, parsed on first use.

The files have the form of Kafka's message JSON (Kafka's clients/src/main/resources/common/message/README.md).
`kafka.json` has the requests and responses that mpbroker serves or sends, and ops/schema/extract.py generates
it. `metadata-records.json` has the KRaft records of `__cluster_metadata` that mpbroker writes,
`coordinator-records.json` the records of `__consumer_offsets` and `__transaction_state`. Nested structs are
under `commonStructs`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["request", "response", "coordinator-key", "coordinator-value", "data"]

# struct module characters of the types that always take the same room; uuid is kept as its 16 raw bytes.
FIXED_FORMAT = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_SIZE = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}
VARIABLE = ("string", "bytes", "records")
NO_VERSIONS = range(0)


def snake(camel: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", camel).lower()


def parse_versions(spec: str | None, latest: int) -> range:
    """Return the range of versions for Kafka's "3", "3-5", "3+" (up to `latest`) or "none"."""
    if spec is None or spec == "none":
        return NO_VERSIONS
    if spec.endswith("+"):
        return range(int(spec[:-1]), latest + 1)
    first, _, last = spec.partition("-")
    return range(int(first), int(last or first) + 1)


class Field(msgspec.Struct, frozen=True, eq=False):
    """A field of a message, with the versions that have it."""

    name: str
    type: str
    is_array: bool
    versions: range
    nullable: range
    tagged: range
    tag: int
    default_text: str | None
    struct: StructType | None

    @property
    def fixed_format(self) -> str | None:
        return FIXED_FORMAT.get(self.type)

    @property
    def default(self) -> object:
        """Return the field's default value; None for a struct, whose fields have their own defaults."""
        text = self.default_text
        if self.is_null_default():
            return None
        if self.is_array:
            return []
        if self.type == "string":
            return text or ""
        if self.type == "bool":
            return text == "true"
        if self.type == "float64":
            return float(text or 0)
        if self.type == "uuid":
            return bytes(16)
        if self.type in ("bytes", "records"):
            return b""
        if self.struct is not None:
            return None
        return int(text or "0", 0)

    def is_null_default(self) -> bool:
        return self.default_text == "null" or (self.type == "records" and bool(self.nullable))


class StructType(msgspec.Struct, frozen=True, eq=False):
    name: str
    fields: list[Field]

    def at(self, version: int) -> tuple[list[Field], list[Field]]:
        """Return (untagged fields, tagged fields by ascending tag) of one version."""
        live = [f for f in self.fields if version in f.versions]
        plain = [f for f in live if version not in f.tagged]
        return plain, sorted((f for f in live if version in f.tagged), key=lambda f: f.tag)

    def minimal_size(self, version: int, flexible: bool) -> int:
        """Return the minimal size of the struct in bytes; decoders check the lengths of arrays by it."""
        plain, _ = self.at(version)
        return sum(minimal_size(f, version, flexible) for f in plain) + flexible


def element_size(field: Field, version: int, flexible: bool) -> int:
    """Return the minimal size in bytes of one value of the field, or of one element of its array."""
    if field.fixed_format is not None:
        return FIXED_SIZE[field.fixed_format]
    if field.struct is not None:
        return field.struct.minimal_size(version, flexible)
    if flexible:
        return 1
    return 2 if field.type == "string" else 4


def minimal_size(field: Field, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.struct is not None and version in field.nullable:
        return 1
    return element_size(field, version, flexible)


class Message(StructType, frozen=True, eq=False):
    kind: Kind
    api_key: int
    valid: range
    flexible: range
    structs: dict[str, StructType]


def _parse_message(json: dict[str, Any]) -> Message:
    valid = parse_versions(json["validVersions"], 32767)
    latest = valid[-1]
    structs: dict[str, StructType] = {}
    by_name = {s["name"]: s["fields"] for s in json.get("commonStructs", ())}

    def parse_field(field: dict[str, Any]) -> Field:
        name = field["type"].removeprefix("[]")
        return Field(
            name=snake(field["name"]),
            type=name,
            is_array=field["type"].startswith("[]"),
            versions=parse_versions(field["versions"], latest),
            nullable=parse_versions(field.get("nullableVersions"), latest),
            tagged=parse_versions(field.get("taggedVersions"), latest),
            tag=field.get("tag", -1),
            default_text=field.get("default"),
            struct=None if name in FIXED_FORMAT or name in VARIABLE else struct(name),
        )

    def struct(name: str) -> StructType:
        if name not in structs:
            structs[name] = StructType(name, [parse_field(f) for f in by_name[name]])
        return structs[name]

    for name in by_name:
        struct(name)
    return Message(
        name=json["name"],
        fields=[parse_field(f) for f in json["fields"]],
        kind=json["type"],
        api_key=json["apiKey"],
        valid=valid,
        flexible=parse_versions(json["flexibleVersions"], latest),
        structs=structs,
    )


@cache
def _raw_messages() -> dict[tuple[Kind, int], dict[str, Any]]:
    found: dict[tuple[Kind, int], dict[str, Any]] = {}
    for name in ("kafka.json", "metadata-records.json", "coordinator-records.json"):
        text = Path(__file__).with_name(name).read_bytes()
        for message in msgspec.json.decode(text)["messages"]:
            found[message["type"], message["apiKey"]] = message
    return found


@cache
def message_for(kind: Kind, api_key: int) -> Message | None:
    """Return the schema of one message; None if Kafka has no such message."""
    raw = _raw_messages().get((kind, api_key))
    return None if raw is None else _parse_message(raw)


def load() -> list[Message]:
    """Return the schemas of all messages, in the order of kind and API key, for tools and tests."""
    return [_parse_message(raw) for _, raw in sorted(_raw_messages().items())]
