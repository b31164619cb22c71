"""The framing that names the schema of a value (Confluent: SchemaId, MessageIndexes).

    prefix   0, id (4 bytes, big endian) | 1, GUID (16 bytes)
    header   __key_schema_id, __value_schema_id: 1, GUID; the value itself has no prefix

After id or GUID, Protobuf has the path of the message in its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from mpbroker.registry.schemas import SchemaId

ID_PREFIX_BYTES: Final = 5
GUID_PREFIX_BYTES: Final = 17
KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
_OF_ID: Final = 0
_OF_GUID: Final = 1
# Messages within each other; compilers of Protobuf allow fewer.
_PATH_MAX: Final = 100
_INDEX_BITS: Final = 32

Path = tuple[int, ...]
FIRST_MESSAGE: Final[Path] = (0,)


class Framed(NamedTuple):
    """A value, the id of its schema, and the position after that id.

    The position is `start`, in `frame`: the bytes that contain the id, which are the value or its header. For
    Protobuf the path of the message begins at `start`.
    """

    schema_id: SchemaId
    frame: bytes
    start: int
    value: bytes

    @property
    def data_start(self) -> int:
        """Return where the data begin in `value`. With Protobuf call `path` instead."""
        return self.start if self.frame is self.value else 0

    def path(self) -> tuple[Path, int]:
        """Return the path of the message, and where the data begin. Raises ValueError."""
        path, end = read_path(self.frame, self.start)
        return path, end if self.frame is self.value else 0


class NotFramed(ValueError):
    """The bytes name no schema."""


def read(value: bytes, header: bytes | None = None) -> Framed:
    """Return the framing in `header` (content of the value's header), else in `value`. Raises NotFramed."""
    for frame in (header, value):
        if frame and frame[0] == _OF_GUID and len(frame) >= GUID_PREFIX_BYTES:
            return Framed(UUID(bytes=frame[1:GUID_PREFIX_BYTES]), frame, GUID_PREFIX_BYTES, value)
    if len(value) >= ID_PREFIX_BYTES and value[0] == _OF_ID:
        return Framed(int.from_bytes(value[1:ID_PREFIX_BYTES], "big"), value, ID_PREFIX_BYTES, value)
    raise NotFramed("it does not begin with a zero and the id of a schema")


def header_of(headers: Iterable[tuple[str, bytes | None]], *, is_key: bool) -> bytes | None:
    """Return the header that names the schema of a record's key or value. Of several the last one counts."""
    name = KEY_HEADER if is_key else VALUE_HEADER
    found = None
    for one, value in headers:
        if one == name:
            found = value
    return found


def prefix(number: int, path: Path | None = None) -> bytes:
    """Return the prefix of values with the schema id `number`. For Protobuf give the message's `path`."""
    start = b"\0" + number.to_bytes(4, "big")
    if path is None:
        return start
    if path == FIRST_MESSAGE:
        return start + b"\0"
    return start + b"".join(_varint(one) for one in (len(path), *path))


def read_path(data: bytes, at: int) -> tuple[Path, int]:
    """Read the path of a message; return it and the position after it. Raises ValueError."""
    count, at = read_varint(data, at, _INDEX_BITS)
    if not count:
        return FIRST_MESSAGE, at
    if not 0 < count <= _PATH_MAX:
        raise ValueError(f"the path of a message cannot have {count} steps")
    path = []
    for _ in range(count):
        index, at = read_varint(data, at, _INDEX_BITS)
        path.append(index)
    return tuple(path), at


def _varint(number: int) -> bytes:
    """Write a number that is not negative as Kafka's zigzag varint."""
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: bytes, at: int, bits_max: int) -> tuple[int, int]:
    """Read a zigzag varint; return it and the position after it. Raises ValueError."""
    bits = 0
    for shift in range(0, bits_max, 7):
        if at >= len(data):
            raise ValueError("it ends within a number")
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            if bits >> bits_max:
                break
            return (bits >> 1) ^ -(bits & 1), at
    raise ValueError(f"a number has more than {bits_max} bits")
