"""Real streaming queries: Spark drives the source, writes its offsets, dies and goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill
from tests.support.spark_produced import PARTITIONS, make_topic, produce

# What Spark's Kafka source left behind one batch of topic `events`, 300 records in each of three partitions.
KAFKA_CHECKPOINT = Path(__file__).parent / "kafka_checkpoint"


class Rows:
    """All rows of all batches, as foreachBatch gets them."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.batches: list[list[tuple[int, int]]] = []

    def start(self, frame: DataFrame, **trigger: object) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self._take)
        if trigger:
            writer = writer.trigger(**trigger)  # type: ignore[arg-type]
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def run(self, frame: DataFrame) -> list[tuple[int, int]]:
        """The rows of what is available now, sorted."""
        self.batches.clear()
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        return sorted(self.all())

    def all(self) -> list[tuple[int, int]]:
        return [row for batch in self.batches for row in batch]

    def _take(self, batch: DataFrame, _number: int) -> None:
        rows = batch.select("partition", "offset").collect()
        self.batches.append([(row.partition, row.offset) for row in rows])


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "checkpoint")


@pytest.fixture(params=[True, False], ids=["jvm", "python"])
def accelerated(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def reader(spark: SparkSession, log_dir: Path, accelerated: bool) -> DataStreamReader:
    options = {"log.dir": str(log_dir), "subscribe": "events", "startingOffsets": "earliest"}
    return spark.readStream.format("mpbroker").options(accelerated=accelerated, **options)


@pytest.fixture
def writers(log_dir: Path, fake_broker: FakeBroker) -> list[PartitionWriter]:
    """400 records in each of three partitions."""
    topic_id = b"e" * 16
    found = [PartitionWriter(log_dir, "events", number, topic_id=topic_id) for number in range(PARTITIONS)]
    for writer in found:
        fill(writer, 40)
        fake_broker.publish(writer)
    return found


def offsets(first: int, last: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(first, last)]


def written(checkpoint: Path) -> list[dict[str, dict[str, int]]]:
    """The offsets of each batch."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in files]


@pytest.mark.usefixtures("writers")
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_query_of_the_kafka_source_goes_on(
    reader: DataStreamReader, rows: Rows, tmp_path: Path, is_finished: bool
) -> None:
    shutil.copytree(KAFKA_CHECKPOINT, tmp_path / "checkpoint")
    if not is_finished:
        (tmp_path / "checkpoint/commits/0").unlink()
    found = rows.run(reader.load())
    assert found == offsets(300 if is_finished else 0, 400)
    assert written(tmp_path / "checkpoint")[0] == {"events": dict.fromkeys("012", 300)}
    assert written(tmp_path / "checkpoint")[-1]["events"] == dict.fromkeys("012", 400)


def test_available_now_in_small_batches_then_more(
    reader: DataStreamReader, rows: Rows, writers: list[PartitionWriter], fake_broker: FakeBroker
) -> None:
    frame = reader.option("maxOffsetsPerTrigger", "600").load()
    assert rows.run(frame) == offsets(0, 400)
    assert [len(batch) for batch in rows.batches] == [600, 600]
    assert rows.run(frame) == [], "nothing comes twice"
    fill(writers[1], 1)
    fake_broker.publish(writers[1])
    assert rows.run(frame) == [(1, offset) for offset in range(400, 410)]


@pytest.mark.usefixtures("writers")
def test_once_is_one_batch_whatever_the_limit(reader: DataStreamReader, rows: Rows) -> None:
    query = rows.start(reader.option("maxOffsetsPerTrigger", "600").load(), once=True)
    assert query.awaitTermination(PATIENCE_S)
    assert [sorted(batch) for batch in rows.batches] == [offsets(0, 400)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=False)
    if mounted.returncode:
        pytest.skip("only root mounts a disk that is small enough to fill")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_under_the_checkpoint(
    reader: DataStreamReader, writers: list[PartitionWriter], fake_broker: FakeBroker, small_disk: Path
) -> None:
    rows = Rows(small_disk / "checkpoint")
    assert rows.run(reader.load()) == offsets(0, 400)
    for writer in writers:
        fill(writer, 1)
        fake_broker.publish(writer)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(2 << 20))
    query = rows.start(reader.load(), availableNow=True)
    with pytest.raises(PySparkException, match="No space left on device"):
        query.awaitTermination(PATIENCE_S)
    filler.unlink()
    assert rows.run(reader.load()) == offsets(400, 410), "the checkpoint is as it was"


def test_from_the_latest_on_while_others_write(
    reader: DataStreamReader,
    rows: Rows,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
    tmp_path: Path,
) -> None:
    query = rows.start(reader.option("startingOffsets", "latest").load())
    try:
        query.processAllAvailable()
        assert rows.all() == []
        assert written(tmp_path / "checkpoint")[0]["events"] == dict.fromkeys("012", 400), "the start is kept"
        for turn in range(3):
            for writer in writers:
                fill(writer, 1)
                fake_broker.publish(writer)
            query.processAllAvailable()
            assert sorted(rows.all()) == offsets(400, 410 + 10 * turn)
        (source,) = query.recentProgress[-1]["sources"]
        assert json.loads(source["latestOffset"])["events"] == dict.fromkeys("012", 430)
    finally:
        query.stop()


def test_a_topic_made_anew_between_two_runs(
    reader: DataStreamReader,
    rows: Rows,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
    log_dir: Path,
) -> None:
    """It has more records than the old one: only the id in the checkpoint tells."""
    assert rows.run(reader.load()) == offsets(0, 400)
    for old in writers:
        shutil.rmtree(old.directory)
        new = PartitionWriter(log_dir, "events", old.partition, topic_id=b"n" * 16)
        fill(new, 50)
        fake_broker.publish(new)
    with pytest.raises(PySparkException, match="Topic events was deleted and recreated"):
        rows.run(reader.load())
    assert rows.run(reader.option("failOnDataLoss", "false").load()) == offsets(0, 500)


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("minOffsetsPerTrigger", "9", "higher than the maxOffsetsPerTrigger"),
        ("assign", "{}", "Only one of the following options can be specified"),
        ("startingOffsets", "never", "startingOffsets: Expected e.g."),
    ],
)
def test_options_are_refused_by_load(
    reader: DataStreamReader, option: str, value: str, complaint: str
) -> None:
    with pytest.raises(AnalysisException, match=complaint):
        reader.option("maxOffsetsPerTrigger", "3").option(option, value).load()


@pytest.mark.parametrize(
    ("ddl", "options", "complaint"),
    [
        (None, {"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ("offset string", {}, "schema: column 'offset' is bigint, not string"),
    ],
)
def test_other_errors_of_options_are_those_of_the_query(
    rows: Rows, reader: DataStreamReader, ddl: str | None, options: dict[str, str], complaint: str
) -> None:
    """`load` cannot tell a stream from a batch, and does not see the schema that it is given."""
    frame = (reader.schema(ddl) if ddl else reader).options(**options).load()
    with pytest.raises(StreamingQueryException, match=complaint) as raised:
        rows.start(frame).awaitTermination(PATIENCE_S)
    assert "another exception" not in str(raised.value)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path / "broker")) as running:
        make_topic(running, "events")
        yield running


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_the_broker_is_killed_and_comes_again(
    spark: SparkSession, rows: Rows, broker: Mpbroker, mode: str
) -> None:
    """No record is missed, none comes twice, and the query never fails."""
    reader = spark.readStream.format("mpbroker").options(
        subscribe="events", startingOffsets="earliest", readMode=mode, commitGroupId="watched"
    )
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
    query = rows.start(reader.option("log.dir", str(broker.log_dir)).load())
    try:
        for turn in range(3):
            produce(broker, "events", range(200 * turn * PARTITIONS, 200 * (turn + 1) * PARTITIONS))
            if turn < 2:
                # While it reads, or between two batches.
                broker.kill()
                broker.start()
        until(lambda: not query.isActive or len(rows.all()) >= 600 * PARTITIONS, "all is read")
        assert query.exception() is None
        assert Counter(rows.all()) == Counter(offsets(0, 600))
        until(lambda: committed(broker) == [600] * PARTITIONS, "those who watch lags see it")
    finally:
        query.stop()


def committed(broker: Mpbroker) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "watched"})
    try:
        asked = [TopicPartition("events", number) for number in range(PARTITIONS)]
        return [found.offset for found in consumer.committed(asked, PATIENCE_S)]
    finally:
        consumer.close()
