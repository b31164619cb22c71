"""An executor is killed alone, while a job reads from the files through it and writes exactly once."""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from ops.bench.brokers import Broker, Mpbroker
from spark_integration.tables import data_files, job
from spark_integration.tables.catalog import LakeSettings, open_catalog
from spark_integration.tables.settings import Settings, TableSettings
from tests.support.forms import long_only, pick
from tests.support.real_brokers import TRANSACTIONS, served, with_settings
from tests.support.spark_cluster import running_cluster, session_on
from tests.support.spark_produced import make_topic, produce, records

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

RECORDS = 3_000
HELD_PARTITION = 1
WORKERS = pick("workers", short=1, long=2)
# So that the rows of a partition become several files.
BATCH_RECORDS = 100


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
    """A session on a cluster with two executors."""
    place = tmp_path_factory.mktemp("spark")
    # Earlier sessions of this JVM may have said that a task has one attempt.
    settings = {"executor_cores": "1", "task_maxFailures": "4"}
    with (
        running_cluster(place / "cluster", [[]] * WORKERS, cores=2 // WORKERS) as cluster,
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
            if batch.num_rows and batch.column("partition")[0].as_py() == HELD_PARTITION:
                self.wait()

    def wait(self) -> None:
        """Wait for the end, unless an earlier attempt has."""
        if not self._executor.exists():
            fresh = self._executor.with_suffix(".new")
            fresh.write_text(str(pid_of_executor()))
            fresh.rename(self._executor)
            self._gate.read_bytes()

    @contextmanager
    def killing(self, *, with_worker: bool = False) -> Iterator[None]:
        """Kill the executor once a task waits, however late that is, unless the job is over without."""
        over = threading.Event()

        def kill() -> None:
            while not self._executor.exists():
                if over.wait(0.05):
                    return
            executor = psutil.Process(int(self._executor.read_text()))
            for one in [executor.parent(), executor] if with_worker else [executor]:
                assert one is not None
                one.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()


class HeldRows:
    """Makes rows of a table. The second batch of a partition waits, when the first one is in a file."""

    def __init__(self, held: Held, decode: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._held = held
        self._decode = decode
        self._batches = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._decode(batch)
        if rows.num_rows and rows.column("_partition_index")[0].as_py() == HELD_PARTITION:
            self._batches += 1
            if self._batches == 2:
                self._held.wait()
        return rows


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
    with held.killing():
        writer.options(topic="out", exactlyOnce="true", sinkId="killed").mode("append").save()
    assert held.is_done
    wanted = sorted(message.value() or b"" for message in records(filled, "in"))
    assert len(wanted) == RECORDS
    assert sorted(message.value() or b"" for message in records(filled, "out")) == wanted


@long_only("an executor is lost in the middle of a table's commit, then with its worker")
@pytest.mark.parametrize("with_worker", [False, True])
def test_an_executor_that_is_lost_in_the_middle_of_a_commit_to_a_table(
    *, with_worker: bool, spark: SparkSession, filled: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that its task had written are in no snapshot; those of the next attempt are."""
    held = Held(tmp_path)

    def write(frame: DataFrame, table: Any, decode: Any) -> list[data_files.Written]:
        files = replace(data_files.row_files(table, HeldRows(held, decode)), file_bytes=1)
        rows = frame.mapInArrow(files, "written binary").collect()
        return [pickle.loads(row[0]) for row in rows]

    monkeypatch.setattr(job, "write", write)
    lake = LakeSettings(f"file://{tmp_path}/lake")
    (tmp_path / "lake").mkdir()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH_RECORDS)
    found = job.TablesJob(
        spark,
        Settings({"log.dir": str(filled.log_dir)}, lake, (TableSettings(topic="in", name="shop.orders"),)),
    )
    with held.killing(with_worker=with_worker):
        found.run(once=True)
    assert held.is_done
    assert (found.done.commits, found.done.rows) == (1, RECORDS)
    table = open_catalog(lake).load_table("shop.orders")
    rows = table.scan(selected_fields=("_partition_index", "_offset")).to_arrow().to_pylist()
    there = Counter((row["_partition_index"], row["_offset"]) for row in rows)
    assert there == Counter((one.partition(), one.offset()) for one in records(filled, "in"))
    named = {task.file.file_path for task in table.scan().plan_files()}
    written = {f"file://{path}" for path in (tmp_path / "lake").rglob("*.parquet")}
    assert named < written
