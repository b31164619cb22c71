"""A stream goes on while a broker and its standby change places: each row is in its sink once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.chaos.killer import at_work, started
from tests.chaos.take_overs import HANDED_OVER, KILLED, STOPPED, begin, change_places
from tests.chaos.workload import PARTITIONS, TOPIC, Workload, create_topic
from tests.support.broker_pair import Pair
from tests.support.forms import long_only
from tests.support.polling import PATIENCE_S, until

PER_BATCH = 2_000
SEED = 3


class Stream:
    """A query of the topic into Parquet files, which is started again where it breaks off."""

    def __init__(self, frame: DataFrame, place: Path) -> None:
        self._frame = frame
        self.place = place
        self._stops = threading.Event()
        # Why it broke off.
        self.breaks: list[str] = []

    def start(self) -> None:
        self._thread = started(self.breaks.append, self._run)

    def _run(self) -> None:
        while not self._stops.is_set():
            self._once(processingTime="100 milliseconds")

    def stop(self) -> None:
        """Stop it, then have another one take all that is there."""
        self._stops.set()
        self._thread.join(PATIENCE_S)
        self._once(availableNow=True)

    abandon = stop

    def _once(self, **trigger: object) -> None:
        writer = self._frame.writeStream.format("parquet").trigger(**trigger)  # type: ignore[arg-type]
        writer = writer.option("checkpointLocation", str(self.place / "checkpoint"))
        query = writer.start(str(self.place / "rows"))
        try:
            while not query.awaitTermination(1):
                if self._stops.is_set() and "availableNow" not in trigger:
                    query.stop()
        except StreamingQueryException as error:
            self.breaks.append(str(error))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, "ledger")
        begin(pair)
        yield pair
        for broker in pair.brokers.values():
            broker.kill()


@long_only("a stream of Spark's across three take-overs")
def test_a_stream_has_each_row_once(pair: Pair, spark: SparkSession, tmp_path: Path) -> None:
    create_topic(pair.bootstrap)
    workload = Workload(pair.bootstrap)
    options = {"kafka.bootstrap.servers": pair.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    reader = spark.readStream.format("mpbroker").options(maxOffsetsPerTrigger=PER_BATCH, **options)
    stream = Stream(reader.load().select("partition", "offset", "value"), tmp_path)
    with at_work(stream):
        until((tmp_path / "rows").is_dir, "the query has begun")
        with at_work(workload):
            faults = (KILLED, HANDED_OVER, STOPPED)
            change_places(pair, faults, workload.progress, random.Random(SEED))
        workload.read_back()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    read = {(row.partition, row.offset): bytes(row.value).split(b" ", 3)[:3] for row in rows}
    assert len(read) == len(rows), "a row is there twice"
    there = {
        (one.record.partition, one.offset): [b"%d" % number for number in one.record]
        for one in workload.history.final
    }
    assert read == there
    assert {partition for partition, _ in read} == set(range(PARTITIONS))
    print(f"{len(rows)} rows; it broke off {len(stream.breaks)} times: {stream.breaks}")
