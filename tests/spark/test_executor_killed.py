"""An executor is killed alone, while a job reads from the files through it and writes exactly once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark.sql import SparkSession

from ops.bench.brokers import Mpbroker
from tests.support.real_brokers import TRANSACTIONS, served, with_settings
from tests.support.spark_cluster import executor_settings, running_cluster
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


@pytest.fixture
def spark(tmp_path: Path, no_spark: None) -> Iterator[SparkSession]:  # noqa: ARG001
    """A session on a cluster with two executors."""
    with running_cluster(tmp_path / "cluster", [[], []]) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(cluster.master).appName("mpbroker executor tests")
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **executor_settings(),
            # Earlier sessions of this JVM may have said that a task has one attempt.
            "spark.task.maxFailures": "4",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


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
                executor = next(one for one in psutil.Process().parents() if one.name() == "java")
                fresh = self._executor.with_suffix(".new")
                fresh.write_text(str(executor.pid))
                fresh.rename(self._executor)
                self._gate.read_bytes()

    def kill_executor(self, over: threading.Event) -> None:
        """Kill it once a task waits, however late that is, unless the job is over without."""
        while not self._executor.exists():
            if over.wait(0.05):
                return
        os.kill(int(self._executor.read_text()), signal.SIGKILL)


def test_an_executor_that_is_killed_alone_loses_and_doubles_nothing(
    spark: SparkSession, broker: Mpbroker, tmp_path: Path
) -> None:
    make_topic(broker, "in")
    make_topic(broker, "out")
    produce(broker, "in", range(RECORDS))
    reader = spark.read.format("mpbroker").option("log.dir", str(broker.log_dir)).option("subscribe", "in")
    held = Held(tmp_path)
    rows = reader.load().select("value", "partition").mapInArrow(held, "value binary")
    writer = rows.write.format("mpbroker").option("kafka.bootstrap.servers", broker.bootstrap)
    over = threading.Event()
    killer = threading.Thread(target=held.kill_executor, args=[over])
    killer.start()
    try:
        writer.options(topic="out", exactlyOnce="true", sinkId="killed").mode("append").save()
    finally:
        over.set()
        killer.join()
    assert held.is_done
    wanted = sorted(message.value() or b"" for message in records(broker, "in"))
    assert len(wanted) == RECORDS
    assert sorted(message.value() or b"" for message in records(broker, "out")) == wanted
