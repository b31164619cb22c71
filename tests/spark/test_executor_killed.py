"""An executor is killed alone, while a job reads from the files through it and writes exactly once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from ops.bench.brokers import Broker, Mpbroker
from tests.support.real_brokers import TRANSACTIONS, served, with_settings
from tests.support.spark_cluster import running_cluster, session_on
from tests.support.spark_produced import make_topic, produce, records

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

RECORDS = 3_000
HELD_PARTITION = 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    found = with_settings(Mpbroker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)
    with served(found):
        yield found


@pytest.fixture(scope="module")
def filled(broker: Broker) -> Broker:
    """The broker, with records in the topic `in`."""
    make_topic(broker, "in")
    produce(broker, "in", range(RECORDS))
    return broker


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, no_spark: None) -> Iterator[SparkSession]:  # noqa: ARG001
    """A session on a cluster of one worker with two executors."""
    place = tmp_path_factory.mktemp("spark")
    # Earlier sessions of this JVM may have said that a task has one attempt.
    settings = {"executor_cores": "1", "task_maxFailures": "4"}
    with (
        running_cluster(place / "cluster", [[]], cores=2) as cluster,
        session_on(cluster, place / "warehouse", **settings) as session,
    ):
        yield session


def pid_of_executor() -> int:
    """The process that the worker which runs this is a child of."""
    return next(one.pid for one in psutil.Process().parents() if one.name() == "java")


class Held:
    """The first attempt at a partition says which executor it runs in, and waits for its end."""

    def __init__(self, directory: Path) -> None:
        self._executor, self._gate = directory / "executor", directory / "gate"
        os.mkfifo(self._gate)

    @property
    def is_done(self) -> bool:
        """Whether a task has waited."""
        return self._executor.exists()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.drop_columns(["partition"])
            is_held = batch.num_rows and batch.column("partition")[0].as_py() == HELD_PARTITION
            if is_held and not self._executor.exists():
                fresh = self._executor.with_suffix(".new")
                fresh.write_text(str(pid_of_executor()))
                fresh.rename(self._executor)
                self._gate.read_bytes()

    def kill_executor(self, over: threading.Event) -> None:
        """Kill it once a task waits, however late that is, unless the job is over without."""
        while not self._executor.exists():
            if over.wait(0.05):
                return
        os.kill(int(self._executor.read_text()), signal.SIGKILL)


def orders(spark: SparkSession, broker: Broker) -> DataFrame:
    reader = spark.read.format("mpbroker").option("log.dir", str(broker.log_dir)).option("subscribe", "in")
    return reader.load().select("value", "partition")


def test_both_executors_read(spark: SparkSession, filled: Broker) -> None:
    """What the other test kills is one of two; by now both are there."""

    def see(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        pid = pid_of_executor()
        for batch in batches:
            pids = pa.repeat(pa.scalar(pid), batch.num_rows)
            yield pa.RecordBatch.from_arrays([batch.column("value"), pids], ["value", "executor"])

    rows = orders(spark, filled).mapInArrow(see, "value binary, executor long").collect()
    assert len({bytes(row.value) for row in rows}) == len(rows) == RECORDS
    assert len({row.executor for row in rows}) == 2


def test_an_executor_that_is_killed_alone_loses_and_doubles_nothing(
    spark: SparkSession, filled: Broker, tmp_path: Path
) -> None:
    make_topic(filled, "out")
    held = Held(tmp_path)
    rows = orders(spark, filled).mapInArrow(held, "value binary")
    writer = rows.write.format("mpbroker").option("kafka.bootstrap.servers", filled.bootstrap)
    over = threading.Event()
    killer = threading.Thread(target=held.kill_executor, args=[over])
    killer.start()
    try:
        writer.options(topic="out", exactlyOnce="true", sinkId="killed").mode("append").save()
    finally:
        over.set()
        killer.join()
    assert held.is_done
    wanted = sorted(message.value() or b"" for message in records(filled, "in"))
    assert len(wanted) == RECORDS
    assert sorted(message.value() or b"" for message in records(filled, "out")) == wanted
