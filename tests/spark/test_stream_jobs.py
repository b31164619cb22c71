"""Jobs that are streams, by their commands: mirrors and sessions of what librdkafka wrote."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from ops.bench.brokers import Broker
from spark_integration.jobs.streams import _behind
from tests.spark.test_pipelines_page import commands
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import TRANSACTIONS, make_broker, served, with_settings
from tests.support.spark_here import Here
from tests.support.spark_produced import AT, PARTITIONS, make_topic, produce, records

RECORDS = 600


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(with_settings(make_broker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)) as running:
        yield running


def numbers(broker: Broker, topic: str, partitions: int = PARTITIONS) -> list[list[int]]:
    """Of the records in each partition, in their order."""
    found: list[list[int]] = [[] for _ in range(partitions)]
    for message in records(broker, topic):
        found[message.partition() or 0].append(int(message.key() or b""))
    return found


def grow(broker: Broker, topic: str, partition: int, number: int) -> None:
    """Add the partition that comes next, with one record."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, partition + 1)])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, key=b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def in_turns(count: int) -> list[list[int]]:
    return [list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]


def test_the_command_of_the_page(here: Here, broker: Broker, tmp_path: Path) -> None:
    """As it is printed, on a topic with several partitions."""
    make_topic(broker, "orders")
    produce(broker, "orders", range(30))
    places = {"localhost:9092": broker.bootstrap, "/lake/mirror": str(tmp_path / "checkpoint")}
    assert here(*(places.get(word, word) for word in commands()["mirror"])) == 0
    assert numbers(broker, "copy.orders") == in_turns(30)


@pytest.mark.parametrize(("latest", "behind"), [('{"t": {"0": 7}}', 2), ("null", 0), (None, 0)])
def test_how_far_a_query_is_behind(latest: str | None, behind: int) -> None:
    """One that first finishes a batch of its checkpoint has not looked for more yet."""
    assert _behind({"sources": [{"latestOffset": latest, "endOffset": '{"t": {"0": 5}}'}]}) == behind


@dataclass(frozen=True)
class Mirror:
    """A topic with records, the topic that is to be its copy, and the arguments of the job."""

    topic: str
    copy: str
    job: list[str]


@pytest.fixture(scope="module", params=["--exactly-once", "--at-least-once"])
def mirror(
    broker: Broker, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mirror:
    how = request.param
    topic = f"orders{how}"
    make_topic(broker, topic)
    produce(broker, topic, range(RECORDS))
    job = ["mirror", topic, "-b", broker.bootstrap, "--to", broker.bootstrap, "--prefix", "copy.", how]
    place = tmp_path_factory.mktemp("mirror") / "checkpoint"
    job += ["--name", f"mirror{how}", "--checkpoint", str(place), "--every-s", "0"]
    return Mirror(topic, f"copy.{topic}", job)


def test_a_mirror_of_what_there_is(
    here: Here, broker: Broker, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(*mirror.job, "--once") == 0
    said = capsys.readouterr().err
    assert f"created topic {mirror.copy}\n" in said
    assert "600 records mirrored to" in said
    assert numbers(broker, mirror.copy) == in_turns(RECORDS)
    for message in records(broker, mirror.copy):
        number = int(message.key() or b"")
        assert (message.value(), message.timestamp()[1]) == (b"value %d" % number, AT + number)
        assert message.headers() == [
            *([("n", b"%d" % number)] if number % 2 else []),
            ("__source.topic", mirror.topic.encode()),
            ("__source.partition", b"%d" % (number % PARTITIONS)),
            ("__source.offset", b"%d" % (number // PARTITIONS)),
        ]


def test_a_mirror_goes_on_until_it_is_told_to_stop(
    here: Here, broker: Broker, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the checkpoint that the first run has left.

    The copy gets the partitions that its source got while the mirror was stopped, and while it runs.
    """
    last = 2 * RECORDS
    if not records(broker, mirror.copy):
        assert here(*mirror.job, "--once") == 0
        capsys.readouterr()

    def grow_and_stop() -> None:
        try:
            for turn in range(2):
                produce(broker, mirror.topic, range(RECORDS + turn * 300, RECORDS + turn * 300 + 300))
                wanted = RECORDS + turn * 300 + 300
                until(
                    lambda wanted=wanted: len(records(broker, mirror.copy)) >= wanted, "records in the copy"
                )
            grow(broker, mirror.topic, PARTITIONS + 1, last + 1)
            until(lambda: over.is_set() or len(records(broker, mirror.copy)) > last + 1, "the last one, too")
        finally:
            # With nobody who hears it any more it would end the tests.
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    grow(broker, mirror.topic, PARTITIONS, last)
    over = threading.Event()
    grower = threading.Thread(target=grow_and_stop)
    grower.start()
    code = here(*mirror.job)
    over.set()
    grower.join()
    assert code == 0
    # The signal may come after the last batch was written and before Spark counts it.
    assert re.search("stopped by SIGTERM: 60[12] records mirrored to", capsys.readouterr().err)
    assert numbers(broker, mirror.copy, PARTITIONS + 2) == [*in_turns(last), [last], [last + 1]]


def test_sessions(
    here: Here, spark: SparkSession, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two customers, a pause that is long enough for one of them, and an event that lets the others end."""
    make_topic(broker, "clicks")
    minute = 60_000
    visits = {b"a": [0, 1, 2, 40, 41], b"b": [0, 20, 39], b"end": [500]}
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, minutes in visits.items():
        for one in minutes:
            producer.produce("clicks", b"click", key, timestamp=AT + one * minute)
    assert producer.flush(PATIENCE_S) == 0
    job = ["sessions", "clicks", "-b", broker.bootstrap, "--gap", "30 minutes", "--once"]
    lake = tmp_path / "sessions"
    assert here(*job, "--checkpoint", str(tmp_path / "files"), "--to", str(lake)) == 0
    rows = spark.read.parquet(str(lake)).selectExpr(
        "key", "unix_millis(began)", "unix_millis(ended)", "events"
    )
    wanted = [("a", 0, 2, 3), ("a", 40, 41, 2), ("b", 0, 39, 3)]
    assert sorted(map(tuple, rows.collect())) == [
        (key, AT + began * minute, AT + ended * minute, events) for key, began, ended, events in wanted
    ]
    capsys.readouterr()
    topic = str(tmp_path / "topic")
    assert here(*job, "--checkpoint", topic, "--to-topic", "visits", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary.pop("seconds") > 0
    assert summary == {"records": 9, "stopped_by": None, "checkpoint": topic}
    documents = [json.loads(message.value() or b"") for message in records(broker, "visits")]
    assert sorted((one["key"], one["events"]) for one in documents) == [("a", 2), ("a", 3), ("b", 3)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["mirror", "t", "-b", "h:1", "--to", "h:2", "--checkpoint", "c", "--option", "minPartitions=4"],
            2,
            "out of order",
        ),
        (["mirror", "t", "-b", "h:1", "--to", "h:x", "--checkpoint", "c"], 2, "kafka.bootstrap.servers"),
        (["sessions", "t", "-b", "h:1", "--checkpoint", "c"], 2, "--to for files or --to-topic"),
        (
            ["sessions", "t", "--log-dir", "d", "--to-topic", "x", "--checkpoint", "c"],
            2,
            "needs --bootstrap-server",
        ),
        (["sessions", "t", "-b", "h:1", "--to", "d", "--checkpoint", "c", "--once"], 1, "connect to h:1: "),
    ],
)
def test_wrong_usage(
    here: Here,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert here(*arguments) == code
    err = capsys.readouterr().err
    assert says in err
    assert "\tat " not in err
    assert "Traceback" not in err
