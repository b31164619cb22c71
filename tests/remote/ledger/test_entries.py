"""The bytes of an entry: read as they were written, and refused when they were not."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.records.batch import checksum
from mpbroker.remote.ledger.entries import (
    LedgerDamaged,
    Writer,
    decode_entry,
    decode_header,
    digest,
    encode_entry,
    entry_name,
    seq_of,
)
from mpbroker.remote.ledger.events import (
    Event,
    LogStartMoved,
    ObjectsDeleted,
    Released,
    SegmentsRemoved,
    Shipped,
    ShippedRange,
    SnapshotWritten,
    StandbyGone,
    StandbySet,
    Started,
    TakenOver,
    TopicDeleted,
    TopicRestored,
)
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, segment

SHIPPED = Shipped(1, (ShippedRange("0/t-1", TOPIC_ID, 3, ((0, 5, 2),), (9, 0, 7)),), b"\0\xff")
EVENTS: list[Event] = [
    *(STARTED, TOPIC, segment(0), segment(10, partition=1), TopicDeleted(TOPIC_ID), TopicRestored(TOPIC_ID)),
    SegmentsRemoved(TOPIC_ID, 1, (b"a" * 16, b"b" * 16)),
    *(ObjectsDeleted((b"a" * 16,)), LogStartMoved(TOPIC_ID, 0, 5), SHIPPED, Released()),
    TakenOver("cluster", 2, "host", b"c" * 16, rack="r", by_standby=True),
    Started("cluster", 2, "host", listeners={"PLAINTEXT": ("host", 9092)}, lease_ms=30_000, acks="ledger"),
    *(StandbySet(3, "host", "", {"PLAINTEXT": ("host", 9093)}), StandbyGone(3)),
    SnapshotWritten(5, 2),
]
BODY = encode_entry(Writer(1, "owner", "start"), 7, "before", 1234, EVENTS)


def test_what_was_written_is_read() -> None:
    header, events, found = decode_entry(7, BODY)
    assert events == EVENTS
    assert (header.generation, header.owner, header.start) == (1, "owner", "start")
    assert (header.seq, header.previous, header.time_ms) == (7, "before", 1234)
    assert found == digest(BODY)
    assert header == decode_header(7, BODY)


def test_an_entry_of_a_version_without_standbys_is_read() -> None:
    old = b'{"event":"start","cluster_id":"cluster","broker_id":1,"host":"host"}\n'
    header = msgspec.json.decode(BODY.partition(b"\n")[0])
    header |= {"events": 1, "checksum": checksum(old)}
    assert decode_entry(7, msgspec.json.encode(header) + b"\n" + old).events == [STARTED]


def test_an_entry_without_events() -> None:
    body = encode_entry(Writer(1, "owner", "start"), 1, "", 0, [])
    assert decode_entry(1, body).events == []


def test_the_format_is_fixed() -> None:
    """Later versions read what this one has written: a change of these bytes is another format."""
    body = encode_entry(Writer(1, "o", "s"), 2, "p", 3, [segment(10), TopicDeleted(TOPIC_ID)])
    assert body.decode() == (
        '{"format":1,"seq":2,"generation":1,"owner":"o","start":"s","previous":"p","time_ms":3,"events":2,'
        '"checksum":1660086576}\n'
        '{"event":"segment","topic_id":"AAECAwQFBgcICQoLDA0ODw==","partition":0,"topic":"topic",'
        '"segment_id":"AAAAAAAAAAAAAAAKAAAAAA==","base":10,"end":20,"size":1000,"largest_ms":10,'
        '"epochs":[[0,10]],"index_sizes":[16,24,4,6,0],"has_aborted":false,"log_crc":10,"indexes_crc":10}\n'
        '{"event":"topic_deleted","topic_id":"AAECAwQFBgcICQoLDA0ODw=="}\n'
    )


def test_every_flipped_bit_and_every_cut_of_the_events_is_noticed() -> None:
    begin = BODY.index(b"\n") + 1
    flips = (BODY[:at] + bytes([BODY[at] ^ 1 << at % 8]) + BODY[at + 1 :] for at in range(begin, len(BODY)))
    for damaged in (*flips, *(BODY[:length] for length in range(len(BODY))), BODY + b"{}\n"):
        with pytest.raises(LedgerDamaged, match=entry_name(7)):
            decode_entry(7, damaged)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"format":1', b'"format":2', "has format 2, this version reads 1: upgrade mpbroker"),
        (b'"seq":7', b'"seq":8', "says that it is entry 8"),
        (b'"events":16', b'"events":99', "announces 99 events and has 16"),
        (b'"owner":"owner",', b"", "has no header: .*owner"),
    ],
)
def test_a_header_that_is_wrong_is_told(old: bytes, new: bytes, why: str) -> None:
    assert old in BODY
    with pytest.raises(LedgerDamaged, match=why):
        decode_entry(7, BODY.replace(old, new, 1))


def test_an_event_of_a_later_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    body = encode_entry(Writer(1, "owner", "start"), 1, "", 0, [TopicDeleted(TOPIC_ID)])
    monkeypatch.setattr("mpbroker.remote.ledger.entries.checksum", lambda _: decode_header(1, body).checksum)
    with pytest.raises(LedgerDamaged, match=r"an event that is not known: .*forked"):
        decode_entry(1, body.replace(b"topic_deleted", b"forked"))


def test_names() -> None:
    assert entry_name(17) == "mpbroker/log/00000000000000000017"
    assert seq_of(entry_name(17)) == 17
    for other in ("mpbroker/log/17", f"{entry_name(17)}~", f"x{entry_name(1)}", f"{entry_name(1)[:-1]}a"):
        assert seq_of(other) is None
