"""Defines schemas, and the errors of finding and using them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from mpbroker.config.extras import pip_install

# Errors of decoders for malformed bytes. Any other error is a bug, and is not caught.
UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    ArithmeticError,
    RecursionError,
    struct.error,
)

Convert = Callable[[Any], Any]


class Kind(StrEnum):
    """The languages of schemas, by the names that registries give them."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


class RegistryUnavailable(RuntimeError):
    """The registry does not answer, or refuses.

    Do not report a record as corrupt for this: the registry may have its schema.
    """


class UnknownSchema(ValueError):
    """No schema has this id, subject or version."""


class SchemaError(ValueError):
    """A text is no schema of its kind, or cannot be used."""


class MissingPackage(RuntimeError):
    """Values of this kind need a package that is not installed; the text has the command for pip."""


class RegistryConfigError(ValueError):
    """The address or another setting of a registry is wrong."""


class Schema(NamedTuple):
    """A schema. It never changes, so it may be kept.

    `references`: name and text of each schema that this one needs; each comes after those that it needs
    itself. `text` is what the registry has: JSON, a .proto file, or base64 of a FileDescriptorProto.
    """

    kind: Kind
    text: str
    references: tuple[tuple[str, str], ...] = ()
    id: int = 0
    guid: UUID | None = None


SchemaId = int | UUID
"""The name of a schema in the framing of a value: its id, or its GUID."""


class Schemas(Protocol):
    """Finds schemas. Methods raise UnknownSchema, SchemaError, RegistryUnavailable."""

    def by_id(self, number: SchemaId, kind: Kind | None = None) -> Schema:
        """Return the schema with this id or GUID. If `kind` is given and differs, raise UnknownSchema."""
        ...

    def by_subject(self, subject: str, version: int | str, kind: Kind | None = None) -> Schema:
        """Return a version of a subject. The version `latest` is the newest one that is not deleted."""
        ...


def of_kind(found: Schema, wanted: Kind | None) -> Schema:
    """Return the schema. Raises UnknownSchema if it is of another kind than the wanted one."""
    if wanted is not None and found.kind is not wanted:
        raise UnknownSchema(f"schema {found.id} is {found.kind}, not {wanted}")
    return found


def needs_packages(kind: str, error: ModuleNotFoundError) -> MissingPackage:
    """Return an error that names the command which installs the package that values of this kind need."""
    return MissingPackage(f"{kind} values need {error.name}: {pip_install('registry')}")
