"""Each option of Spark's Kafka source and sink, given to that connector and to ours: the same comes of it.

Both get the very same options, so ours reads over the network. `Row.ours` is what only ours says, on purpose;
docs/SPARK.md has the reason.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ops.bench.connector import connector_jars
from ops.setup.maven import MissingToolError
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import create_topic, served
from tests.support.secure_broker import PLAIN_PASSWORD, PROTOCOLS, SCRAM_PASSWORD, SecureBroker
from tests.support.spark_produced import records

AT = 1_700_000_000_000
SIZES = {0: 60, 1: 30, 2: 10}
KAFKA, OURS = "kafka", "mpbroker"
SOURCES = (KAFKA, OURS)
COLUMNS = ("topic", "partition", "offset", "key", "value", "unix_millis(timestamp)", "timestampType")
# The connector tries to plan so often.
SOON = {"fetchOffset.retryIntervalMs": "1"}


@dataclass(frozen=True)
class Row:
    """Options. `says` is what both sources say if they refuse them, `ours` what only ours says."""

    given: Mapping[str, str] = field(default_factory=dict)
    says: str | None = None
    ours: str | None = None


def of_t(**offsets: int) -> str:
    """JSON of offsets or times; p1 is partition 1."""
    return json.dumps({"t": {name.removeprefix("p"): offset for name, offset in offsets.items()}})


def t(says: str | None = None, ours: str | None = None, **given: object) -> Row:
    """A row about the topic t; an underscore stands for a dot."""
    return Row({"subscribe": "t", **dotted(given)}, says, ours)


def dotted(given: Mapping[str, object]) -> dict[str, str]:
    return {name.replace("_", "."): str(value) for name, value in given.items()}


@pytest.fixture(scope="module")
def spark(beside_the_connector: SparkSession) -> SparkSession:
    try:
        connector_jars()
    except MissingToolError as error:
        pytest.fail(str(error), pytrace=False)
    beside_the_connector.sparkContext.setLogLevel("OFF")
    return beside_the_connector


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with served(
        SecureBroker(tmp_path_factory.mktemp("broker"), flags=["-o", "log.retention.ms=-1"])
    ) as running:
        fill(running)
        yield running


def fill(broker: SecureBroker) -> None:
    """`t` has three partitions, `cut` lost its first records, `tx` has an aborted and an open transaction."""
    create_topic(broker.bootstrap, "t", len(SIZES))
    for topic in ("cut", "tx", "u"):
        create_topic(broker.bootstrap, topic, 1)
    common = {"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 1000}
    producer = Producer(common)
    for partition, size in SIZES.items():
        for number in range(size):
            producer.produce(
                *(
                    "t",
                    None if number % 5 == 0 else b"v%d" % number,
                    None if number % 3 == 0 else b"k%d" % number,
                ),
                partition=partition,
                timestamp=AT + 10 * number,
                headers=[("a", b"1"), ("b", None)] if number % 2 else None,
            )
    for number in range(20):
        for topic in ("cut", "tx", "u"):
            producer.produce(topic, b"v%d" % number, b"k", partition=0, timestamp=AT + number)
    assert producer.flush(PATIENCE_S) == 0
    forever = {"transactional.id": "one", "transaction.timeout.ms": 600_000}
    transactional = Producer({**common, **forever})
    transactional.init_transactions(PATIENCE_S)
    for end in (transactional.commit_transaction, transactional.abort_transaction, lambda _: None):
        transactional.begin_transaction()
        transactional.produce("tx", b"in a transaction", partition=0, timestamp=AT)
        transactional.flush(PATIENCE_S)
        end(PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_records([TopicPartition("cut", 0, 7)]).values():
        deleted.result(PATIENCE_S)


PARTIAL = r"Specified: .*t-0.* Assigned: .*t-"
LOSS = "failOnDataLoss.* to .?false"
MIN_OVER_MAX = r"minOffsetPerTrigger.9. is higher than the maxOffsetsPerTrigger.5."
STRATEGY = "of the following options {} be specified for Kafka source: .*subscribe"
# Kafka's own, which change no row.
CLIENT = dotted(
    {
        "kafka_allow_auto_create_topics": "false",
        "kafka_check_crcs": "true",
        "kafka_client_id": "me",
        "kafka_client_rack": "r1",
        "kafka_default_api_timeout_ms": 9000,
        "kafka_exclude_internal_topics": "false",
        "kafka_fetch_max_bytes": 9999,
        "kafka_fetch_min_bytes": 1,
        "kafka_heartbeat_interval_ms": 100,
        "kafka_max_partition_fetch_bytes": 999,
        "kafka_max_poll_records": 7,
        "kafka_metadata_max_age_ms": 9000,
        "kafka_metric_reporters": "",
        "kafka_nonsense": 1,
        "kafka_partition_assignment_strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        "kafka_receive_buffer_bytes": 9999,
        "kafka_request_timeout_ms": 9000,
        "kafka_security_protocol": "PLAINTEXT",
        "kafka_session_timeout_ms": 9000,
        "fetchOffset_numRetries": 1,
        "fetchOffset_retryIntervalMs": 5,
        "groupIdPrefix": "mine",
        "kafka_group_id": "ours",
        "kafkaConsumer_pollTimeoutMs": 9000,
    }
)
# What batches and streams refuse alike.
REFUSED = {
    "no strategy": Row({}, STRATEGY.format("must")),
    "two strategies": t(STRATEGY.format("can"), subscribePattern="t"),
    "assign, no JSON": Row(
        {"assign": "t"}, "No topicpartitions to assign as .* value for option 'assign' is 't'"
    ),
    "assign, bad JSON": Row(
        {"assign": '{"t":0}'}, r'Expected e\.g\. \{"topicA":\[0,1\],"topicB":\[0,1\]\}, got'
    ),
    "subscribe, empty": Row(
        {"subscribe": " "}, "No topics to subscribe to as .* value for option 'subscribe' is"
    ),
    "pattern, empty": Row({"subscribePattern": ""}, "Pattern to subscribe is empty"),
    "offsets, no JSON": t(
        r'Expected e\.g\. \{"topicA":\{"0":23,"1":-1\},.*\}, got first', startingOffsets="first"
    ),
    "offsets, partial": t(PARTIAL, startingOffsets=of_t(p0=5)),
    "times, partial": t(PARTIAL, startingOffsetsByTimestamp=of_t(p0=AT + 100)),
    "time, no number": t("Expected a single long value, got soon", startingTimestamp="soon"),
    "time, too late": t("No offset matched", startingTimestamp=AT + 250, startingOffsets="earliest"),
    "time, bad strategy": t(
        "(?i)startingOffsetsByTimestampStrategy|'X'", startingOffsetsByTimestampStrategy="x"
    ),
    "minPartitions": t("minPartitions must be positive", minPartitions=0),
    "maxRecordsPerPartition": t("(?i)maxRecordsPerPartition must be positive", maxRecordsPerPartition=0),
    "min over max": t(MIN_OVER_MAX, minOffsetsPerTrigger=9, maxOffsetsPerTrigger=5),
    "data loss": Row({"subscribe": "cut", "startingOffsets": '{"cut":{"0":3}}'}, LOSS),
    "auto.offset.reset": t("'auto.offset.reset' is not supported", kafka_auto_offset_reset="earliest"),
    "enable.auto.commit": t("'enable.auto.commit' is not supported", kafka_enable_auto_commit="false"),
    "key.deserializer": t("'key.deserializer' is not supported", kafka_key_deserializer="x"),
    "value.deserializer": t("'value.deserializer' is not supported", kafka_value_deserializer="x"),
    "interceptor.classes": t("'interceptor.classes' is not supported", kafka_interceptor_classes="x"),
    "request.timeout.ms": t(r"request\.timeout\.ms", kafka_request_timeout_ms="soon"),
}
BATCHES = {
    **REFUSED,
    "subscribe": Row({"subscribe": "t,u"}),
    "subscribePattern": Row({"subscribePattern": "t$|u"}),
    "assign": Row({"assign": '{"t":[0,2]}', "includeHeaders": "true"}),
    "words": t(startingOffsets="earliest", endingOffsets="latest", minPartitions=10),
    "offsets": t(startingOffsets=of_t(p0=5, p1=-2, p2=10), endingOffsets=of_t(p0=50, p1=-1, p2=10)),
    "latest": t("starting offset can't be latest for batch queries", startingOffsets="latest"),
    "one latest": t("t-0 can't be latest for batch queries", startingOffsets=of_t(p0=-1, p1=0, p2=0)),
    "earliest end": t("ending offset can't be earliest for batch queries", endingOffsets="earliest"),
    "one earliest end": t("t-0 can't be earliest for batch queries", endingOffsets=of_t(p0=-2, p1=0, p2=0)),
    "start after end": t(
        "offset 9 is greater than the end offset 5",
        startingOffsets=of_t(p0=9, p1=0, p2=0),
        endingOffsets=of_t(p0=5, p1=0, p2=0),
    ),
    "timestamps": t(startingTimestamp=AT + 55, endingTimestamp=AT + 85, startingOffsets="latest"),
    "no later record": t(startingTimestamp=AT + 250, startingOffsetsByTimestampStrategy="latest"),
    "times": t(
        startingOffsetsByTimestamp=of_t(p0=AT + 100, p1=AT, p2=AT + 11),
        endingOffsetsByTimestamp=of_t(p0=AT + 200, p1=AT + 900, p2=AT + 12),
    ),
    "loss allowed": Row(
        {"subscribe": "cut", "startingOffsets": '{"cut":{"0":3}}', "failOnDataLoss": "false"}
    ),
    "read_committed": Row({"subscribe": "tx", "kafka.isolation.level": "read_committed"}),
    "read_uncommitted": Row({"subscribe": "tx", "kafka.isolation.level": "read_uncommitted"}),
    "of streams": t(maxOffsetsPerTrigger=5, minOffsetsPerTrigger=1, maxTriggerDelay="1s"),
    "client": Row({"subscribe": "t", **CLIENT}),
    # The connector waits for a topic that is not there yet; ours names it.
    "no topic": Row({"subscribe": "gone", **CLIENT}, "(?i)unknown.?topic.?or.?partition"),
}
STREAMS = {
    **REFUSED,
    "latest": t(),
    "subscribePattern": Row(
        {"subscribePattern": "t$|u", "startingOffsets": "earliest", "minPartitions": "12"}
    ),
    "assign": Row({"assign": '{"t":[0,2]}', "startingOffsets": "earliest", **CLIENT}),
    "offsets": t(startingOffsets=of_t(p0=5, p1=-2, p2=-1), includeHeaders="true", maxRecordsPerPartition=20),
    "beyond the end": t(LOSS, startingOffsets=of_t(p0=500, p1=0, p2=0)),
    "startingTimestamp": t(startingTimestamp=AT + 50, startingOffsets="latest"),
    "no later record": t(startingTimestamp=AT + 250, startingOffsetsByTimestampStrategy="latest"),
    "times": t(startingOffsetsByTimestamp=of_t(p0=AT + 100, p1=AT, p2=AT + 11)),
    "endingOffsets": t("ending offset not valid in streaming queries", endingOffsets="latest"),
    "ending times": t(
        "ending timestamp not valid in streaming", endingOffsetsByTimestamp=of_t(p0=AT, p1=AT, p2=AT)
    ),
    # The connector ignores it.
    "endingTimestamp": t(ours="ending timestamp not valid in streaming queries", endingTimestamp=AT),
    "offsets per trigger": t(startingOffsets="earliest", minOffsetsPerTrigger=9, maxOffsetsPerTrigger=37),
    "bad delay": t("(?i)number|Time must be", minOffsetsPerTrigger=9, maxTriggerDelay="soon"),
    "loss allowed": BATCHES["loss allowed"],
    "read_committed": Row({**BATCHES["read_committed"].given, "startingOffsets": "earliest"}),
    "read_uncommitted": Row({**BATCHES["read_uncommitted"].given, "startingOffsets": "earliest"}),
}


def rows_of(frame: DataFrame) -> tuple[list[str], list[int]]:
    """All rows, and how many each task had."""
    found = frame.collect()
    return sorted(repr(row[:-1]) for row in found), sorted(Counter(row[-1] for row in found).values())


def chosen(frame: DataFrame) -> DataFrame:
    headers = ["headers"] if "headers" in frame.columns else []
    return frame.selectExpr(*COLUMNS, *headers, "spark_partition_id()")


def outcomes(ask: Callable[[str], Any]) -> list[Any]:
    """What both sources return or say."""
    found: list[Any] = []
    for source in SOURCES:
        try:
            found.append(ask(source))
        except (PySparkException, Py4JJavaError) as error:
            found.append(str(error))
    return found


def compare(row: Row, ask: Callable[[str], Any]) -> None:
    theirs, ours = outcomes(ask)
    if row.ours is not None:
        assert isinstance(ours, str), ours
        assert re.search(row.ours, ours), ours
        assert row.ours not in str(theirs)
    elif row.says is None:
        assert ours == theirs
    else:
        for said in theirs, ours:
            assert isinstance(said, str), said
            assert re.search(row.says, said), said


def ids(rows: Mapping[str, Row]) -> Any:
    return pytest.mark.parametrize("row", rows.values(), ids=list(rows))


@ids(BATCHES)
def test_a_batch(spark: SparkSession, broker: SecureBroker, row: Row) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, **SOON, **row.given}
    compare(row, lambda source: rows_of(chosen(spark.read.format(source).options(**options).load())))


@ids(STREAMS)
def test_a_stream(spark: SparkSession, broker: SecureBroker, row: Row, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, **SOON, **row.given}
    compare(row, lambda source: streamed(spark, source, options, tmp_path))


def streamed(spark: SparkSession, source: str, options: Mapping[str, str], place: Path) -> Any:
    """Rows, their tasks, and the rows of each batch that had some."""
    frame = chosen(spark.readStream.format(source).options(**options).load())
    query = (
        frame.writeStream.format("memory")
        .queryName(f"read_by_{source}")
        .option("checkpointLocation", str(place / source))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    return rows_of(spark.table(query.name)), batches_of(query)


def batches_of(query: StreamingQuery) -> list[int]:
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


@pytest.mark.parametrize("source", SOURCES)
def test_records_wait_in_a_running_query(
    spark: SparkSession, broker: SecureBroker, tmp_path: Path, source: str
) -> None:
    """Until there are enough of them, or for the longest delay."""
    topic = f"grows-for-{source}"
    create_topic(broker.bootstrap, topic, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "minOffsetsPerTrigger": "10"}

    def running(name: str, **more: str) -> StreamingQuery:
        given = {**options, **more, "startingOffsets": "earliest"}
        frame = spark.readStream.format(source).options(**given).load().select("offset")
        sink = frame.writeStream.format("memory").queryName(f"{name}_by_{source}")
        return sink.option("checkpointLocation", str(tmp_path / name)).start()

    def read(query: StreamingQuery) -> int:
        assert query.isActive, query.exception()
        return spark.table(query.name).count()

    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def produce(records: int) -> None:
        for _ in range(records):
            producer.produce(topic, b"v")
        assert producer.flush(PATIENCE_S) == 0

    produce(4)
    patient, hasty = queries = running("patient"), running("hasty", maxTriggerDelay="1ms")
    for added, known in ((0, (4, 4)), (5, (4, 9)), (5, (14, 14))):
        produce(added)
        until(lambda known=known: (read(patient), read(hasty)) == known, f"{known} records are read")
    until(lambda: sum(batches_of(patient)) == 14, "the last batch is reported")
    for query in queries:
        query.stop()
    assert batches_of(patient) == [4, 10]


def test_the_isolation_level_is_not_that_of_the_connector(spark: SparkSession, broker: SecureBroker) -> None:
    """Not given, ours reads what is committed."""

    def read(source: str, **level: str) -> Any:
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "tx", **level}
        return rows_of(chosen(spark.read.format(source).options(**options).load()))

    assert read(OURS) == read(KAFKA, **{"kafka.isolation.level": "read_committed"}) != read(KAFKA)


def test_tasks_of_a_batch_are_as_small_as_the_option_says(spark: SparkSession, broker: SecureBroker) -> None:
    """The connector obeys maxRecordsPerPartition in streams only."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "maxRecordsPerPartition": "7"}
    (theirs, large), (ours, small) = (
        rows_of(chosen(spark.read.format(source).options(**options).load())) for source in SOURCES
    )
    assert ours == theirs
    assert max(small) <= 7 < max(large)


# ---- the sink


KEYED = ("if(id % 4 = 0, null, concat('k', id)) key", "if(id % 5 = 0, null, concat('v', id)) value")
BYTES = ("cast(concat('k', id) as binary) key", "cast(concat('v', id) as binary) value")
HEADERS = "if(id % 2 = 0, null, array(named_struct('key', 'h', 'value', cast(string(id) as binary)))) headers"
TO = "{}"
CLASSES = "org.apache.kafka.clients.producer"


@dataclass(frozen=True)
class Write(Row):
    """A row about a sink: `columns` of forty rows, of which `{}` is the topic, as in the options."""

    columns: Sequence[str] = KEYED
    # Which partition gets a record is not compared.
    anywhere: bool = False


def w(*columns: str, says: str | None = None, anywhere: bool = False, **given: object) -> Write:
    return Write({"topic": TO, **dotted(given)}, says, None, columns or KEYED, anywhere)


WRITES = {
    "strings": w(anywhere=True),
    "bytes": w(*BYTES),
    "headers": w(*BYTES, HEADERS),
    "partition": w(*KEYED, "cast(id % 3 as int) partition"),
    "some partitions": w(*BYTES, "if(id % 3 = 0, 2, null) partition"),
    "topic in a column": Write({}, columns=(*BYTES, "'{}' topic")),
    "topic in both": w(*BYTES, "'nowhere' topic"),
    "one more column": w(*BYTES, "1 more"),
    "no topic": Write({}, "topic option required when no 'topic' attribute is present"),
    "null topic": Write(
        {}, "(?i)null topic.*Use the .?topic.? option", columns=(*BYTES, "cast(null as string) topic")
    ),
    "no value": w("'k' key", says="Required attribute 'value' not found"),
    "wrong value": w("1 value", says="value attribute unsupported type"),
    "wrong key": w("1 key", "'v' value", says="key attribute unsupported type"),
    "wrong partition": w("'v' value", "'1' partition", says="partition attribute unsupported type"),
    "wrong headers": w("'v' value", "array('a') headers", says="headers attribute unsupported type"),
    "no such partition": w(
        *("'v' value", "9 partition"), says=r"\[0\.\.\.3\)|partition count 3", kafka_max_block_ms=50
    ),
    "client": w(
        *BYTES,
        kafka_acks=1,
        kafka_batch_size=512,
        kafka_buffer_memory=99999,
        kafka_client_id="me",
        kafka_compression_type="zstd",
        kafka_compression_zstd_level=5,
        kafka_delivery_timeout_ms=60000,
        kafka_enable_idempotence="false",
        kafka_linger_ms=3,
        kafka_max_block_ms=9000,
        kafka_request_timeout_ms=9000,
        kafka_retries=7,
    ),
    "bad acks": w(says="(?i)kafka.acks is one of|acks: String must be one of", kafka_acks="2"),
    "key.serializer": w(says="'key.serializer' is not supported", kafka_key_serializer="x"),
    "value.serializer": w(says="'value.serializer' is not supported", kafka_value_serializer="x"),
    "transactional.id": w(
        says="(?i)transactional|expired|expiring",
        kafka_transactional_id="mine",
        kafka_delivery_timeout_ms=200,
        kafka_request_timeout_ms=100,
        kafka_linger_ms=0,
        kafka_max_block_ms=50,
    ),
    "interceptor.classes": w(says="interceptor.classes|Class x", kafka_interceptor_classes="x"),
    "adaptive": w(*BYTES, kafka_partitioner_adaptive_partitioning_enable="false"),
    "ignore.keys": w(*BYTES, anywhere=True, kafka_partitioner_ignore_keys="true"),
    "sticky": w(*BYTES, anywhere=True, kafka_partitioner_class=f"{CLASSES}.UniformStickyPartitioner"),
    "default": w(*BYTES, kafka_partitioner_class=f"{CLASSES}.internals.DefaultPartitioner"),
    "own partitioner": w(says="partitioner.class", kafka_partitioner_class="x"),
}
TOPICS = count()


@ids(WRITES)
def test_a_write(spark: SparkSession, broker: SecureBroker, row: Write) -> None:
    def write(source: str) -> list[tuple[object, ...]]:
        topic = f"written-{next(TOPICS)}"
        create_topic(broker.bootstrap, topic, 3)
        frame = spark.range(40).selectExpr(*(one.replace(TO, topic) for one in row.columns))
        given = {name: text.replace(TO, topic) for name, text in row.given.items()}
        options = {"kafka.bootstrap.servers": broker.bootstrap, **given}
        frame.write.format(source).options(**options).save()
        return written(broker, topic, anywhere=row.anywhere)

    compare(row, write)


def written(broker: SecureBroker, topic: str, *, anywhere: bool = False) -> list[tuple[object, ...]]:
    found = [
        (None if anywhere else one.partition(), one.key(), one.value(), one.headers())
        for one in records(broker, topic)
    ]
    return sorted(found, key=repr)


def test_records_take_the_partitions_in_turn(spark: SparkSession, broker: SecureBroker) -> None:
    """Also those that have a key; a partition that is given goes before."""
    create_topic(broker.bootstrap, "in-turn", 3)
    create_topic(broker.bootstrap, "in-turn-too", 2)
    frame = spark.range(70, numPartitions=1).selectExpr(
        *("'k' key", "string(id) value", "if(id < 10, 1, null) partition"),
        "if(id % 2 = 0, 'in-turn', 'in-turn-too') topic",
    )
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    by = {"kafka.partitioner.class": f"{CLASSES}.RoundRobinPartitioner"}
    frame.write.format(OURS).options(**options, **by).save()
    for topic, partitions in (("in-turn", 3), ("in-turn-too", 2)):
        counts = Counter(one.partition() for one in records(broker, topic))
        assert counts == {n: 30 // partitions + 5 * (n == 1) for n in range(partitions)}


@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_a_mode_that_is_refused(spark: SparkSession, broker: SecureBroker, mode: str) -> None:
    row = Row({}, f"(?i)save mode {mode} not allowed.*Append.*ErrorIfExists")

    def write(source: str) -> None:
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "t"}
        spark.range(1).selectExpr("'v' value").write.format(source).options(**options).mode(mode).save()

    compare(row, write)


STREAMED = {
    "topic": w(*BYTES, HEADERS),
    "topic in a column": Write({}, columns=(*BYTES, "'{}' topic")),
    "no topic": Write({}, "topic option required when no 'topic' attribute is present", columns=BYTES),
    "no value": w("'k' key", says="Required attribute 'value' not found"),
    "key.serializer": w(*BYTES, says="'key.serializer' is not supported", kafka_key_serializer="x"),
    "own partitioner": w(*BYTES, says="partitioner.class", kafka_partitioner_class="x"),
}


@ids(STREAMED)
def test_a_write_of_a_stream(spark: SparkSession, broker: SecureBroker, row: Write, tmp_path: Path) -> None:
    spark.range(40).write.parquet(str(tmp_path / "rows"))

    def write(source: str) -> list[tuple[object, ...]]:
        topic = f"written-{next(TOPICS)}"
        create_topic(broker.bootstrap, topic, 3)
        frame = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
        given = {name: text.replace(TO, topic) for name, text in row.given.items()}
        query = (
            frame.selectExpr(*(one.replace(TO, topic) for one in row.columns))
            .writeStream.format(source)
            .options(**{"kafka.bootstrap.servers": broker.bootstrap, **given})
            .option("checkpointLocation", str(tmp_path / source))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        return written(broker, topic)

    compare(row, write)


# ---- logins


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def jaas(module: str, user: str, password: str, more: str = "") -> str:
    return f'{module} required username="{user}" password="{password}"{more};'


@dataclass(frozen=True)
class Login:
    """At a listener, with options; `{…}` are attributes of the broker. `says` as in `Row`."""

    listener: str
    given: Mapping[str, str] = field(default_factory=dict)
    says: str | None = None


TRUST = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "{ca}"}


def sasl(mechanism: str, text: str | None = None) -> dict[str, str]:
    found = {"kafka.sasl.mechanism": mechanism}
    return found if text is None else {**found, "kafka.sasl.jaas.config": text}


LOGINS = {
    "TLS": Login("TLS", TRUST),
    "TLS, both sides": Login(
        "MUTUAL", {**TRUST, "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": "{client_pem}"}
    ),
    "unknown authority": Login("TLS", {}, "(?i)certificat"),
    "PLAIN": Login("SASL", sasl("PLAIN", jaas(PLAIN, "ann", PLAIN_PASSWORD))),
    "PLAIN, TLS": Login("BOTH", {**TRUST, **sasl("PLAIN", jaas(PLAIN, "ann", PLAIN_PASSWORD))}),
    "wrong password": Login("SASL", sasl("PLAIN", jaas(PLAIN, "ann", "x")), "(?i)authentication"),
    "SCRAM-SHA-256": Login("SASL", sasl("SCRAM-SHA-256", jaas(SCRAM, "dora", SCRAM_PASSWORD))),
    "SCRAM-SHA-512, TLS": Login(
        "BOTH", {**TRUST, **sasl("SCRAM-SHA-512", jaas(SCRAM, "dora", SCRAM_PASSWORD))}
    ),
    "token": Login("SASL", sasl("SCRAM-SHA-512", jaas(SCRAM, "{token_id}", "{mac}", " tokenauth=true"))),
    "no login": Login("SASL", sasl("PLAIN"), "(?i)jaas"),
    "another module": Login("SASL", sasl("PLAIN", jaas("some.Module", "a", "b")), "(?i)login ?module"),
}


@pytest.fixture(scope="module")
def places(broker: SecureBroker) -> dict[str, str]:
    """What braces stand for."""
    command = OwnCli(broker.bootstrap)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        flags = ("--mechanism", mechanism, "--password-file", "-")
        command("user", "add", "dora", *flags, stdin=SCRAM_PASSWORD.encode() + b"\n")
    file = broker.directory / "ann.properties"
    login = jaas(PLAIN, "ann", PLAIN_PASSWORD)
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    at = ("--bootstrap-server", broker.address_of("SASL"), "--command-config", str(file))
    made = command("token", "create", *at, "--json").json
    return {
        "{ca}": str(broker.ca),
        "{client_pem}": str(broker.client_pem),
        "{token_id}": made["token_id"],
        "{mac}": made["hmac"],
    }


def options_of(login: Login, broker: SecureBroker, places: Mapping[str, str]) -> dict[str, str]:
    given = {
        "kafka.bootstrap.servers": broker.address_of(login.listener),
        "kafka.security.protocol": PROTOCOLS[login.listener],
        **login.given,
        **SOON,
    }
    for name, text in given.items():
        for brace, place in places.items():
            text = text.replace(brace, place)
        given[name] = text
    return given


@pytest.mark.parametrize("login", LOGINS.values(), ids=list(LOGINS))
def test_a_login(spark: SparkSession, broker: SecureBroker, places: dict[str, str], login: Login) -> None:
    options = {**options_of(login, broker, places), "subscribe": "u"}
    row = Row({}, login.says)
    compare(row, lambda source: rows_of(chosen(spark.read.format(source).options(**options).load())))


def test_a_login_of_a_stream_and_of_its_sink(
    spark: SparkSession, broker: SecureBroker, places: dict[str, str], tmp_path: Path
) -> None:
    login = options_of(LOGINS["SCRAM-SHA-512, TLS"], broker, places)
    reading = {"subscribe": "u", "startingOffsets": "earliest"}

    def copy(source: str) -> list[tuple[object, ...]]:
        topic = f"written-{next(TOPICS)}"
        create_topic(broker.bootstrap, topic, 1)
        frame = spark.readStream.format(source).options(**login, **reading).load().select("key", "value")
        sink = frame.writeStream.format(source).options(**login, topic=topic)
        query = sink.option("checkpointLocation", str(tmp_path / source)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
        return written(broker, topic)

    compare(Row(), copy)


# ---- settings of Spark


def test_tokens_that_spark_obtains_are_not_passed_over(
    spark: SparkSession, broker: SecureBroker, tmp_path: Path
) -> None:
    """Spark's Kafka source would log in with them. A query that says how it logs in does not need them."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "u"}
    conf = spark.sparkContext._conf
    cluster = "spark.kafka.clusters.lake"
    conf.set(f"{cluster}.auth.bootstrap.servers", "elsewhere:9092")
    conf.set("spark.kafka.consumer.cache.capacity", "3")
    rows = spark.range(1).selectExpr("'v' value")
    stream = spark.readStream.format("rate").load().selectExpr("string(value) value").writeStream
    try:
        for refused in (
            spark.read.format(OURS).options(**options).load,
            spark.readStream.format(OURS).options(**options).load,
            rows.write.format(OURS).options(**options, topic="t").save,
            stream.format(OURS).options(**options, topic="t", checkpointLocation=str(tmp_path)).start,
        ):
            with pytest.raises(PySparkException, match=rf"{cluster}\.\* sets up delegation tokens for 127"):
                refused()
        told = {**options, "kafka.security.protocol": "PLAINTEXT"}
        assert spark.read.format(OURS).options(**told).load().count() == 20
        conf.set(f"{cluster}.target.bootstrap.servers.regex", "elsewhere.*")
        assert spark.read.format(OURS).options(**options).load().count() == 20
    finally:
        for name in ("auth.bootstrap.servers", "target.bootstrap.servers.regex"):
            conf._jconf.remove(f"{cluster}.{name}")
