"""Decoding values in the source beside functions on columns: `make bench-spark-values`.

Records of four fields in MessagePack, Avro with a registry's framing, and JSON. Each is read on local[2] into
nothing: with the function (of JSON Spark's own), and with `valueFormat`. For JSON that is a decoder of this
module, since the source leaves JSON to Spark. "JVM reader, function" is the accelerated session, in which
`valueFormat` falls back to Python. Seconds, and CPU seconds of the JVM and all its workers.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import fastavro
import msgspec
import psutil
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.spark.functions import from_avro, from_msgpack
from ops.bench.spark import RECORDS_PER_BATCH, write_log
from spark_integration.decoding import CORRUPT_FIELD, Decoding
from spark_integration.source import MpbrokerReader
from spark_integration.values import Convert, Mode, converter, of_text

CUSTOMERS = 1000
DDL = "id bigint, customer string, amount double, at timestamp"
FIELDS = StructType(
    [
        StructField("id", LongType()),
        StructField("customer", StringType()),
        StructField("amount", DoubleType()),
        StructField("at", TimestampType()),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PARSED = fastavro.parse_schema(AVRO)
FORMS = ("msgpack", "avro", "json")


def order(number: int) -> dict[str, Any]:
    at = datetime(2024, 5, 1, tzinfo=UTC) + timedelta(milliseconds=number)
    return {"id": number, "customer": f"customer-{number % CUSTOMERS}", "amount": number / 7, "at": at}


def avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, PARSED, value)
    return b"\0\0\0\0\1" + stream.getvalue()


ENCODE: Mapping[str, Callable[[dict[str, Any]], bytes]] = {
    "msgpack": msgspec.msgpack.encode,
    "avro": avro,
    "json": msgspec.json.encode,
}


def batches(form: str, records: int) -> Iterator[tuple[int, bytearray]]:
    for offset in range(0, records, RECORDS_PER_BATCH):
        orders = map(order, range(offset, offset + RECORDS_PER_BATCH))
        yield offset, build_batch(NewRecord(ENCODE[form](one), timestamp=1_700_000_000_000) for one in orders)


@dataclass(frozen=True)
class Json:
    """Decodes JSON as the source decodes MessagePack."""

    def decoder(self, kind: pa.StructType) -> Convert:
        decode = msgspec.json.Decoder().decode
        convert = converter(kind, of_text)
        assert convert is not None
        return lambda data: convert(decode(data))


class JsonReader(MpbrokerReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, StructType([StructField("value", BinaryType())]))
        self._decoding = Decoding(schema["value"].dataType.json(), Mode.PERMISSIVE, cast(Any, Json()))


class JsonValues(DataSource):
    """The source as it would be with JSON."""

    @classmethod
    def name(cls) -> str:
        return "json_values"

    def schema(self) -> StructType:
        return StructType([StructField("value", StructType([*FIELDS.fields, CORRUPT_FIELD]))])

    def reader(self, schema: StructType) -> JsonReader:
        return JsonReader(self.options, schema)


def queries(spark: SparkSession, log_dir: Path, registry: str) -> dict[str, Callable[[], DataFrame]]:
    functions = {
        "msgpack": lambda: from_msgpack("value", DDL),
        "avro": lambda: from_avro("value", registry=registry, subject="orders"),
        "json": lambda: from_json(col("value").cast("string"), DDL),
    }
    formats = {
        "msgpack": {"valueFormat": "msgpack", "valueSchema": DDL},
        "avro": {"valueFormat": "avro", "valueRegistry": registry, "valueSubject": "orders"},
        "json": {},
    }

    def frame(form: str, source: str, extra: Mapping[str, str]) -> DataFrame:
        options = {"log.dir": str(log_dir), "subscribe": form, "columns": "value", "minPartitions": "2"}
        return spark.read.format(source).options(**options, **extra).load()

    def by_function(form: str) -> DataFrame:
        return frame(form, "mpbroker", {}).select(functions[form]().alias("value"))

    def by_source(form: str) -> DataFrame:
        return frame(form, "json_values" if form == "json" else "mpbroker", formats[form])

    found: dict[str, Callable[[], DataFrame]] = {}
    for form in FORMS:
        found[f"{form} function"] = lambda form=form: by_function(form)  # type: ignore[misc]
        found[f"{form} source"] = lambda form=form: by_source(form)  # type: ignore[misc]
    return found


def cpu_s() -> float:
    """CPU seconds so far of the JVM and all its workers."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def measure(directory: Path, kind: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Takes turns among the queries, after a round to warm up. Returns the best (CPU) seconds of each.

    Runs in an interpreter of its own.
    """
    from mpbroker.spark import session

    spark = session(master="local[2]", accelerated=kind == "accelerated", quiet=True)
    spark.dataSource.register(JsonValues)
    found: dict[str, tuple[float, float]] = {}
    for number in range(rounds + 1):
        for name, query in queries(spark, directory / "log", str(directory / "schemas")).items():
            if kind == "accelerated" and name.endswith("source"):
                continue
            before, begun = cpu_s(), time.perf_counter()
            query().selectExpr("value.*").write.format("noop").mode("overwrite").save()
            took = time.perf_counter() - begun, cpu_s() - before
            if number:
                best = found.get(name, took)
                found[name] = (min(best[0], took[0]), min(best[1], took[1]))
    spark.stop()
    return found


def run(directory: Path, kind: str, rounds: int) -> dict[str, tuple[float, float]]:
    command = [sys.executable, "-m", "ops.bench.spark_values", "--measure", kind]
    done = subprocess.run(
        [*command, "--directory", str(directory), "--rounds", str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", choices=("mpbroker", "accelerated"), help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.directory, given.measure, given.rounds)))
        return
    records = given.records // RECORDS_PER_BATCH * RECORDS_PER_BATCH
    with tempfile.TemporaryDirectory(prefix="mpbroker-bench-") as place:
        directory = Path(place)
        write_log(directory / "log", {form: batches(form, records) for form in FORMS}, records)
        schemas = directory / "schemas"
        schemas.mkdir()
        for name in ("1", "orders"):
            (schemas / f"{name}.avsc").write_text(json.dumps(AVRO))
        python = run(directory, "mpbroker", given.rounds)
        jvm = run(directory, "accelerated", given.rounds)
    print(f"{records} records of four fields, local[2]: seconds (CPU seconds)")
    print(f"{'':10}{'function':>18}{'valueFormat':>18}{'JVM reader, function':>24}")
    for form in FORMS:
        cells = (python[f"{form} function"], python[f"{form} source"], jvm[f"{form} function"])
        print(f"{form:10}" + "".join(f"{wall:11.2f} ({cpu:5.2f})" for wall, cpu in cells))


if __name__ == "__main__":
    main()
