"""`mpbroker offsets`: offsets of partitions by ListOffsets (Kafka: GetOffsetShell)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import of_flag
from mpbroker.cli.flags import COMPLETE_TOPICS, ClusterAddress, IsolationLevel, Json, option
from mpbroker.cli.text.numbers import PARTITION
from mpbroker.cli.text.output import print_rows
from mpbroker.client.admin import Admin
from mpbroker.client.consumer import parse_isolation
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.list_offsets import OffsetAndTimestamp
from mpbroker.client.times import format_time, parse_time
from mpbroker.client.topics import Topic, led, partitions_of
from mpbroker.protocol.numbers import EARLIEST, LATEST, MAX_TIMESTAMP

NAMED_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


def parse_at(text: str, now_ms: int) -> int:
    """Return the timestamp for ListOffsets that a text means: earliest, latest, max-timestamp, or a time."""
    return NAMED_TIMES[text] if text in NAMED_TIMES else of_flag("--time", text, parse_time, now_ms)


def offsets(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ] = None,
    partition: Annotated[
        list[int] | None, option("--partition -p", "N", "Only this one; repeatable.", callback=PARTITION)
    ] = None,
    at: Annotated[
        str | None,
        option(
            "--time",
            "TIME",
            "Of the first record from then on: earliest, latest, max-timestamp, 2026-01-31T12:00:00, "
            "ms since 1970, -2h.",
        ),
    ] = None,
    isolation_level: IsolationLevel = "read_uncommitted",
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Print where partitions begin and end, or an offset by time.

    Default: of all topics. With read_committed a partition ends before its first open transaction.
    """
    isolation = of_flag("--isolation-level", isolation_level, parse_isolation)
    timestamp = None if at is None else parse_at(at, time.time_ns() // 1_000_000)
    failed: list[ClientError] = []
    rows: list[dict[str, Any]] = []
    with open_admin(where) as client:
        for topic in _topics(client, topics, failed):
            wanted = partitions_of(topic, partition or None)
            asked = led(topic, wanted, failed)
            if timestamp is None:
                rows += _ends(client, topic, wanted, asked, isolation, failed)
            else:
                found = client.list_offsets(topic, dict.fromkeys(asked, timestamp), isolation, failed)
                rows += [_at(topic.name, number, found.get(number), as_json=json) for number in wanted]
    print_rows(rows, as_json=json, nothing="no partitions")
    raise_all(failed)


def _topics(client: Admin, names: Sequence[str] | None, failed: list[ClientError]) -> list[Topic]:
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
    """Return a row per `wanted` partition. Offsets not `asked` for, or in error (see `failed`), are None."""
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
    """Return a row about the record that was found by time; its offset and time are None without a record."""
    time_ms = None if found is None else found.timestamp
    return {
        "topic": topic,
        "partition": partition,
        "offset": found.offset if found is not None and found.offset >= 0 else None,
        "timestamp": time_ms if as_json or time_ms is None else format_time(time_ms),
    }
