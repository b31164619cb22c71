"""Pages of records from a partition's batches, without a broker: order, bounds, and where it goes on."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

import pytest

from mpbroker.client.admin import Admin
from mpbroker.client.consumer import Fetched
from mpbroker.client.positions import BEGINNING, Ends
from mpbroker.client.topics import Partition, Topic
from mpbroker.console import records
from mpbroker.console.records import Reader, RecordQuery, Scan, read
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.polling import PATIENCE_S


class Served:
    """An admin and a consumer of a broker that has these batches.

    A fetch brings `at_once` batches of each partition.
    """

    def __init__(self, *partitions: list[bytes], at_once: int = 1) -> None:
        self.at_once = at_once
        self.fetches = 0
        self.errors: dict[tuple[int, int], ErrorCode] = {}
        self._batches = [self._placed(batches) for batches in partitions]

    def _placed(self, batches: list[bytes]) -> list[tuple[int, int, bytes]]:
        placed, at = [], 0
        for batch in batches:
            count = int.from_bytes(batch[23:27], "big") + 1
            placed.append((at, at + count, at.to_bytes(8, "big") + batch[8:]))
            at += count
        return placed

    def topic(self, name: str) -> Topic:
        return Topic(name, False, [Partition(n, 1, [1], [1], 0) for n in range(len(self._batches))], 0)

    def ends(self, _topic: Topic, partitions: list[int], *_how: object) -> dict[int, Ends]:
        return {n: Ends(0, self._batches[n][-1][1] if self._batches[n] else 0) for n in partitions}

    def consumer(self, *_how: object, **_limits: object) -> Served:
        return self

    def fetch(self, positions: Mapping[int, int]) -> list[Fetched]:
        self.fetches += 1
        found = []
        for number, at in positions.items():
            error = self.errors.get((number, at), ErrorCode.NONE)
            ahead = [one for _, behind, one in self._batches[number] if at < behind]
            data = b"".join(ahead[: self.at_once])
            end = self._batches[number][-1][1] if self._batches[number] else 0
            found.append(Fetched(number, error, end, end, [], b"" if error else data))
        return found


def batch(*values: str, time: int = 1000, codec: Codec = Codec.NONE) -> bytes:
    return bytes(build_batch([NewRecord(one.encode(), timestamp=time) for one in values], codec=codec))


def shown(client: Served, **wanted: Any) -> dict[str, Any]:
    return read(cast("Admin", client), RecordQuery("t", most=100, **wanted))


def texts(found: dict[str, Any]) -> list[str]:
    return [one.get("problem") or one["value"]["text"] for one in found["records"]]


def test_within_batches_and_over_their_edges() -> None:
    client = Served([batch("a", "b", "c"), batch("d", "e"), batch("f")])
    assert texts(shown(client, limit=2)) == ["f", "e"]
    found = shown(client, limit=2, positions={0: 4})
    assert (texts(found), found["positions"]) == (["d", "c"], {"0": 2})
    found = shown(client, limit=4, start=BEGINNING, positions={0: 1})
    assert (texts(found), found["positions"]) == (["b", "c", "d", "e"], {"0": 5})


def test_partitions_are_merged_by_time_and_none_is_left_out() -> None:
    client = Served([batch("a1", time=1), batch("a3", time=3)], [batch("b2", time=2)], [])
    found = shown(client, limit=2)
    assert (texts(found), found["positions"]) == (["a3", "b2"], {"0": 1, "1": 0, "2": 0})
    assert texts(shown(client, limit=2, positions={0: 1, 1: 0, 2: 0})) == ["a1"]


def test_an_empty_topic_is_at_its_end() -> None:
    found = shown(Served([]))
    assert (found["records"], found["is_end"]) == ([], True)


def test_a_search_backwards_looks_further_with_each_window() -> None:
    client = Served([batch(*(f"v{n}" for n in range(100))) for _ in range(30)])
    found = shown(client, limit=5, text=b"v42")
    assert [one["offset"] for one in found["records"]] == [2942, 2842, 2742, 2642, 2542]
    assert not found["is_end"]


def test_a_search_that_takes_too_long_says_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served([batch("x" * 1000) for _ in range(200)])
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 20_000)
    first = shown(client, limit=5, text=b"needle")
    assert (first["records"], first["is_end"]) == ([], False)
    positions, rounds = {0: int(first["positions"]["0"])}, 0
    while positions[0] > 0:
        before = positions[0]
        positions = {0: int(shown(client, limit=5, text=b"needle", positions=positions)["positions"]["0"])}
        assert positions[0] < before
        rounds += 1
    assert rounds > 5


def test_the_newest_is_shown_behind_records_that_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served([batch("x" * 1000), batch("y" * 1000), batch("small")])
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 500)
    found = shown(client)
    assert texts(found) == ["small", "x" * 100]
    assert found["unread"] == [(0, 1, 2)]


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_cannot_be_read_is_shown_as_that_and_passed_over(at_once: int) -> None:
    damaged = bytearray(batch(*(str(n) for n in range(1000))))
    damaged[-1] ^= 1
    client = Served([batch("a"), bytes(damaged), batch("d")], at_once=at_once)
    for begin in (BEGINNING, None):
        client.fetches = 0
        found = shown(client, start=begin)
        first, problem, last = sorted(found["records"], key=lambda one: int(one["offset"]))
        assert (first["value"]["text"], last["value"]["text"]) == ("a", "d")
        assert (problem["offset"], last["offset"]) == (1, 1001)
        assert "damaged" in problem["problem"]
        assert "1,000 offset" in problem["problem"]
        assert client.fetches <= 4
        assert found["is_end"]


def test_of_a_batch_that_does_not_say_its_offsets_one_is_passed_over_at_a_time() -> None:
    damaged = bytearray(batch("b", "c"))
    damaged[16] = 9  # magic
    client = Served([batch("a"), bytes(damaged), batch("d")])
    found = shown(client, start=BEGINNING)["records"]
    assert [(one["offset"], "problem" in one) for one in found] == [
        (0, False),
        (1, True),
        (2, True),
        (3, False),
    ]


def test_a_page_that_ends_within_a_damaged_batch_goes_on_before_it() -> None:
    damaged = bytearray(batch(*"bcdef"))
    damaged[-1] ^= 1
    client = Served([batch("a"), bytes(damaged), batch("g")])
    found = shown(client, limit=2)
    assert [one["offset"] for one in found["records"]] == [6, 1]
    assert found["positions"] == {"0": 1}
    assert texts(shown(client, limit=2, positions={0: 1})) == ["a"]


def test_what_the_broker_cannot_read_is_passed_over_too() -> None:
    client = Served([batch("a"), batch("b"), batch("c")])
    client.errors[0, 1] = ErrorCode.CORRUPT_MESSAGE
    found = texts(shown(client, start=BEGINNING))
    assert found[0::2] == ["a", "c"]
    assert "CORRUPT_MESSAGE" in found[1]


def test_bytes_count_as_they_are_when_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served([batch("x" * 100_000, codec=Codec.ZSTD) for _ in range(20)])
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 500_000)
    found = shown(client, start=BEGINNING, text=b"needle")
    assert (found["positions"], found["is_end"]) == ({"0": 5}, False)
    assert found["scanned_bytes"] >= 500_000


def test_a_batch_of_very_many_records_takes_no_memory_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SCAN_S_MAX", PATIENCE_S)
    client = Served([batch(*[""] * 100_000, codec=Codec.ZSTD)])
    tracemalloc.start()
    try:
        found = shown(client, start=BEGINNING, text=b"needle")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found["is_end"]
    assert peak_bytes < 5 << 20


def test_a_search_that_ends_within_a_batch_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5000
    client = Served([batch(*(f"v{n}" for n in range(count)), codec=Codec.ZSTD)])
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 1)
    at, rounds, found = 0, 0, []
    while at < count:
        answer = shown(client, start=BEGINNING, positions={0: at}, text=b"99", limit=count)
        assert int(answer["positions"]["0"]) > at
        at, rounds = int(answer["positions"]["0"]), rounds + 1
        found += texts(answer)
    assert found == [f"v{n}" for n in range(count) if "99" in str(n)]
    assert rounds > 2


def test_what_is_kept_to_be_shown_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Served([batch(*["x"] * 5000)])
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 1 << 20)
    found = shown(client, start=BEGINNING, limit=5000)
    assert 0 < len(found["records"]) < 3000


def test_a_batch_is_not_looked_through_beyond_the_limit() -> None:
    client = Served([batch(*(f"v{n}" for n in range(5000)))])
    found = shown(client, start=BEGINNING, limit=10)
    assert (texts(found)[-1], found["positions"], found["scanned"]) == ("v9", {"0": 10}, 11)


def test_one_batch_at_a_time_is_decompressed_in_the_process() -> None:
    client = cast("Admin", Served([batch("a", "b", codec=Codec.ZSTD)]))
    reader = Reader(client, RecordQuery("t", most=100))
    (fetched,) = reader.consumer.fetch({0: 0})
    with closing(reader.taken(fetched, 0, Scan())) as taken:
        next(taken)
        assert records._DECODES.locked()
    assert not records._DECODES.locked()


def test_a_batch_that_decompresses_to_too_much_is_shown_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DECODED_BYTES_MAX", 10_000)
    client = Served([batch("x" * 100_000, codec=Codec.ZSTD), batch("small", codec=Codec.ZSTD)])
    found = texts(shown(client, start=BEGINNING))
    assert "10000 bytes" in found[0]
    assert found[1:] == ["small"]
