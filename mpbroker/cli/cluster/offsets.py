"""`mpbroker offsets`: offsets of partitions by ListOffsets (Kafka: GetOffsetShell)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mpbroker.cli.cluster.client import Client, Found, Topic
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.cluster.isolation import READ_COMMITTED, READ_UNCOMMITTED
from mpbroker.cli.errors import USAGE_ERROR, CliError, raise_all
from mpbroker.cli.text.output import print_rows
from mpbroker.cli.text.times import format_time, parse_time
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol.numbers import EARLIEST, LATEST, MAX_TIMESTAMP

NAMED_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


def parse_at(text: str, now_ms: int) -> int:
    """Return the timestamp that asks for a place: earliest, latest, max-timestamp, or a time."""
    return NAMED_TIMES[text] if text in NAMED_TIMES else parse_time("--time", text, now_ms)


def show(
    where: ClusterAddress,
    names: Sequence[str],
    partitions: Sequence[int],
    at: str | None,
    *,
    committed: bool,
    as_json: bool,
) -> None:
    """Print where partitions begin and end, or their offset at a time; of all topics if none is named.

    `committed`: a partition ends before the first open transaction. A topic that is not there hides no other.
    """
    timestamp = None if at is None else parse_at(at, time.time_ns() // 1_000_000)
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    failed: list[Exception] = []
    rows: list[dict[str, Any]] = []
    with Client(where) as client:
        for topic in _topics(client, names, failed):
            asked = _wanted(topic, partitions)
            if timestamp is None:
                rows += _ends(client, topic, asked, isolation)
            else:
                rows += _at(client, topic, asked, timestamp, isolation, as_json=as_json)
    print_rows(rows, as_json=as_json, nothing="no partitions")
    raise_all(failed)


def _topics(client: Client, names: Sequence[str], failed: list[Exception]) -> list[Topic]:
    if not names:
        return client.topics()
    found = []
    for name in names:
        try:
            found.append(client.topic(name))
        except ApiFailed as error:
            failed.append(error)
    return found


def _wanted(topic: Topic, partitions: Sequence[int]) -> list[int]:
    """Return partitions of a topic that were asked for, else those that have a leader."""
    there = [partition.index for partition in topic.partitions]
    if strange := [number for number in partitions if number not in there]:
        raise CliError(
            f"topic {topic.name} has no partition {strange[0]}, only 0 to {len(there) - 1}", USAGE_ERROR
        )
    return list(partitions) or [partition.index for partition in topic.partitions if partition.leader >= 0]


def _ends(client: Client, topic: Topic, asked: list[int], isolation: int) -> list[dict[str, Any]]:
    starts = client.offsets(topic, EARLIEST, asked)
    ends = client.offsets_at(topic, dict.fromkeys(asked, LATEST), isolation)
    return [
        {
            "topic": topic.name,
            "partition": number,
            "earliest": starts[number],
            "latest": ends[number].offset,
        }
        for number in asked
    ]


def _at(
    client: Client, topic: Topic, asked: list[int], timestamp: int, isolation: int, *, as_json: bool
) -> list[dict[str, Any]]:
    """Return the first offset at or behind a time; None where no record is that late."""
    found = client.offsets_at(topic, dict.fromkeys(asked, timestamp), isolation)
    return [
        {
            "topic": topic.name,
            "partition": number,
            "offset": found[number].offset if found[number].offset >= 0 else None,
            "timestamp": found[number].timestamp if as_json else _time(found[number]),
        }
        for number in asked
    ]


def _time(found: Found) -> str:
    return format_time(found.timestamp)
