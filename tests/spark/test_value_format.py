"""Values decoded by the source: the rows of the functions on columns, from files and over the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from mpbroker.reading import arrow
from mpbroker.reading.errors import OptionError
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from mpbroker.spark.functions import drop_malformed, from_avro, from_msgpack
from mpbroker.spark.jobs import Source
from spark_integration.decoding import CORRUPT_FIELD
from spark_integration.jvm.planner import manifest
from spark_integration.schema import check_schema, schema_for
from tests.spark.test_values import FIRST, NOON, WHOLE_SECOND, framed
from tests.support.polling import PATIENCE_S
from tests.support.spark_logs import FakeBroker, PartitionWriter

DDL = "id bigint NOT NULL COMMENT 'NOT NULL', name string, `odd NOT NULL` int, at timestamp"
PLAIN = {"valueFormat": "msgpack", "valueSchema": "id bigint"}
MAPS: list[bytes | None] = [
    msgspec.msgpack.encode({"id": 1, "name": "é", "at": NOON, "odd NOT NULL": 3, "more": 0}),
    b"\xc1",
    None,
    msgspec.msgpack.encode({}),
    msgspec.msgpack.encode({"id": "x"}),
    msgspec.msgpack.encode([1]),
]
USERS: list[bytes | None] = [
    framed(1, FIRST, {"id": 5}),
    framed(2, WHOLE_SECOND, {"id": 6, "city": {"zip": "8000"}}),
    None,
    framed(4, FIRST, {"id": 8}),
    b"\0\0",
    framed(1, FIRST, {"id": 9}) + b"x",
]


@pytest.fixture
def registry(tmp_path: Path) -> str:
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / "1.avsc").write_text(json.dumps(FIRST))
    (directory / "2.avsc").write_text(json.dumps(WHOLE_SECOND))
    (directory / "users.avsc").write_text(json.dumps(WHOLE_SECOND))
    return str(directory)


def write(log_dir: Path, broker: FakeBroker, topic: str, values: list[bytes | None]) -> PartitionWriter:
    writer = PartitionWriter(log_dir, topic)
    for number in range(2):
        records = [NewRecord(value=value, timestamp=1) for value in values]
        writer.append(records, codec=Codec.ZSTD if number else Codec.NONE)
    broker.publish(writer)
    return writer


def places(log_dir: Path, topic: str) -> dict[str, str]:
    return {"log.dir": str(log_dir), "subscribe": topic, "columns": "offset,value"}


def rows(frame: DataFrame) -> list[Any]:
    return sorted(frame.select("offset", "value").collect())


def decoded(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("mpbroker").options(**options).load()


@pytest.mark.parametrize("form", ["ddl", "struct", "json"])
def test_message_pack_is_what_the_function_makes_of_it(
    spark: SparkSession, log_dir: Path, fake_broker: FakeBroker, form: str
) -> None:
    write(log_dir, fake_broker, "t", MAPS)
    schema = {"ddl": DDL, "struct": f"STRUCT<{DDL}>", "json": StructType.fromDDL(DDL).json()}[form]
    ours = decoded(
        spark, {**places(log_dir, "t"), "valueFormat": "MsgPack", "valueSchema": schema, "minPartitions": "2"}
    )
    by_function = decoded(spark, places(log_dir, "t")).withColumn("value", from_msgpack("value", DDL))
    assert ours.dtypes == by_function.dtypes
    found = rows(ours)
    assert found == rows(by_function)
    assert [row.value and row.value.id for row in found] == 2 * [1, None, None, None, None, None]
    corrupt = [row.value and row.value._corrupt and bytes(row.value._corrupt.data) for row in found]
    assert corrupt == 2 * [None, MAPS[1], None, None, MAPS[4], MAPS[5]]
    assert ours.transform(drop_malformed("value")).count() == 6


def test_avro_is_what_the_function_makes_of_it(
    spark: SparkSession, log_dir: Path, fake_broker: FakeBroker, registry: str
) -> None:
    write(log_dir, fake_broker, "t", USERS)
    options = {"valueFormat": "avro", "valueRegistry": registry, "valueSubject": "users"}
    ours = decoded(spark, {**places(log_dir, "t"), **options})
    by_function = decoded(spark, places(log_dir, "t")).withColumn(
        "value", from_avro("value", registry=registry, subject="users")
    )
    assert ours.dtypes == by_function.dtypes
    found = rows(ours)
    assert found == rows(by_function)
    assert [row.value and row.value.id for row in found] == 2 * [5, 6, None, None, None, None]
    city = StructType([StructField("zip", StringType())])
    narrow = StructType([StructField("city", city), CORRUPT_FIELD])
    chosen = StructType([StructField("value", narrow)])
    source = spark.read.format("mpbroker").schema(chosen).options(**places(log_dir, "t"), **options)
    assert {row.value.city.zip for row in source.load().where("value.city IS NOT NULL").collect()} == {"8000"}


def test_fail_fast_says_where(spark: SparkSession, log_dir: Path, fake_broker: FakeBroker) -> None:
    write(log_dir, fake_broker, "t", MAPS[:2])
    options = {**places(log_dir, "t"), **PLAIN, "valueMode": "failfast"}
    assert decoded(spark, options).schema["value"].dataType.simpleString() == "struct<id:bigint>"
    with pytest.raises(
        PySparkException, match=r"MalformedRecord: t-0 .*a record of 1 bytes cannot be decoded"
    ):
        decoded(spark, options).collect()


def test_filters_columns_and_not_null(spark: SparkSession, log_dir: Path, fake_broker: FakeBroker) -> None:
    """What a query leaves out is left out all the same; a field named like a column is not taken for it."""
    write(log_dir, fake_broker, "t", [msgspec.msgpack.encode({"offset": 100})])
    options = {**places(log_dir, "t"), "valueFormat": "msgpack", "valueSchema": "offset bigint"}
    without = decoded(spark, {**options, "columns": "offset"})
    assert without.dtypes == [("offset", "bigint")]
    assert without.count() == 2
    whole = decoded(spark, {name: text for name, text in options.items() if name != "columns"})
    assert whole.select("value.offset", "topic", "key", "timestampType").collect() == 2 * [
        (100, "t", None, 0)
    ]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        filtered = decoded(spark, {**options, "filterPushdown": "true"})
        assert filtered.where("value.offset >= 100 AND offset >= 1").count() == 1
        assert filtered.where("value IS NULL").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    never_null = spark.read.format("mpbroker").options(**options)
    ddl = "value struct<offset: bigint, _corrupt: struct<error: string, data: binary>> NOT NULL"
    assert [row.value.offset for row in never_null.schema(ddl).load().collect()] == [100, 100]


def test_a_stream_decodes_and_keeps_its_checkpoint(
    spark: SparkSession, log_dir: Path, fake_broker: FakeBroker, tmp_path: Path
) -> None:
    """A query goes from bytes to decoded values and back: the offsets in its checkpoint are the same."""
    writer = write(log_dir, fake_broker, "t", MAPS)
    wanted = {**places(log_dir, "t"), "startingOffsets": "earliest"}
    found: list[Any] = []

    def run(extra: dict[str, str]) -> None:
        stream = spark.readStream.format("mpbroker").options(**wanted, **extra).load()
        query = stream.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch)))
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert running.start().awaitTermination(PATIENCE_S)

    run({"valueFormat": "msgpack", "valueSchema": DDL})
    assert [row.value and row.value.name for row in found] == 2 * ["é", None, None, None, None, None]
    assert bytes(found[1].value._corrupt.data) == b"\xc1"
    for number, extra in enumerate(({}, PLAIN)):
        writer.append([NewRecord(value=msgspec.msgpack.encode({"id": number}), timestamp=1)])
        fake_broker.publish(writer)
        run(extra)
    assert bytes(found[12].value) == msgspec.msgpack.encode({"id": 0})
    assert (found[13].offset, found[13].value.id) == (13, 1)
    assert len(found) == 14


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"valueFormat": "json", "valueSchema": "id bigint"}, r"from_json\(col\('value'\)"),
        ({"valueFormat": "protobuf"}, "msgpack or avro, not 'protobuf'"),
        ({"valueSchema": "id bigint"}, "valueSchema needs the option valueFormat"),
        ({"valueFormat": "msgpack"}, "valueFormat msgpack needs valueSchema"),
        ({"valueFormat": "msgpack", "valueSchema": "{"}, "not a schema of Spark in JSON"),
        ({"valueFormat": "msgpack", "valueSchema": '{"type": "struct"}'}, "not a schema of Spark in JSON"),
        ({**PLAIN, "valueSubject": "s"}, "valueSubject is an option of valueFormat avro"),
        ({**PLAIN, "valueMode": "lenient"}, "valueMode: mode is PERMISSIVE or FAILFAST, not 'lenient'"),
        ({**PLAIN, "valueMode": "DROPMALFORMED"}, "drop_malformed"),
        ({"valueFormat": "avro"}, "valueFormat avro: Avro needs a schema"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "valueFormat avro: Avro schema: no JSON"),
        ({"valueFormat": "avro", "valueRegistry": "nowhere", "valueSubject": "s"}, "neither an http"),
        ({"valueFormat": "avro", "valueRegistryHeaders": "X"}, "valueRegistryHeaders: expected JSON"),
        ({"valueFormat": "avro", "valueRegistryHeaders": '{"a": 1}'}, "valueRegistryHeaders: expected JSON"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        schema_for(options)


def test_schemas_that_do_not_fit_are_refused(spark: SparkSession, registry: str) -> None:
    corrupt = CORRUPT_FIELD.dataType.simpleString()
    avro = {"valueFormat": "avro", "valueRegistry": registry, "valueSubject": "users"}
    for options, ddl, expected in (
        (PLAIN, "value binary", "is a struct, not binary"),
        (PLAIN, "value struct<id: bigint>", "ends with `_corrupt`"),
        (PLAIN, f"value struct<_corrupt: int, _corrupt: {corrupt}>", "the field _corrupt is added"),
        (PLAIN, f"value struct<a: array<struct<b: int NOT NULL>>, _corrupt: {corrupt}>", "leave NOT NULL"),
        (avro, f"value struct<id: int, _corrupt: {corrupt}>", ".id is int, in the Avro schema it is bigint"),
        (avro, f"value struct<no: int, _corrupt: {corrupt}>", "e.no is int, in the Avro schema it is not"),
        ({}, f"value struct<id: int, _corrupt: {corrupt}>", "column 'value' is binary"),
    ):
        with pytest.raises(OptionError, match=expected):
            check_schema(StructType.fromDDL(ddl), options)
    with pytest.raises(PySparkException, match="PARSE_SYNTAX_ERROR"):
        decoded(
            spark, {"log.dir": "x", "subscribe": "t", "valueFormat": "msgpack", "valueSchema": "id is it"}
        )


def test_who_does_not_decode_says_so() -> None:
    """The JVM reader leaves the query to Python; `mpbroker.read` and jobs take values as they are."""
    schema = StructType([StructField("value", StructType([CORRUPT_FIELD]))]).json()
    request = {"options": {"subscribe": "t", "log.dir": "x", **PLAIN}, "schema": schema}
    assert manifest(request) == {"declined": "valueFormat is set, and Python decodes values"}
    with pytest.raises(OptionError, match="an option of Spark queries"):
        arrow.read("t", log_dir="x", options=PLAIN)
    with pytest.raises(OptionError, match="does not apply to jobs"):
        Source("t", log_dir="x", extra=PLAIN).parsed()
