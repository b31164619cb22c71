"""What no good client sends: inputs for the frame and header layers, the same ones for the same seed.

An input is the bytes of one connection in the pieces in which they are sent, and how the client leaves. Some
begin well, so that the broker has work under way when things go wrong. None can create a topic.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.headers import RequestHeader, encode_request_frame

PIECES_MAX = 12
REQUEST_BYTES_MAX = 100 << 20
FOREIGN = (
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    bytes.fromhex("1603010200010001fc0303") + bytes(506),
    b"\x00" * 64,
    b"\xff" * 64,
)
# Requests that a broker answers whatever is in it; the topic does not exist.
TOPIC = "no-such-topic"
_PARTITION = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
GOOD: tuple[tuple[ApiKey, m.Message], ...] = (
    (
        ApiKey.API_VERSIONS,
        m.ApiVersionsRequest(client_software_name="fuzz", client_software_version="1"),
    ),
    (
        ApiKey.METADATA,
        m.MetadataRequest(
            [m.MetadataRequest.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False
        ),
    ),
    (ApiKey.FETCH, m.FetchRequest(topics=[m.FetchRequest.FetchTopic(topic=TOPIC, partitions=[_PARTITION])])),
    (ApiKey.LIST_OFFSETS, m.ListOffsetsRequest(replica_id=-1, topics=[])),
    (ApiKey.FIND_COORDINATOR, m.FindCoordinatorRequest(key="group")),
    (ApiKey.DESCRIBE_CONFIGS, m.DescribeConfigsRequest(resources=[])),
)
# They change something when they are well-formed by chance, or have an answer that comes late by right.
LEFT_ALONE = {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.METADATA, ApiKey.JOIN_GROUP}
CAPS = {ApiKey.FETCH: 12}


class Leaves(Enum):
    """How the client goes."""

    POLITELY = auto()  # says that it has sent all, and reads until the broker closes
    AT_ONCE = auto()  # closes without reading
    WITH_A_RESET = auto()


class Input(NamedTuple):
    """One connection's worth of trouble."""

    kind: str
    pieces: tuple[bytes, ...]
    leaves: Leaves

    def __repr__(self) -> str:
        return f"{self.kind}, leaving {self.leaves.name}: {[piece.hex() for piece in self.pieces]}"


def inputs(seed: int, count: int) -> Iterator[Input]:
    """Yield so many inputs, of each kind in turn."""
    chance = random.Random(seed)
    kinds = [*KINDS.items()]
    for number in range(count):
        kind, make = kinds[number % len(kinds)]
        data = make(chance)
        yield Input(kind, tuple(_cut(chance, data)), chance.choice([*Leaves]))


def good(chance: random.Random) -> bytes:
    """A request as it should be."""
    key, body = chance.choice(GOOD)
    version = chance.choice([one for one in valid_versions(key) if one <= CAPS.get(key, one)])
    header = RequestHeader(key, version, chance.randrange(1 << 31), chance.choice(("", "fuzz", "x" * 300)))
    return b"".join(bytes(segment) for segment in encode_request_frame(header, body))


def sized(payload: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(payload) if size is None else size) + payload


def _noise(chance: random.Random, most: int = 300) -> bytes:
    return chance.randbytes(chance.randrange(most))


def _garbage(chance: random.Random) -> bytes:
    return _noise(chance)


def _framed_garbage(chance: random.Random) -> bytes:
    return b"".join(sized(_noise(chance)) for _ in range(chance.randrange(1, 4)))


def _wrong_size(chance: random.Random) -> bytes:
    payload = good(chance)[4:]
    wrong = (0, -1, 1, len(payload) - 1, len(payload) + 1, 1 << 20, REQUEST_BYTES_MAX, REQUEST_BYTES_MAX + 1)
    limits = (-(1 << 31), (1 << 31) - 1)
    return sized(payload, chance.choice((*wrong, *limits, chance.randrange(*limits))))


def _cut_off(chance: random.Random) -> bytes:
    data = good(chance)
    return data[: chance.randrange(len(data))]


def _flipped(chance: random.Random) -> bytes:
    """A few bits are others, most often in size and header."""
    data = bytearray(good(chance))
    for _ in range(chance.randrange(1, 6)):
        reach = min(len(data), 24) if chance.random() < 0.7 else len(data)
        data[chance.randrange(reach)] ^= 1 << chance.randrange(8)
    return bytes(data)


def _strange_header(chance: random.Random) -> bytes:
    key = chance.choice((chance.randrange(-(1 << 15), 1 << 15), chance.randrange(-2, 100)))
    if key in LEFT_ALONE:
        key = ApiKey.API_VERSIONS
    version = chance.choice((chance.randrange(-(1 << 15), 1 << 15), chance.randrange(-1, 20)))
    client = chance.choice((-1, -2, -(1 << 15), 0, 3, (1 << 15) - 1))
    header = struct.pack(">hhih", key, version, chance.randrange(1 << 31), client)
    return sized(header + _noise(chance))


def _strange_tags(chance: random.Random) -> bytes:
    """Tagged fields of a flexible header: too many, too long, without an end."""
    version = valid_versions(ApiKey.API_VERSIONS)[-1]
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 1, 0)
    count = chance.choice((b"\1", b"\xff\xff\xff\xff\x0f", b"\xff" * 10, b"\x80" * 9 + b"\1", b"\x7f"))
    field = chance.choice((b"\0\5abcde", b"\0\xff\xff\xff\xff\x0f", b"\0\x80", b"\xff" * 6, _noise(chance)))
    return sized(header + count + field * chance.randrange(1, 4) + _noise(chance, 40))


def _random_body(chance: random.Random) -> bytes:
    key = chance.choice([one for one in ApiKey if one not in LEFT_ALONE and valid_versions(one)])
    version = chance.choice(valid_versions(key))
    header = struct.pack(">hhih", key, version, chance.randrange(1 << 31), -1)
    return sized(header + _noise(chance))


def _pipelined(chance: random.Random) -> bytes:
    """Good and bad ones behind each other."""
    makers: tuple[Callable[[random.Random], bytes], ...] = (
        good,
        good,
        good,
        _flipped,
        _cut_off,
        _framed_garbage,
    )
    return b"".join(chance.choice(makers)(chance) for _ in range(chance.randrange(2, 8)))


def _good_ones(chance: random.Random) -> bytes:
    return b"".join(good(chance) for _ in range(chance.randrange(1, 5)))


def _foreign(chance: random.Random) -> bytes:
    return chance.choice(FOREIGN)


def _cut(chance: random.Random, data: bytes) -> list[bytes]:
    """Cut the bytes into pieces of any size, down to single bytes of the size field, or not at all."""
    if not data or chance.random() < 0.4:
        return [data]
    first = min(len(data), 6)
    places = {chance.randrange(len(data)) for _ in range(chance.randrange(PIECES_MAX - first))}
    if chance.random() < 0.3:
        places |= set(range(first))
    edges = sorted({0, *places, len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "garbage": _garbage,
    "framed garbage": _framed_garbage,
    "wrong size": _wrong_size,
    "cut off": _cut_off,
    "flipped bits": _flipped,
    "strange header": _strange_header,
    "strange tags": _strange_tags,
    "random body": _random_body,
    "pipelined": _pipelined,
    "good": _good_ones,
    "another protocol": _foreign,
}
