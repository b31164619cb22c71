"""`mpbroker offsets`: offsets of partitions by ListOffsets (Kafka: GetOffsetShell)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mpbroker.cli.errors import of_flag
from mpbroker.cli.text.output import print_rows
from mpbroker.client.admin import Admin, open_admin
from mpbroker.client.cluster_address import ClusterAddress
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.list_offsets import OffsetAndTimestamp
from mpbroker.client.times import format_time, parse_time
from mpbroker.client.topics import Topic, led, partitions_of
from mpbroker.protocol.numbers import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED

NAMED_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


def parse_at(text: str, now_ms: int) -> int:
    """Return the timestamp that asks for a place: earliest, latest, max-timestamp, or a time."""
    return NAMED_TIMES[text] if text in NAMED_TIMES else of_flag("--time", text, parse_time, now_ms)


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

    `committed`: a partition ends before the first open transaction. A topic that is not there hides no other,
    nor does a partition that has no leader, or whose leader answers with an error.
    """
    timestamp = None if at is None else parse_at(at, time.time_ns() // 1_000_000)
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    failed: list[ClientError] = []
    rows: list[dict[str, Any]] = []
    with open_admin(where) as client:
        for topic in _topics(client, names, failed):
            wanted = partitions_of(topic, partitions or None)
            asked = led(topic, wanted, failed)
            if timestamp is None:
                rows += _ends(client, topic, wanted, asked, isolation, failed)
            else:
                found = client.list_offsets(topic, dict.fromkeys(asked, timestamp), isolation, failed)
                rows += [_at(topic.name, number, found.get(number), as_json=as_json) for number in wanted]
    print_rows(rows, as_json=as_json, nothing="no partitions")
    raise_all(failed)


def _topics(client: Admin, names: Sequence[str], failed: list[ClientError]) -> list[Topic]:
    if not names:
        return client.topics()
    found = []
    for name in names:
        try:
            found.append(client.topic(name))
        except ApiFailed as error:
            failed.append(error)
    return found


def _ends(
    client: Admin,
    topic: Topic,
    wanted: list[int],
    asked: list[int],
    isolation: int,
    failed: list[ClientError],
) -> list[dict[str, Any]]:
    """Return where partitions begin and end; None where nobody was asked, or the answer was an error."""
    starts = client.list_offsets(topic, dict.fromkeys(asked, EARLIEST), failed=failed)
    ends = client.list_offsets(topic, dict.fromkeys(starts, LATEST), isolation, failed)
    return [
        {
            "topic": topic.name,
            "partition": number,
            "earliest": starts[number].offset if number in starts else None,
            "latest": ends[number].offset if number in ends else None,
        }
        for number in wanted
    ]


def _at(topic: str, partition: int, found: OffsetAndTimestamp | None, *, as_json: bool) -> dict[str, Any]:
    """Return the row of what was found at a time; its offset is None where no record is that late.

    Both are None in the row of a partition without a leader, or with an error.
    """
    time_ms = None if found is None else found.timestamp
    return {
        "topic": topic,
        "partition": partition,
        "offset": found.offset if found is not None and found.offset >= 0 else None,
        "timestamp": time_ms if as_json or time_ms is None else format_time(time_ms),
    }
