"""Requests that are well-formed and mean harm, of every API and version, written from the schema.

The bytes are not made by the broker's own encoder, which knows no unknown tagged field and no repeated
element. Number N of a seed is always the same request, so one that did harm can be sent alone.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Final, NamedTuple

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol import schema
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.schema import FIXED_FORMAT, Field, Message, StructType
from mpbroker.protocol.wire import uvarint
from tests.support import hostile_batches
from tests.support.hostile_batches import integers

# The one name that things have which exist: a topic, a group, a transactional id, a user, a member.
KNOWN: Final = "known"
STRING_MAX = 32_767
# Of all of a request; the largest are refused by their elements, not by their bytes.
BODY_MAX = 4 << 20
FIRST_UNKNOWN_TAG = 1_000
INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
NAMES: Final = (
    "",
    ".",
    "..",
    "-",
    "a/../../b",
    "a b",
    "a\0b",
    "line\n2026-01-01 00:00:00,000 ERROR [supervisor] forged",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnol",
    "\ufeff",
    "é" * 124,
    "\U0001f4a9",
    "x" * 249,
    "x" * 250,
    "x.y",
    "x_y",
    "*",
    "%s%n{0}{0.__class__}",
    *INTERNAL,
)
LONG_NAMES: Final = ("l" * STRING_MAX, "\0" * STRING_MAX, "é" * (STRING_MAX // 2), "a." * (STRING_MAX // 2))
# What fields of these names are about. Others get a name from above.
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "protocol_type": ("consumer", "connect", ""),
    "entity_type": ("user", "client-id", "ip", "user"),
    "key": ("producer_byte_rate", "consumer_byte_rate", "request_percentage", KNOWN),
    "config_name": ("retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", KNOWN),
    "value": ("-1", "0", "1e999", "compact", "9" * 300, "NaN"),
    "mechanism": ("PLAIN", "SCRAM-SHA-512", "NONE"),
    "host": ("*", "127.0.0.1", "::1"),
    "principal": ("User:*", f"User:{KNOWN}", "User:", KNOWN),
    "transactional_id_pattern": (".*", "(a|a)*b", "[", "(?=x)", "x{1000}{1000}"),
    "server_assignor": ("uniform", "range", "none"),
}
ENUMS: Final = (
    "type",
    "resource_type",
    "key_type",
    "operation",
    "pattern_type",
    "permission_type",
    "match_type",
    "isolation_level",
    "acks",
    "config_operation",
)
PARTITION_FIELDS: Final = ("partition", "partition_index", "partition_id", "index", "partition_indexes")
# They stand for numbers that count up when an element is repeated.
DIGITS, COUNTED = b"########", b"~~~~"


class Mood(Enum):
    """What a request overdoes."""

    PLAIN = auto()  # a little of everything
    HUGE = auto()  # one list with very many that differ
    DUPLICATES = auto()  # one list with the same very often
    LONG_NAMES = auto()
    STRANGE_NAMES = auto()
    NUMBERS = auto()  # the ends of each range
    TAGS = auto()  # tagged fields that nobody knows
    NULLS = auto()
    EMPTY = auto()
    DEEP = auto()  # lists within lists, all with some


# The large ones cost a hundred times as much as the others.
MOODS: Final = (*(mood for mood in Mood if mood not in (Mood.HUGE, Mood.DUPLICATES)),)
LARGE: Final = (Mood.HUGE, Mood.DUPLICATES)
LARGE_SHARE = 0.05


class Hostile(NamedTuple):
    """One request."""

    key: int
    version: int
    mood: Mood
    frame: bytes

    def __repr__(self) -> str:
        return f"{ApiKey(self.key).name} v{self.version} {self.mood.name} of {len(self.frame)} bytes"


@cache
def message_of(key: int) -> Message:
    found = schema.message_for("request", key)
    assert found is not None
    return found


def versions_of(told: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Return each API with each version, of what ApiVersions has told."""
    return [(key, version) for key, (low, high) in sorted(told.items()) for version in range(low, high + 1)]


def hostile(
    seed: int,
    number: int,
    versions: Sequence[tuple[int, int]],
    known_id: bytes,
    large_share: float = LARGE_SHARE,
) -> Hostile:
    """Return a request. Numbers that follow each other go through all versions."""
    key, version = versions[number % len(versions)]
    chance = random.Random(f"{seed}/{number}")
    mood = chance.choice(LARGE if chance.random() < large_share else MOODS)
    writer = Writer(chance, message_of(key), version, mood, known_id)
    body = writer.body()
    return Hostile(key, version, mood, framed(chance, key, version, writer, body, number & 0x7FFFFFFF))


def framed(
    chance: random.Random, key: int, version: int, writer: Writer, body: bytes, correlation: int
) -> bytes:
    client = chance.choice((None, "", "hostile", *NAMES[:14]))
    raw = None if client is None else client.encode()
    header = struct.pack(">hhi", key, version, correlation)
    header += struct.pack(">h", -1) if raw is None else struct.pack(">h", len(raw)) + raw
    if writer.flexible:
        header += writer.tags([])
    return struct.pack(">i", len(header) + len(body)) + header + body


@dataclass
class Writer:
    """Writes one body. `known_id` is the id of the topic that exists."""

    chance: random.Random
    message: Message
    version: int
    mood: Mood
    known_id: bytes

    def __post_init__(self) -> None:
        self.flexible = self.version in self.message.flexible
        self.api_name = ApiKey(self.message.api_key).name
        # Who may delete them does, and all groups with them.
        is_deletion = self.api_name == "DELETE_TOPICS"
        self.names = [name for name in NAMES if not (is_deletion and name in INTERNAL)]
        self.left = BODY_MAX
        self.large: Field | None = None
        if self.mood in LARGE:
            lists = [*arrays(self.message, self.version)]
            self.large = self.chance.choice(lists) if lists else None

    def body(self) -> bytes:
        return self.struct(self.message)

    def struct(self, of: StructType) -> bytes:
        plain, tagged = of.at(self.version)
        parts = [self.field(one) for one in plain]
        if self.flexible:
            given = [one for one in tagged if one is self.large or self.chance.random() < 0.5]
            parts.append(self.tags([(one.tag, self.field(one)) for one in given]))
        return b"".join(parts)

    def tags(self, known: list[tuple[int, bytes]]) -> bytes:
        """Return known tagged fields, and others behind them."""
        count = 0
        if self.mood is Mood.TAGS and self.left > 0:
            count = self.chance.choice((1, 10, 10, 900))
        elif self.chance.random() < 0.05:
            count = 1
        size = self.chance.choice((0, 1, 130))
        self.left -= count * (size + 4)
        strangers = [(FIRST_UNKNOWN_TAG + n, b"?" * size) for n in range(count)]
        written = [uvarint(tag) + uvarint(len(value)) + value for tag, value in (*known, *strangers)]
        return uvarint(len(written)) + b"".join(written)

    def field(self, one: Field) -> bytes:
        fixed = self.tamed(one)
        if fixed is not None:
            return fixed
        nullable = self.version in one.nullable
        share = 0.9 if self.mood is Mood.NULLS else 0.1
        if nullable and one is not self.large and self.chance.random() < share:
            return self.null(one)
        return self.array(one) if one.is_array else self.value(one, nullable)

    def tamed(self, one: Field) -> bytes | None:
        """Return a value that is chosen so that the broker may go on as it is; None for most fields."""
        tame = TAMED.get((self.api_name, one.name))
        if tame is None or one.fixed_format is None:
            return None
        return struct.pack(f">{one.fixed_format}", self.chance.choice(tame))

    def null(self, one: Field) -> bytes:
        if one.struct is not None and not one.is_array:
            return b"\xff"
        if self.flexible:
            return b"\0"
        return b"\xff\xff" if one.type == "string" and not one.is_array else b"\xff\xff\xff\xff"

    # ---- arrays

    def array(self, one: Field) -> bytes:
        if one is self.large:
            return self.large_array(one)
        count = self.chance.choice((0, 1, 1, 2))
        if self.mood is Mood.EMPTY:
            count = 0
        elif self.mood in LARGE:
            count = 1
        elif self.mood is Mood.DEEP:
            count = self.chance.choice((1, 3, 8))
        if self.left <= 0:
            count = min(count, 1)
        return self.counted(count) + b"".join(self.value(one) for _ in range(count))

    def large_array(self, one: Field) -> bytes:
        most = all_apis()[self.message.api_key].elements_max
        if self.mood is Mood.DUPLICATES:
            element = self.value(one)
            count = self.count_of(len(element), (1_000, 10_001, most // 2))
            return self.counted(count) + element * count
        element = self.value(one)
        count = self.count_of(len(element), (1_000, 10_001, most // 2, most - 10, most + 1))
        if one.fixed_format in ("h", "i", "q"):
            return self.counted(count) + struct.pack(f">{count}{one.fixed_format}", *_up_to(one, count))
        each = [
            element.replace(DIGITS, b"%08d" % n).replace(COUNTED, struct.pack(">i", n)) for n in range(count)
        ]
        return self.counted(count) + b"".join(each)

    def count_of(self, size: int, wanted: tuple[int, ...]) -> int:
        return min(self.chance.choice(wanted), max(1, BODY_MAX // max(size, 1)))

    def counted(self, count: int) -> bytes:
        return uvarint(count + 1) if self.flexible else struct.pack(">i", count)

    # ---- single values

    def value(self, one: Field, nullable: bool = False) -> bytes:
        if one.struct is not None:
            written = self.struct(one.struct)
            return b"\1" + written if nullable else written
        if one.fixed_format is not None:
            return self.fixed(one)
        if one.type == "string":
            return self.sized(self.string(one).encode(), ">h")
        return self.sized(self.blob(one), ">i")

    def sized(self, raw: bytes, code: str) -> bytes:
        self.left -= len(raw)
        return (uvarint(len(raw) + 1) if self.flexible else struct.pack(code, len(raw))) + raw

    def fixed(self, one: Field) -> bytes:
        code = FIXED_FORMAT[one.type]
        if code == "16s":
            ids = (self.known_id, self.known_id, bytes(16), b"\xff" * 16, self.chance.randbytes(16))
            return self.chance.choice(ids)
        if code == "?":
            return self.chance.choice((b"\0", b"\1"))
        if code == "d":
            numbers = (0.0, -0.0, -1.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 100.0)
            return struct.pack(">d", self.chance.choice(numbers))
        return struct.pack(f">{code}", self.integer(one, code))

    def integer(self, one: Field, code: str) -> int:
        size = struct.calcsize(code)
        if one.name in PARTITION_FIELDS and code == "i":
            if self.mood is Mood.HUGE:
                return int.from_bytes(COUNTED)
            if self.chance.random() < 0.6:
                return self.chance.randrange(3)
        if one.name in ENUMS and self.chance.random() < 0.7:
            return self.chance.randrange(-1, 9)
        if self.mood is Mood.NUMBERS or self.chance.random() < 0.2:
            edges = integers(size)
            return self.chance.choice(edges) if code.islower() else abs(self.chance.choice(edges[1:]))
        usual = (0, 1, 100) if size == 1 or not code.islower() else (-1, 0, 1, 5, 100)
        return self.chance.choice(usual)

    def string(self, one: Field) -> str:
        draw = self.chance.random()
        if self.mood is Mood.HUGE and one.name not in WORDS:
            return KNOWN if draw < 0.3 else f"many.{DIGITS.decode()}"
        words = WORDS.get(one.name, ())
        if words and draw < 0.7:
            return self.chance.choice(words)
        if self.mood is Mood.LONG_NAMES and self.left > 0 and draw < 0.8:
            return self.chance.choice(LONG_NAMES)
        if self.mood is Mood.STRANGE_NAMES and draw < 0.9:
            return self.chance.choice(self.names)
        return KNOWN if draw < 0.7 else self.chance.choice(self.names)

    def blob(self, one: Field) -> bytes:
        if one.type == "records":
            return hostile_batches.records(self.chance)
        return self.chance.choice(BLOBS)(self.chance)


def _up_to(one: Field, count: int) -> range:
    top = 1 << 8 * struct.calcsize(FIXED_FORMAT[one.type]) - 1
    return range(count) if count <= top else range(-top, -top + count)


def arrays(of: StructType, version: int) -> list[Field]:
    """Return the arrays that a version of the message has, however deep."""
    plain, tagged = of.at(version)
    found = []
    for one in (*plain, *tagged):
        if one.is_array:
            found.append(one)
        if one.struct is not None:
            found += arrays(one.struct, version)
    return found


def _subscription(chance: random.Random) -> bytes:
    """Return a subscription of a consumer that counts more topics than there are bytes."""
    count = chance.choice((0, 1, 3, 100_000, (1 << 31) - 1, -1, -(1 << 31)))
    topics = b"".join(struct.pack(">h", 5) + KNOWN.encode() for _ in range(3))
    return struct.pack(">hi", chance.choice((0, 1, 3, 32_767, -1)), count) + topics


BLOBS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    lambda chance: chance.randbytes(chance.choice((0, 1, 100))),
    lambda chance: bytes(chance.choice((1_000, 100_000))),
    _subscription,
    _subscription,
)
# Values by API and field. A broker that was told to serve others less, or to have thousands of partitions,
# would rightly do so.
TAMED: Final[Mapping[tuple[str, str], Sequence[int | bool]]] = {
    ("ALTER_CLIENT_QUOTAS", "validate_only"): (True,),
    ("CREATE_TOPICS", "num_partitions"): (-(1 << 31), -2, -1, 0, 1, 1, 2, 20_000, (1 << 31) - 1),
    ("CREATE_TOPICS", "timeout_ms"): (0, 1_000, -1),
    ("CREATE_PARTITIONS", "count"): (-(1 << 31), -1, 0, 1, 4, 20_000, (1 << 31) - 1),
    ("CREATE_PARTITIONS", "timeout_ms"): (0, 1_000, -1),
    ("INCREMENTAL_ALTER_CONFIGS", "resource_type"): (-1, 0, 2, 2, 2, 3, 16, 32),
    ("ALTER_CONFIGS", "resource_type"): (-1, 0, 2, 2, 2, 3, 16, 32),
}
