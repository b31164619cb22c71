"""Tests answers of the console about topics of a broker that is made here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from mpbroker.console.app import PARTITIONS_MAX, TOPICS_MAX, Console
from mpbroker.console.queries import Query
from mpbroker.console.watch import Watch
from mpbroker.ipc import console_token
from mpbroker.observe.samples import BrokerSeen, Health, PartitionSeen, Sample


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console that has looked at a topic with more partitions than an answer has rows."""
    monkeypatch.setattr(console_token, "read", lambda _directory: "token")
    context = Mock()
    context.memory.public_path = tmp_path / "shared"
    partitions = [
        PartitionSeen("wide", number, 10, 15, 15, size_bytes=100, segments=2)
        for number in range(PARTITIONS_MAX + 100)
    ]
    found = Console(context, Mock())
    monkeypatch.setattr(Watch, "fresh", lambda _watch: asyncio.sleep(0))
    found._watch.model.add(Sample(0, BrokerSeen(Health.RUNNING), partitions=tuple(partitions)))
    return found


def test_sums_of_a_topic_are_of_all_its_partitions(console: Console) -> None:
    found = asyncio.run(console._topic(Query(b"topic=wide")))
    total = PARTITIONS_MAX + 100
    assert len(found["rows"]) == PARTITIONS_MAX
    assert found["topic"] == {
        "topic": "wide",
        "is_internal": False,
        "partitions": total,
        "records": 5 * total,
        "records_per_s": 0,
        "size_bytes": 100 * total,
        "segments": 2 * total,
        "trend": [],
    }


def test_of_very_many_topics_the_first_are_listed_and_the_others_found(console: Console) -> None:
    names = [f"topic-{number:05}" for number in range(TOPICS_MAX + 1)]
    partitions = tuple(PartitionSeen(name, 0, 0, 0, 0, size_bytes=0, segments=1) for name in names)
    console._watch.model.add(Sample(1, BrokerSeen(Health.RUNNING), partitions=partitions))
    found = asyncio.run(console._topics(Query(b"")))
    assert [row["topic"] for row in found["rows"]] == names[:-1]
    assert (found["found"], found["total"]) == (TOPICS_MAX + 1, TOPICS_MAX + 1)
    last = asyncio.run(console._topics(Query(f"q={names[-1]}".encode())))
    assert [row["topic"] for row in last["rows"]] == names[-1:]
