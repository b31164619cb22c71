r"""The bytes of an entry, an object named `mpbroker/log/<number, 20 digits>`.

    header\n        a line of JSON, see `Header`
    event\n ...     a line of JSON for each event, see `events`

An entry is never compressed, so that one can read it. `FORMAT` counts changes that older versions cannot
read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from mpbroker.records.batch import checksum
from mpbroker.remote.ledger.events import Event

FORMAT: Final = 1
# The first generation. A later one begins with an entry whose first event is `TakenOver`.
GENERATION: Final = 1
PREFIX: Final = "mpbroker/log/"
SEQ_DIGITS: Final = 20
# What comes before the first entry.
NO_DIGEST: Final = ""


class LedgerDamaged(Exception):
    """Raised for a ledger that is not whole, or that a later version has written; the message says where."""


class Header(msgspec.Struct, frozen=True):
    """The first line of an entry.

    `seq` is its number. `owner` is who owns the ledger in this generation, `start` which of its tier
    processes wrote the entry. `previous` is the digest of the entry before, `time_ms` the time by the store's
    clock (of a start or a claim by the host's). `events` counts the lines that follow, `checksum` is their
    CRC-32C.
    """

    format: int
    seq: int
    generation: int
    owner: str
    start: str
    previous: str
    time_ms: int
    events: int
    checksum: int


class Entry(NamedTuple):
    header: Header
    events: Sequence[Event]
    digest: str


class Writer(NamedTuple):
    """The writer of entries, as their headers name it."""

    generation: int
    owner: str
    start: str


_encoder = msgspec.json.Encoder()
_events = msgspec.json.Decoder(Event)
_header = msgspec.json.Decoder(Header)


def entry_name(seq: int) -> str:
    return f"{PREFIX}{seq:0{SEQ_DIGITS}d}"


def seq_of(name: str) -> int | None:
    """Return the number in an entry's name; None if the name is another one."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if len(digits) == SEQ_DIGITS and digits.isdecimal() else None


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def encode_entry(writer: Writer, seq: int, previous: str, time_ms: int, events: Sequence[Event]) -> bytes:
    lines = _encoder.encode_lines(events)
    header = Header(
        *(FORMAT, seq, writer.generation, writer.owner, writer.start),
        *(previous, time_ms, len(events), checksum(lines)),
    )
    return _encoder.encode(header) + b"\n" + lines


def decode_header(seq: int, body: bytes) -> Header:
    """Decode the header of entry `seq`. Raises LedgerDamaged."""
    line = body.partition(b"\n")[0]
    try:
        header = _header.decode(line)
    except msgspec.DecodeError as error:
        raise LedgerDamaged(f"{entry_name(seq)} has no header: {error}") from error
    if header.format != FORMAT:
        raise LedgerDamaged(
            f"{entry_name(seq)} has format {header.format}, this version reads {FORMAT}: upgrade mpbroker"
        )
    if header.seq != seq:
        raise LedgerDamaged(f"{entry_name(seq)} says that it is entry {header.seq}")
    return header


def decode_entry(seq: int, body: bytes) -> Entry:
    """Decode entry `seq`. Raises LedgerDamaged."""
    header = decode_header(seq, body)
    lines = body.partition(b"\n")[2]
    if checksum(lines) != header.checksum:
        raise LedgerDamaged(f"{entry_name(seq)} is damaged: its checksum does not match")
    try:
        events = _events.decode_lines(lines)
    except msgspec.DecodeError as error:
        raise LedgerDamaged(f"{entry_name(seq)} has an event that is not known: {error}") from error
    if len(events) != header.events:
        raise LedgerDamaged(f"{entry_name(seq)} announces {header.events} events and has {len(events)}")
    return Entry(header, events, digest(body))
