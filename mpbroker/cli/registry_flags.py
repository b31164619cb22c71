"""Flags of `mpbroker consume` and `produce` that name a schema registry, and the schemas to write with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import option
from mpbroker.config.environment import SCHEMA_REGISTRY, SCHEMA_REGISTRY_CONFIG

if TYPE_CHECKING:
    from mpbroker.cli.records.json_lines import Encoders
    from mpbroker.registry.json_values import Decoder, Encoder
    from mpbroker.registry.rest import Directory, Registry


class RegistryAddress(NamedTuple):
    """The flags that name a registry: its address, and a file with settings of its client."""

    schema_registry: Annotated[
        str | None,
        option(
            "--schema-registry",
            "URL",
            "Confluent's interface, or a directory of schemas: for values that name a schema there.",
            envvar=SCHEMA_REGISTRY,
        ),
    ] = None
    registry_config: Annotated[
        Path | None,
        option(
            "--registry-config",
            "FILE",
            "Properties of Confluent's clients: url, basic.auth.user.info, bearer.auth.token, ssl.*.",
            envvar=SCHEMA_REGISTRY_CONFIG,
        ),
    ] = None


class WrittenSchemas(NamedTuple):
    """The flags that name the schemas of keys and values. Without one, keys and values stay bytes."""

    value_schema_id: Annotated[
        int | None, option("--value-schema-id", "N", "Values are JSON; encode them with this schema.", min=1)
    ] = None
    value_subject: Annotated[
        str | None,
        option("--value-subject", "SUBJECT", "The same, with the newest schema of a subject: TOPIC-value."),
    ] = None
    value_message: Annotated[
        str | None, option("--value-message", "NAME", "Of Protobuf: the message; default: the first one.")
    ] = None
    key_schema_id: Annotated[
        int | None, option("--key-schema-id", "N", "Keys are JSON; encode them with this schema.", min=1)
    ] = None
    key_subject: Annotated[
        str | None,
        option("--key-subject", "SUBJECT", "The same, with the newest schema of a subject: TOPIC-key."),
    ] = None


def decoder(where: RegistryAddress) -> Decoder | None:
    """Return a decoder with the schemas of a registry; None if no flag names a registry. Raises CliError."""
    if where == RegistryAddress():
        return None
    from mpbroker.registry.json_values import Decoder

    return Decoder(_open(where))


def encoders(where: RegistryAddress, wanted: WrittenSchemas) -> Encoders:
    """Return the encoders of keys and values that flags ask for. Raises CliError."""
    from mpbroker.cli.records.json_lines import Encoders

    key = _encoder(where, "key", wanted.key_schema_id, wanted.key_subject, None)
    value = _encoder(where, "value", wanted.value_schema_id, wanted.value_subject, wanted.value_message)
    if value is None and wanted.value_message is not None:
        raise CliError("--value-message goes with --value-schema-id or --value-subject", USAGE_ERROR)
    return Encoders(key, value)


def _encoder(
    where: RegistryAddress, part: str, number: int | None, subject: str | None, message: str | None
) -> Encoder | None:
    if number is None and subject is None:
        return None
    if number is not None and subject is not None:
        raise CliError(f"--{part}-schema-id and --{part}-subject exclude each other", USAGE_ERROR)
    if where == RegistryAddress():
        raise CliError(f"a schema of the {part} needs --schema-registry", USAGE_ERROR)
    from mpbroker.registry.json_values import Encoder
    from mpbroker.registry.schemas import SchemaError, UnknownSchema

    schemas = _open(where)
    try:
        with failures():
            found = (
                schemas.by_id(number) if number is not None else schemas.by_subject(str(subject), "latest")
            )
            return Encoder(found, message)
    except (SchemaError, UnknownSchema) as error:
        raise CliError(f"schema of the {part}: {error}", USAGE_ERROR) from error


def _open(where: RegistryAddress) -> Registry | Directory:
    from mpbroker.cli.cluster.client import read_entries
    from mpbroker.registry.rest import is_address, open_schemas
    from mpbroker.registry.schemas import RegistryConfigError

    settings = {entry.key: entry.value for entry in read_entries(where.registry_config, "--registry-config")}
    place = where.schema_registry
    try:
        if place is None:
            return open_schemas(settings)
        if is_address(place):
            return open_schemas(settings | {"schema.registry.url": place})
        if settings:
            raise CliError(
                f"--registry-config goes with an address, and --schema-registry {place} is a directory: "
                f"leave one away (or {SCHEMA_REGISTRY_CONFIG}, {SCHEMA_REGISTRY} of the environment)",
                USAGE_ERROR,
            )
        return open_schemas(place)
    except RegistryConfigError as error:
        raise CliError(str(error), USAGE_ERROR) from error


@contextmanager
def failures() -> Iterator[None]:
    """Raise CliError if the block fails because a registry does not answer, or a package is missing."""
    from mpbroker.registry.schemas import MissingPackage, RegistryUnavailable

    try:
        yield
    except RegistryUnavailable as error:
        raise CliError(str(error)) from error
    except MissingPackage as error:
        raise CliError(str(error), USAGE_ERROR) from error
