"""Protobuf messages by the descriptors of a registry, in a pool of their own.

Most registries give descriptors (format=serialized). Text is compiled by protoc of grpcio-tools, in a process
of its own: a text that makes it crash or hang ends that process alone.
"""

from __future__ import annotations

import binascii
import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mpbroker.registry.framing import FIRST_MESSAGE
from mpbroker.registry.framing import Path as MessagePath
from mpbroker.registry.schemas import Schema, SchemaError, needs_packages

try:
    from google.protobuf import json_format, message_factory
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError, EncodeError, Message
except ModuleNotFoundError as error:
    raise needs_packages("Protobuf", error) from error

_MAIN: Final = "mpbroker_registry_schema.proto"
# Files that clients never register, and where their descriptors are. (Confluent: ProtobufSchema.)
_SHIPPED: Final = {
    "google/protobuf/": "google.protobuf.",
    "google/type/": "google.type.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}
_SHIPPED_NAME: Final = re.compile(r"((?:google/protobuf|google/type|confluent)/)([a-z0-9_/]+)\.proto")
_WARNING: Final = re.compile(r"W\d{4} |WARNING: ")
_COMPILES_WITHIN_SECONDS = 30.0
_SAID_MAX = 400


class Messages:
    """The messages of a schema."""

    def __init__(self, schema: Schema) -> None:
        """Read the schema's descriptors, or compile its text. Raises SchemaError."""
        self.pool = DescriptorPool()
        try:
            for proto in _descriptors(schema):
                self.pool.Add(proto)
            self._file = self.pool.FindFileByName(_MAIN)
        except (TypeError, KeyError) as error:
            raise SchemaError(f"Protobuf schema: {error}") from error

    def at(self, path: MessagePath) -> Descriptor:
        """Return the message at a path. Raises ValueError.

        Compilers add a nested message for each map field. Java's clients number only the messages that the
        text declares; other clients number the added ones, too. If the path has no message by Java's numbers,
        the other numbers are tried.
        """
        found = self._at(path, _of_text) or self._at(path, _of_descriptor)
        if found is None:
            raise ValueError(f"its schema has no message at {list(path)}")
        return found

    def _at(self, path: MessagePath, nested: Callable[[Descriptor], list[Descriptor]]) -> Descriptor | None:
        inside = list(self._file.message_types_by_name.values())
        found = None
        for index in path:
            if not 0 <= index < len(inside):
                return None
            found = inside[index]
            inside = nested(found)
        return None if found is None or found.GetOptions().map_entry else found

    def named(self, name: str | None) -> Descriptor:
        """Return a message by its full name, or its name without the package; None: the first one.

        Raises SchemaError.
        """
        if name is None:
            try:
                return self.at(FIRST_MESSAGE)
            except ValueError as error:
                raise SchemaError("Protobuf schema: it has no messages") from error
        for full in (name, f"{self._file.package}.{name}"):
            try:
                return self.pool.FindMessageTypeByName(full)
            except KeyError:
                continue
        raise SchemaError(f"Protobuf schema: it has no message {name}")

    def path_of(self, wanted: Descriptor) -> MessagePath:
        """Return the path of a message of the schema itself. Raises SchemaError."""
        for path, found in _walk((), list(self._file.message_types_by_name.values())):
            if found.full_name == wanted.full_name:
                return path
        raise SchemaError(f"Protobuf schema: {wanted.full_name} is in a file that the schema imports")

    def to_json(self, message: Message) -> bytes:
        """Write a message as JSON, with the fields' names in the schema. Raises ValueError."""
        try:
            return json_format.MessageToJson(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                indent=None,
                ensure_ascii=False,
                descriptor_pool=self.pool,
            ).encode()
        except (json_format.Error, TypeError) as error:
            raise ValueError(f"it has no form in JSON: {error}") from error

    def from_json(self, descriptor: Descriptor, value: Any) -> Message:
        """Return a message from parsed JSON. Raises ValueError."""
        try:
            return json_format.ParseDict(value, new(descriptor), descriptor_pool=self.pool)
        except (json_format.Error, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


def _of_text(message: Descriptor) -> list[Descriptor]:
    return [one for one in message.nested_types if not one.GetOptions().map_entry]


def _of_descriptor(message: Descriptor) -> list[Descriptor]:
    return list(message.nested_types)


def _walk(path: MessagePath, inside: Sequence[Descriptor]) -> Iterator[tuple[MessagePath, Descriptor]]:
    for index, one in enumerate(inside):
        yield (*path, index), one
        yield from _walk((*path, index), _of_text(one))


def messages_of(schema: Schema) -> Messages:
    """Return the messages of a schema, or raise SchemaError. Either is cached: a schema is compiled once."""
    found = _made(schema)
    if isinstance(found, SchemaError):
        raise SchemaError(str(found))
    return found


@lru_cache(maxsize=256)
def _made(schema: Schema) -> Messages | SchemaError:
    try:
        return Messages(schema)
    except SchemaError as error:
        return error


def new(descriptor: Descriptor) -> Message:
    return message_factory.GetMessageClass(descriptor)()


def read(descriptor: Descriptor, data: bytes) -> Message:
    """Decode a message. Raises ValueError."""
    message = new(descriptor)
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"it is no message {descriptor.full_name}: {error}") from error
    return message


def write(message: Message) -> bytes:
    """Encode a message. Raises ValueError."""
    try:
        return message.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise ValueError(str(error)) from error


def _descriptors(schema: Schema) -> list[FileDescriptorProto]:
    """Return the file of the schema and all files that it imports, each after those that it needs."""
    main = _serialized(schema.text)
    if main is None:
        return _compiled(schema)
    main.name = _MAIN
    found: dict[str, FileDescriptorProto] = {}
    for name, text in schema.references:
        needed = _serialized(text)
        if needed is None:
            raise SchemaError(f"Protobuf schema: the registry gives {name} as text, and others serialized")
        needed.name = name
        _add_shipped(needed, found, {one for one, _ in schema.references})
        found[name] = needed
    _add_shipped(main, found, {name for name, _ in schema.references})
    return [*found.values(), main]


def _serialized(text: str) -> FileDescriptorProto | None:
    """Decode the descriptor of a file from base64; return None for the text of a .proto file."""
    try:
        return FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None


def _add_shipped(
    file: FileDescriptorProto, found: dict[str, FileDescriptorProto], registered: set[str]
) -> None:
    """Add to `found` those files that `file` imports and that Python packages ship, such as Protobuf's."""
    for name in file.dependency:
        if name in found or name in registered:
            continue
        match = _SHIPPED_NAME.fullmatch(name)
        if match is None:
            raise SchemaError(f"Protobuf schema: it imports {name}, which it does not reference")
        module = f"{_SHIPPED[match[1]]}{match[2].replace('/', '.')}_pb2"
        needed = FileDescriptorProto()
        try:
            import_module(module).DESCRIPTOR.CopyToProto(needed)
        except ModuleNotFoundError as error:
            raise SchemaError(f"Protobuf schema: it imports {name}, and {module} is not installed") from error
        _add_shipped(needed, found, registered)
        found[name] = needed


def _compiled(schema: Schema) -> list[FileDescriptorProto]:
    """Compile the text of a schema and its references."""
    try:
        tools = Path(str(import_module("grpc_tools").__file__)).parent
    except ModuleNotFoundError as error:
        raise needs_packages("Protobuf", error) from error
    with tempfile.TemporaryDirectory(prefix="mpbroker-protoc-") as directory:
        for name, text in (*schema.references, (_MAIN, schema.text)):
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts or not pure.name or "\0" in name:
                raise SchemaError(f"Protobuf schema: {name!r} is no name of a file to import")
            path = Path(directory, pure)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        out = Path(directory, "mpbroker_registry_schema.bin")
        # Packages with further .proto files install them beside grpc_tools.
        paths = [f"-I{one}" for one in (directory, tools / "_proto", tools.parent)]
        command = [sys.executable, "-m", "grpc_tools.protoc", *paths, "--include_imports"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={out}", _MAIN],
                capture_output=True,
                timeout=_COMPILES_WITHIN_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SchemaError(f"Protobuf schema: protoc does not end: {error}") from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").replace(f"{directory}/", "").splitlines()
            said = "; ".join(one for one in lines if not _WARNING.match(one))[:_SAID_MAX]
            raise SchemaError(f"Protobuf schema: {said or f'protoc ended with {done.returncode}'}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)
