"""Where tasks read from: each executor decides for itself, file or fetch, and all give the same records.

The second worker stands for another host: the broker's directory is hidden from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ops.bench.brokers import Mpbroker
from spark_integration.jvm.jar import add_to
from tests.support.forms import long_only
from tests.support.metered_client import Meter
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.spark_cluster import Cluster, hidden, may_unshare, running_cluster, session_on

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

TOPIC = "places"
PARTITIONS = 8
RECORDS = 4_000
VALUE_BYTES = 500

pytestmark = [
    pytest.mark.skipif(
        not may_unshare(),
        reason="hiding a directory from a process takes a mount namespace: only root has them",
    ),
    long_only("executors that have the files, and others that fetch"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"))) as running:
        fill(running)
        yield running


def fill(broker: Mpbroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        value = b"%d" % number
        producer.produce(TOPIC, value.ljust(VALUE_BYTES, b"."), value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, broker: Mpbroker) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), [[], hidden(broker.log_dir)]) as found:
        yield found


@pytest.fixture(scope="module")
def far_spark(
    tmp_path_factory: pytest.TempPathFactory,
    cluster: Cluster,
    no_spark: None,  # noqa: ARG001
) -> Iterator[SparkSession]:
    """A session on the cluster; the driver has the directory, as has the first worker."""
    place = tmp_path_factory.mktemp("warehouse")
    # No failed task is tried on the other executor.
    with session_on(cluster, place, sql_session_timeZone="UTC", task_maxFailures="1") as session:
        add_to(session)
        yield session


# A task that is killed in Python keeps its core for a while, so that the other executor would have all tasks.
@pytest.fixture(params=["true", "false"], ids=["jvm", "python"])
def accelerated(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def frame(
    spark: SparkSession, broker: Mpbroker, mode: str, accelerated: str, *, bootstrap: bool = True
) -> DataFrame:
    reader = spark.read.format("mpbroker").option("log.dir", str(broker.log_dir)).option("subscribe", TOPIC)
    reader = reader.option("accelerated", accelerated)
    if bootstrap:
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
    found = reader.option("readMode", mode).option("columns", "key,partition,offset").load()
    plan = str(found._jdf.queryExecution().executedPlan().toString())
    assert ("by its JVM reader" in plan) == (accelerated == "true")
    return found


def with_place(found: DataFrame, log_dir: Path) -> DataFrame:
    """Beside each record, whether the executor that read it has the directory."""
    wanted = str(log_dir / "meta.properties")

    def see(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            here = pa.repeat(pa.scalar(os.path.exists(wanted)), batch.num_rows)  # noqa: PTH110
            yield pa.RecordBatch.from_arrays([*batch.columns, here], [*batch.schema.names, "here"])

    return found.mapInArrow(see, "key binary, partition int, offset long, here boolean")


def bytes_out(broker: Mpbroker) -> int:
    """What the broker has sent of the topic since its start."""
    bean = f"kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic={TOPIC}"
    return int(Meter(broker).beans(bean).get(bean, {"Count": 0})["Count"])


def log_bytes(broker: Mpbroker, partitions: set[int]) -> int:
    return sum(
        segment.stat().st_size
        for number in partitions
        for segment in (broker.log_dir / f"{TOPIC}-{number}").glob("*.log")
    )


def test_fetching_asks_nobody_for_files(far_spark: SparkSession, broker: Mpbroker, accelerated: str) -> None:
    before = bytes_out(broker)
    assert frame(far_spark, broker, "remote", accelerated).count() == RECORDS
    sent = log_bytes(broker, set(range(PARTITIONS)))
    until(lambda: bytes_out(broker) >= before + sent, "what was fetched is counted")


def test_each_task_reads_where_it_is(far_spark: SparkSession, broker: Mpbroker, accelerated: str) -> None:
    before = bytes_out(broker)
    rows = with_place(frame(far_spark, broker, "auto", accelerated), broker.log_dir).collect()
    assert sorted(int(row.key) for row in rows) == list(range(RECORDS))
    assert {(row.partition, row.offset) for row in rows} == {
        (number % PARTITIONS, number // PARTITIONS) for number in range(RECORDS)
    }
    far = {row.partition for row in rows if not row.here}
    assert 0 < len(far) < PARTITIONS, "both executors have had tasks"
    sent = log_bytes(broker, far)
    until(lambda: bytes_out(broker) >= before + sent, "what was fetched is counted")
    assert bytes_out(broker) == before + sent, "tasks beside the files fetch nothing"


def test_a_task_without_the_files_says_what_to_do(
    far_spark: SparkSession, broker: Mpbroker, accelerated: str
) -> None:
    with pytest.raises(PySparkException, match=r"is not on this host.*kafka\.bootstrap\.servers"):
        frame(far_spark, broker, "auto", accelerated, bootstrap=False).collect()
