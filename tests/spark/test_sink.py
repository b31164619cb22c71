"""What Spark writes is what a consumer of librdkafka reads: every column, every codec, batch and stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mpbroker.client.topics import partition_for
from ops.bench.brokers import Broker
from tests.support.real_brokers import TRANSACTIONS, make_broker, served, with_settings
from tests.support.spark_produced import records

PARTITIONS = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {**TRANSACTIONS, "num.partitions": str(PARTITIONS)}
    with served(with_settings(make_broker(tmp_path_factory.mktemp("broker")), settings)) as running:
        yield running


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    writer = frame.write.format("mpbroker").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**options).mode("append").save()


def test_every_column(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(100, numPartitions=2).selectExpr(
        "if(id % 4 = 0, 'columns-a', 'columns-b') topic",
        "if(id % 5 = 0, null, cast(id as string)) key",
        "if(id % 7 = 0, null, cast(concat('value ', id) as binary)) value",
        "if(id % 2 = 0, 1, null) partition",
        "timestamp_millis(1700000000000 + id) timestamp",
        "if(id % 3 = 0, null, array(named_struct('key', 'n', 'value', binary(string(id))))) headers",
    )
    write(frame, broker)
    seen = []
    for topic in ("columns-a", "columns-b"):
        for message in records(broker, topic):
            number = message.timestamp()[1] - 1_700_000_000_000
            seen.append(number)
            assert topic == ("columns-a" if number % 4 == 0 else "columns-b")
            assert message.key() == (None if number % 5 == 0 else b"%d" % number)
            assert message.value() == (None if number % 7 == 0 else b"value %d" % number)
            assert message.headers() == (None if number % 3 == 0 else [("n", b"%d" % number)])
            if number % 2 == 0:
                assert message.partition() == 1
            elif number % 5:
                assert message.partition() == partition_for(b"%d" % number, PARTITIONS)
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(("ignored", "partitions"), [("false", 1), ("true", PARTITIONS)])
def test_keys_choose_partitions_unless_they_are_ignored(
    spark: SparkSession, broker: Broker, ignored: str, partitions: int
) -> None:
    frame = spark.range(30, numPartitions=PARTITIONS).selectExpr("'k' key", "string(id) value")
    write(frame, broker, topic=f"ignored-{ignored}", **{"kafka.partitioner.ignore.keys": ignored})
    found = records(broker, f"ignored-{ignored}")
    assert [one.key() for one in found] == [b"k"] * 30
    assert len({one.partition() for one in found}) == partitions


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_and_topic_option(spark: SparkSession, broker: Broker, codec: str) -> None:
    frame = spark.range(2_000).selectExpr("'nowhere' topic", "cast(id as string) value")
    options = {"kafka.compression.type": codec, "kafka.batch.size": "4096"}
    write(frame, broker, topic=f"codec-{codec}", **options)
    assert sorted(int(one.value() or b"") for one in records(broker, f"codec-{codec}")) == list(range(2_000))


@pytest.mark.parametrize(
    ("expression", "options", "text"),
    [
        (["'v' value"], {}, "topic option required when no 'topic' attribute is present"),
        (["'k' key"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["1 value"], {"topic": "t"}, "value attribute unsupported type int"),
        (["'v' value", "'1' partition"], {"topic": "t"}, "partition attribute unsupported type string"),
        (["'v' value", "array('a') headers"], {"topic": "t"}, "attribute unsupported type array<string>"),
        (["'v' value", "cast(null as string) topic"], {}, "null topic present in the data"),
        (["'v' value", "9 partition"], {"topic": "errors"}, r"is not in the range \[0...3\) of topic errors"),
        (["'v' value"], {"topic": "t", "kafka.key.serializer": "x"}, "'key.serializer' is not supported"),
        (
            ["'v' value"],
            {"topic": "t", "kafka.partitioner.class": "x"},
            r"kafka.partitioner.class=x is not supported: .*column partition",
        ),
        (["'v' value"], {"topic": "t", "kafka.partitioner.ignore.keys": "1"}, "is true or false, not '1'"),
        (["'v' value"], {"topic": "t", "kafka.interceptor.classes": "x"}, "'interceptor.classes' is not"),
        (["'v' value"], {"topic": "t", "exactlyOnce": "true"}, "needs the option sinkId"),
        (["'v' value"], {"topic": "t", "kafka.acks": "2"}, "kafka.acks is one of"),
        (["'v' value"], {"topic": "t", "sinkBatch": "a:1"}, "sinkBatch needs exactlyOnce=true"),
        (["'v' value"], {"topic": "t", "sinkBatch": "1"}, "sinkBatch is NAME:NUMBER"),
        (["'v' value"], {"topic": "a b"}, "INVALID_TOPIC_EXCEPTION"),
    ],
)
def test_errors(
    spark: SparkSession, broker: Broker, expression: list[str], options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        write(spark.range(1).selectExpr(*expression), broker, **options)


def test_modes_other_than_append(spark: SparkSession, broker: Broker) -> None:
    def save(mode: str | None) -> None:
        writer = spark.range(1).selectExpr("'v' value").write.format("mpbroker").mode(mode)
        writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "modes").save()

    for mode in ("overwrite", "ignore"):
        with pytest.raises(PySparkException, match=r"a topic is only ever appended to. Write with .mode"):
            save(mode)
    for allowed in (None, "error", "append"):
        save(allowed)
    reader = spark.read.format("mpbroker").option("log.dir", str(broker.log_dir))
    assert reader.option("subscribe", "modes").load().count() == 2 + 1


def test_insert_into_a_view(spark: SparkSession, broker: Broker) -> None:
    places = f"`log.dir` '{broker.log_dir}', `kafka.bootstrap.servers` '{broker.bootstrap}'"
    view = "CREATE OR REPLACE TEMPORARY VIEW target (key BINARY, value BINARY) USING mpbroker"
    spark.sql(f"{view} OPTIONS ({places}, topic 'inserted', subscribe 'inserted')")
    spark.sql("INSERT INTO target SELECT binary('k'), binary('v')")
    spark.range(2).selectExpr("cast(null as binary)", "binary('w')").write.insertInto("target")
    with pytest.raises(PySparkException, match=r"not allowed|overwrite|truncate"):
        spark.sql("INSERT OVERWRITE target SELECT binary('k'), binary('v')")
    assert sorted(row.value for row in spark.table("target").collect()) == [b"v", b"w", b"w"]


def exactly_once(broker: Broker, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": topic,
        "exactlyOnce": "true",
        "sinkId": f"sink-of-{topic}",
    }


def test_a_job_exactly_once(spark: SparkSession, broker: Broker) -> None:
    for start in (0, 100):
        frame = spark.range(start, start + 100, numPartitions=3).selectExpr("cast(id as string) value")
        frame.write.format("mpbroker").options(**exactly_once(broker, "job")).mode("append").save()
    broken = spark.range(200, 300, numPartitions=3).selectExpr(
        "if(id = 299, raise_error('broken'), cast(id as string)) value"
    )
    with pytest.raises(PySparkException, match="broken"):
        broken.write.format("mpbroker").options(**exactly_once(broker, "job")).mode("append").save()
    assert sorted(int(one.value() or b"") for one in records(broker, "job")) == list(range(200))


def test_a_stream_exactly_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """It fails in a batch, goes on with it, and its last batch is run again as after a crash."""
    source, checkpoint, mended = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "mended"

    def run() -> None:
        rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
        fails = "false" if mended.exists() else "true"
        rows = rows.selectExpr(f"if(id = 25 and {fails}, raise_error('broken'), cast(id as string)) value")
        stream = rows.writeStream.format("mpbroker").options(**exactly_once(broker, "once"))
        stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        stream.start().awaitTermination()

    for part in range(4):
        rows = spark.range(10 * part, 10 * part + 10, numPartitions=1)
        rows.write.mode("append").parquet(str(source))
    with pytest.raises(PySparkException, match="broken"):
        run()
    seen = {int(one.value() or b"") for one in records(broker, "once")}
    assert not seen & set(range(20, 30))
    mended.touch()
    run()
    assert sorted(int(one.value() or b"") for one in records(broker, "once")) == list(range(40))
    commits = sorted(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()
    assert sorted(int(one.value() or b"") for one in records(broker, "once")) == list(range(40))
