"""Read the fields of a coordinator's record: values of Kafka's primitive types, one after the other.

A key or value begins with its version, two bytes. (Kafka: MessageUtil.toVersionPrefixedBytes and the classes
that it generates.) A field that is cut off raises struct.error, IndexError or MalformedMessage, a string that
is not UTF-8 UnicodeDecodeError. `UNREADABLE` has all of them; a reader of records makes UnreadableRecord of
it.
"""

from __future__ import annotations

import struct
from typing import Final

from mpbroker.protocol.wire import MalformedMessage, read_uvarint

BYTE: Final = struct.Struct(">b")
SHORT: Final = struct.Struct(">h")
INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")

UNREADABLE: Final = (struct.error, IndexError, UnicodeDecodeError, MalformedMessage)


class UnreadableRecord(Exception):
    """Raised for a record of a coordinator's topic that is damaged, or of a version that is not known."""


class FieldReader:
    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self._data = data
        (self.version,) = SHORT.unpack_from(data)
        self._at = 2
        self._flexible = flexible

    @classmethod
    def of_value(cls, data: bytes, newest: int, first_flexible: int) -> FieldReader:
        (version,) = SHORT.unpack_from(data)
        if not 0 <= version <= newest:
            raise UnreadableRecord(f"version {version} of a value, {newest} is the newest known")
        return cls(data, flexible=version >= first_flexible)

    def int8(self) -> int:
        return self._number(BYTE)

    def int16(self) -> int:
        return self._number(SHORT)

    def int32(self) -> int:
        return self._number(INT)

    def int64(self) -> int:
        return self._number(LONG)

    def count(self) -> int:
        """Read the number of elements of an array, -1 if the array is null."""
        return self._uvarint() - 1 if self._flexible else self.int32()

    def octets(self) -> bytes:
        return self._take(self.count())

    def nullable_string(self) -> str | None:
        length = self.count() if self._flexible else self.int16()
        return None if length < 0 else self._take(length).decode()

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedMessage("a string is null")
        return text

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields of a struct. Returns their bytes by tag."""
        if not self._flexible:
            return {}
        return {self._uvarint(): self._take(self._uvarint()) for _ in range(self._uvarint())}

    def _uvarint(self) -> int:
        number, self._at = read_uvarint(self._data, self._at)
        return number

    def _number(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return int(number)

    def _take(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length] if length >= 0 else b""
        if len(piece) != length:
            raise MalformedMessage(f"{length} bytes are announced and {len(piece)} are left")
        self._at += length
        return piece
