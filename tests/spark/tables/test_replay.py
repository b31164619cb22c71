"""Tables back into topics: each record once, through kills of the job and beside a second one."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Message
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import SparkSession

from mpbroker.remote.store.object_store import ObjectStore
from ops.bench.brokers import Broker, Mpbroker
from spark_integration.jobs.frame import JobError
from spark_integration.tables.data_files import RowFiles
from spark_integration.tables.job import TablesJob
from spark_integration.tables.replay import (
    FORMAT,
    Records,
    Replayed,
    ReplaySettings,
    ReplayStep,
    ReplaySteps,
    check_goes_on,
    in_steps,
    replay,
)
from spark_integration.tables.settings import Settings, read_settings
from spark_integration.tables.spans import Covered, Span
from spark_integration.tables.values import ValueSettings, created
from tests.support.fault_store import MemoryStore
from tests.support.killing_store import Killed, KillingStore
from tests.support.real_brokers import TRANSACTIONS, create_topic, served, with_settings
from tests.support.spark_commands import command, ended, goes_on
from tests.support.spark_here import Here
from tests.support.spark_produced import PARTITIONS, make_topic, produce, records

RECORDS = 600
# A step ends within a file, and so does the next one.
STEP = 250
DECLARED = """
[source]
"kafka.bootstrap.servers" = "{servers}"
[lake]
location = "file://{lake}"
[job]
offsets_per_commit = {step}
[[tables]]
topic = "orders"
[[tables]]
topic = "orders"
name = "lake.decoded"
format = "json"
schema = "id bigint"
"""
Place = tuple[str | None, int, int]


# ---- steps, without Spark


class Topic:
    """A replay into a topic that is a part of a store, so that it can be killed at each write."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._steps = ReplaySteps(store, "replay/a/")

    def run(self, until: Covered) -> int:
        step = self._steps.newest() or ReplayStep(FORMAT, "id", "orders")
        check_goes_on(step, "orders", until)
        return in_steps(self._steps, step, until, 7, self.write)

    def write(self, step: ReplayStep) -> None:
        body = msgspec.json.encode(step)
        self._store.put(f"topic/{len(list(self._store.list('topic/'))):03d}", [body], len(body))

    def written(self) -> list[ReplayStep]:
        found = [self._store.get(one.name) for one in self._store.list("topic/")]
        return [msgspec.json.decode(one, type=ReplayStep) for one in found]


def table(end: int) -> Covered:
    """Two partitions, one of them with a gap, and a topic of the same name that was there before."""
    ends = (Span("new", 0, 3, end), Span("new", 1, 0, 4), Span("new", 1, 6, end), Span("old", 0, 0, 5))
    return Covered("orders", ends)


def places(steps: Sequence[ReplayStep]) -> Counter[Place]:
    spans = [span for step in steps for span in step.spans]
    return Counter((*span.key, offset) for span in spans for offset in range(span.start, span.end))


def check_once(steps: Sequence[ReplayStep], end: int) -> None:
    """Check what exactly once rests on: all that has one number is the same, and numbers ascend."""
    numbers = [step.number for step in steps]
    assert numbers == sorted(numbers)
    once = {step.number: step for step in steps}
    assert all(once[step.number] == step for step in steps)
    wanted = [Span("new", 0, 3, end), Span("new", 1, 0, end), Span("old", 0, 0, 5)]
    whole = ReplayStep(FORMAT, "id", "orders", spans=tuple(wanted))
    assert places(list(once.values())) == places([whole])


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_replay_that_is_killed_at_any_request(is_applied: bool) -> None:
    """Steps before the newest are not repeated, whatever the table has got since."""
    at, is_killed = 0, True
    while is_killed:
        memory = MemoryStore()
        try:
            Topic(KillingStore(memory, at, is_applied=is_applied)).run(table(20))
            is_killed = False
        except Killed:
            at += 1
        Topic(memory).run(table(31))
        steps = Topic(memory).written()
        check_once(steps, 31)
        assert len(steps) - len({step.number for step in steps}) <= 1
        assert Topic(memory).run(table(31)) == 0
    assert at > 20


def test_two_replays_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins within the first step, and finds more in the table."""
    memory = MemoryStore()
    first, write = Topic(memory), Topic.write

    def beside(topic: Topic, step: ReplayStep) -> None:
        monkeypatch.setattr(Topic, "write", write)
        Topic(memory).run(table(31))
        write(topic, step)

    monkeypatch.setattr(Topic, "write", beside)
    first.run(table(20))
    check_once(sorted(first.written(), key=lambda step: step.number), 31)


def test_a_replay_of_another_name_is_needed() -> None:
    step = ReplayStep(FORMAT, "id", "orders", 3, spans=(Span("new", 0, 3, 20),))
    check_goes_on(step, "orders", table(20))
    with pytest.raises(JobError, match=r"writes to orders, not to copies: use another --name"):
        check_goes_on(step, "copies", table(20))
    with pytest.raises(JobError, match=r"up to 20 of orders-0 are written, and a restore"):
        check_goes_on(step, "orders", table(19))
    memory = MemoryStore()
    for text, says in (("[]", "is not a step"), ('{"format": 2, "id": "", "topic": ""}', "has format 2")):
        memory.put("replay/a/1.json", [text.encode()], len(text))
        with pytest.raises(JobError, match=rf"replay/a/1\.json {says}"):
            Topic(memory).run(table(20))


def test_rows_of_a_step() -> None:
    """Files have more: other offsets, partitions and topics of the name."""
    wanted = [(None, 0, 5), (None, 0, 6), ("x", 1, 0)]
    rows = [(None, 0, 4), (None, 0, 7), (None, 1, 5), ("x", 0, 5), ("x", 1, 1), *wanted]
    schema = schema_to_pyarrow(created(ValueSettings()))
    batch = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=False)) for row in rows], schema)
    of_step = Records(RowFiles("", "", schema, ""), (Span(None, 0, 5, 7), Span("x", 1, 0, 1)))
    found = of_step.of(batch)
    assert list(zip(*(found.column(n).to_pylist() for n in range(3)), strict=True)) == wanted


# ---- with a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(with_settings(Mpbroker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)) as running:
        yield running


@pytest.fixture(scope="module")
def declared(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of a topic, as records and decoded."""
    make_topic(broker, "orders")
    produce(broker, "orders", range(RECORDS))
    directory = tmp_path_factory.mktemp("tables")
    (directory / "lake").mkdir()
    file = directory / "tables.toml"
    file.write_text(DECLARED.format(servers=broker.bootstrap, lake=directory / "lake", step=RECORDS // 2))
    TablesJob(spark, read_settings(file)).run(once=True)
    return file


def stepped(declared: Path, step: int = STEP) -> Settings:
    found = read_settings(declared)
    return msgspec.structs.replace(found, job=msgspec.structs.replace(found.job, offsets_per_commit=step))


def numbers(messages: Sequence[Message], partition: int) -> list[int]:
    return [int(one.key() or b"") for one in messages if one.partition() == partition]


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_a_table_is_written_back(
    spark: SparkSession, broker: Broker, declared: Path, monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    """Killed before it began its third step, a job repeats the second one, and no other."""
    copy, settings = f"copy-{exactly_once}", stepped(declared)
    create_topic(broker.bootstrap, copy, PARTITIONS)
    what = ReplaySettings(
        "lake.orders", {"kafka.bootstrap.servers": broker.bootstrap}, copy, copy, True, exactly_once
    )
    begin = ReplaySteps.begin

    def killed(steps: ReplaySteps, step: ReplayStep) -> ReplayStep:
        if step.number == 2:
            raise KeyboardInterrupt
        return begin(steps, step)

    with monkeypatch.context() as patch:
        patch.setattr(ReplaySteps, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            replay(spark, settings, what)
    size = RECORDS // PARTITIONS
    there = STEP // PARTITIONS
    assert replay(spark, settings, what) == Replayed(PARTITIONS * (size - there), 2, copy)
    assert replay(spark, settings, what) == Replayed(0, 0, copy)
    found, originals = records(broker, copy), {one.key(): one for one in records(broker, "orders")}
    for partition in range(PARTITIONS):
        mine = list(range(partition, RECORDS, PARTITIONS))
        again = [] if exactly_once else mine[there : 2 * there]
        assert numbers(found, partition) == mine[: 2 * there] + again + mine[2 * there :]
    for one in found:
        for read in (Message.value, Message.headers, Message.timestamp):
            assert read(one) == read(originals[one.key()])


def test_the_command_of_a_replay(
    here: Here, broker: Broker, declared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be is said before Spark is started."""

    def ran(table: str, *how: str) -> int:
        words = ["replay", table, "--tables", str(declared), "-b", broker.bootstrap, *how]
        return here(*words, "--to-topic", "again", group="tables")

    for words, says in (
        (("lake.orders", "--name", "a/b"), "a name is of letters, digits"),
        (("lake.decoded",), "table lake.decoded has decoded values, of which records cannot be made again"),
        (("lake.missing",), "table lake.missing: there is no table at file:"),
    ):
        assert ran(*words) == 1
        assert capsys.readouterr().err.startswith(f"mpbroker: {says}")
    create_topic(broker.bootstrap, "again", 1)
    assert ran("lake.orders", "--keep-partitions") == 1
    started, *lines = capsys.readouterr().err.splitlines()
    assert started == "replay: starting Spark, which takes some seconds"
    (line,) = [line for line in lines if line.startswith("mpbroker: ")]
    assert line.endswith("is not in the range [0...1) of topic again")
    assert ran("lake.orders", "--name", "by-key", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary.pop("seconds") > 0
    assert summary == {"records": RECORDS, "steps": 2, "topic": "again"}
    assert ran("lake.orders", "--name", "by-key") == 0
    assert "0 records written to again of" in capsys.readouterr().err


def test_a_job_that_is_told_to_stop_says_so_and_goes_on(
    spark: SparkSession, broker: Broker, declared: Path
) -> None:
    """With its JVM, as systemd and timeout do. What a kill leaves is above, at any request."""
    create_topic(broker.bootstrap, "stopped", PARTITIONS)
    short = declared.with_name("short.toml")
    short.write_text(DECLARED.format(servers=broker.bootstrap, lake=declared.parent / "lake", step=20))
    steps = declared.parent / "lake" / "lake" / "orders" / "replay" / "stopped"
    words = ["--tables", str(short), "-b", broker.bootstrap, "--to-topic", "stopped", "--name", "stopped"]
    with command("tables", "replay", "lake.orders", *words, "--keep-partitions", "--exactly-once") as job:
        goes_on(job, (steps / "0000000001.json").exists, "the second step")
        os.killpg(job.pid, signal.SIGTERM)
        code, _, err = ended(job)
    assert code == 128 + signal.SIGTERM, err
    assert err.splitlines()[-1].startswith("mpbroker: stopped by SIGTERM. Committed work stays, and the same")
    assert err.startswith("replay: starting Spark, which takes some seconds\n")
    assert "\nreplay: Spark runs, the first batch begins\n" in err
    # PySpark's own workers may say where the kill met them; no frame of ours is among those lines.
    assert "spark_integration/" not in err, err
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    what = ReplaySettings("lake.orders", options, "stopped", "stopped", True, True)
    assert replay(spark, stepped(declared), what).records > 0
    found = records(broker, "stopped")
    for partition in range(PARTITIONS):
        assert numbers(found, partition) == list(range(partition, RECORDS, PARTITIONS))
