"""Records as the page gets them, cut where they are long."""

from __future__ import annotations

import base64
import json
from urllib.parse import urlencode

import pytest

from mpbroker.console.queries import Query
from mpbroker.console.record_view import HEADERS_MAX, has_text, marker_view, record_of, value_of
from mpbroker.records.batch import frame_at
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import CREATE_TIME, NewRecord, Record


def record(
    value: bytes | None = b"v", key: bytes | None = None, *headers: tuple[str, bytes | None]
) -> Record:
    return Record(0, 1000, CREATE_TIME, key, value, headers)


def test_text_bytes_and_nothing() -> None:
    assert value_of(None, 10) is None
    assert value_of(b"", 10) == {"n": 0, "text": ""}
    assert value_of("grün".encode(), 10) == {"n": 5, "text": "grün"}
    assert value_of(b"\xff\x00", 10) == {"n": 2, "b64": base64.b64encode(b"\xff\x00").decode()}


def test_a_cut_says_so_and_halves_no_character() -> None:
    assert value_of(b"abcdef", 4) == {"n": 6, "text": "abcd", "cut": True}
    assert value_of("äöü".encode(), 3) == {"n": 6, "text": "ä", "cut": True}
    shown = value_of(b"\xff" * 9, 4)
    assert shown is not None
    assert shown["n"] == 9
    assert base64.b64decode(shown["b64"]) == b"\xff" * 4


def test_half_a_character_at_the_very_end_is_binary() -> None:
    shown = value_of("ä".encode()[:1], 4)
    assert shown is not None
    assert "b64" in shown


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_record_of_every_codec(codec: Codec) -> None:
    new = NewRecord(b"value", b"key", 5, (("name", b"1"), ("empty", None)))
    (batch,) = iterate_batches(
        build_batch([new], base_offset=7, codec=codec, producer_id=3, producer_epoch=1)
    )
    (one,) = batch.records()
    assert record_of(2, batch, one, 3) == {
        "partition": 2,
        "offset": 7,
        "timestamp": 5,
        "is_append_time": False,
        "key": {"n": 3, "text": "key"},
        "value": {"n": 5, "text": "val", "cut": True},
        "headers": [["name", {"n": 1, "text": "1"}], ["empty", None]],
        "header_count": 2,
        "codec": codec.name.lower(),
        "producer": [3, 1],
    }


def test_many_headers_are_counted_and_not_all_shown() -> None:
    new = NewRecord(b"v", headers=tuple((f"h{n}", b"x") for n in range(HEADERS_MAX + 5)))
    (batch,) = iterate_batches(build_batch([new]))
    shown = record_of(0, batch, batch.records()[0], 9)
    assert len(shown["headers"]) == HEADERS_MAX
    assert shown["header_count"] == HEADERS_MAX + 5


@pytest.mark.parametrize(("marker", "name"), [(COMMIT, "commit"), (ABORT, "abort")])
def test_ends_of_transactions(marker: int, name: str) -> None:
    data = memoryview(
        build_transaction_marker(
            marker, producer_id=9, producer_epoch=4, coordinator_epoch=0, timestamp=77, base_offset=12
        )
    )
    frame = frame_at(data, 0, True)
    assert frame is not None
    shown = marker_view(1, Batch(data, frame))
    assert shown == {"partition": 1, "offset": 12, "timestamp": 77, "marker": name, "producer": [9, 4]}


@pytest.mark.parametrize("text", ["Ärger", "STRAẞE", "naïve KEY", "世界 🚀"])
def test_a_text_beyond_ascii_is_found_wherever_it_is(text: str) -> None:
    wanted = Query(urlencode({"topic": "t", "text": text}).encode()).records(100).text
    assert has_text(record(text.encode()), wanted)
    assert has_text(record(json.dumps({"escaped": text}).encode()), wanted)
    assert has_text(record(b"v", text.encode()), wanted)
    assert has_text(record(b"v", None, (text, None)), wanted)
    assert has_text(record(b"v", None, ("name", text.encode())), wanted)


def test_a_text_is_found_wherever_it_is() -> None:
    assert has_text(record(), b"")
    assert has_text(record(b"Some Value"), b"some v")
    assert has_text(record(None, b"KEY"), b"key")
    assert has_text(record(b"v", None, ("trace-ID", b"A1")), b"a1")
    assert has_text(record(b"v", None, ("trace-ID", None)), b"e-id")
    assert not has_text(record(b"some"), b"other")
    assert not has_text(record(b"v", None, ("name", b"w")), b"namew")
    assert not has_text(record(None), b"n")
