"""Pages of records from a partition's batches, without a broker: order, bounds, and where it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from mpbroker.cli.cluster.client import Client, Fetched, Partition, Topic
from mpbroker.cli.cluster.positions import BEGINNING, Ends
from mpbroker.console import records
from mpbroker.console.records import RecordQuery, read
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord


class Cluster:
    def patiently(self, ask: Callable[[], Any], **_options: object) -> Any:
        return ask()


class Served:
    """A client of a broker that has these batches. A fetch brings one batch of each partition."""

    def __init__(self, *partitions: list[bytes]) -> None:
        self.cluster = Cluster()
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

    def fetch(
        self, _topic: Topic, positions: Mapping[int, int], _wait: int, _isolation: int
    ) -> list[Fetched]:
        self.fetches += 1
        found = []
        for number, at in positions.items():
            error = self.errors.get((number, at), ErrorCode.NONE)
            data = next((one for first, behind, one in self._batches[number] if first <= at < behind), b"")
            found.append(Fetched(number, error, 0, 0, [], b"" if error else data))
        return found


def batch(*values: str, time: int = 1000, codec: Codec = Codec.NONE) -> bytes:
    return bytes(build_batch([NewRecord(one.encode(), timestamp=time) for one in values], codec=codec))


def shown(client: Served, **wanted: Any) -> dict[str, Any]:
    return read(cast("Client", client), RecordQuery("t", most=100, **wanted))


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


def test_what_cannot_be_read_is_shown_as_that_and_passed_over() -> None:
    damaged = bytearray(batch("b", "c"))
    damaged[-1] ^= 1
    client = Served([batch("a"), bytes(damaged), batch("d")])
    found = texts(shown(client, start=BEGINNING))
    assert found[0] == "a"
    assert found[-1] == "d"
    assert all("damaged" in one for one in found[1:-1])
    assert len(found) > 2


def test_what_the_broker_cannot_read_is_passed_over_too() -> None:
    client = Served([batch("a"), batch("b"), batch("c")])
    client.errors[0, 1] = ErrorCode.CORRUPT_MESSAGE
    found = texts(shown(client, start=BEGINNING))
    assert found[0::2] == ["a", "c"]
    assert "CORRUPT_MESSAGE" in found[1]
