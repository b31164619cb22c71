"""Kafka's primitive types on the wire, for the compiled codec and the headers.

Source: https://kafka.apache.org/protocol#protocol_types, KIP-482 (compact lengths, tagged fields). Functions
that read may raise IndexError or struct.error at the end of the buffer, or return a position after its end.
Decoders turn both into MalformedMessage.
"""

from __future__ import annotations

import codecs
from typing import NoReturn, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

# Kafka's strings are at most this long, also where the length is a varint.
MAX_STRING = 32767


class MalformedMessage(ValueError):
    """Raised if bytes are not a message of the expected version. The connection is closed, as in Kafka."""


# How `decode` treats bytes that are no UTF-8: it replaces them by U+FFFD, as Java does.
REPLACED = "kafka.replaced"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Replace all invalid bytes of a string from `error.start` on. Return (text, end of the string).

    A replacement takes three bytes when it is encoded. Raises MalformedMessage if the replacements make the
    string too long to be encoded.
    """
    assert isinstance(error, UnicodeDecodeError)
    text = error.object[error.start :].decode("utf-8", "replace")
    if error.start + len(text.encode()) > MAX_STRING:
        raise MalformedMessage(
            f"a string is longer than {MAX_STRING} bytes where U+FFFD replaces invalid UTF-8"
        )
    return text, len(error.object)


codecs.register_error(REPLACED, _replaced)


class UnsupportedVersion(ValueError):
    """Raised if the schema does not have an API key or version. Ask `valid_versions` before."""


class RecordsSlice:
    """Takes the place of `length` bytes of records that another process sends, like Kafka's FileRecords.

    A `records` field may have a RecordsSlice as its value. The encoder writes the length and returns the
    slice as a separate segment. Subclasses define which bytes to send.
    """

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def more(b: Buffer, p: int, n: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte is `n`.

    Return the value and the position after it.
    """
    n &= 127
    shift = 7
    while True:
        byte = b[p]
        p += 1
        n |= (byte & 127) << shift
        if byte < 128:
            return n, p
        shift += 7
        if shift > 28:
            raise MalformedMessage("a varint is longer than 5 bytes")


def more_string(b: Buffer, p: int, n: int) -> tuple[int, int]:
    n, p = more(b, p, n)
    if n > MAX_STRING + 1:
        raise MalformedMessage(f"a string of {n - 1} bytes is longer than {MAX_STRING}")
    return n, p


def read_uvarint(b: Buffer, p: int) -> tuple[int, int]:
    n = b[p]
    return (n, p + 1) if n < 128 else more(b, p + 1, n)


def skip_tags(b: Buffer, p: int, count: int) -> int:
    """Skip unknown tagged fields; their varint number begins with byte `count`. Return the position after."""
    if count > 127:
        count, p = more(b, p, count)
    for _ in range(count):
        _, p = read_uvarint(b, p)
        size, p = read_uvarint(b, p)
        p += size
    return p


def uvarint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


UVARINTS = [uvarint(n) for n in range(256)]


def null(field: str) -> NoReturn:
    raise MalformedMessage(f"{field} is null")


def too_many(field: str, count: int) -> NoReturn:
    raise MalformedMessage(f"{field} has {count} elements, more than the remaining bytes")


def wrong_tag_size(tag: int) -> NoReturn:
    raise MalformedMessage(f"tagged field {tag} does not have its given size")
