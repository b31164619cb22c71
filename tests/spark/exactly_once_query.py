"""A streaming query that copies topic `in` to topic `out` exactly once, in a process that tests kill.

`python -m tests.spark.exactly_once_query BOOTSTRAP CHECKPOINT GATES`. A task that comes to a record whose
number is the name of a fifo in GATES says so, by a file `NUMBER.reached` beside it, and waits until somebody
has opened the fifo for writing. It waits at each gate once, however often the record is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import mpbroker.spark

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PARTITIONS = 3
# In each of them so many records come with a batch, and tasks write them in parts.
PER_BATCH = 300
PER_PART = 20


def main(bootstrap: str, checkpoint: str, gates: str) -> None:
    spark = mpbroker.spark.session(
        # A task is tried four times, as on a cluster.
        master="local[3,4]",
        config={
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(PER_PART),
        },
    )
    reader = spark.readStream.format("mpbroker").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.options(
        subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=PARTITIONS * PER_BATCH
    )
    rows = reader.load().select("value", "partition")
    writer = rows.mapInArrow(partial(through_gates, Path(gates)), rows.schema).writeStream.format("mpbroker")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("checkpointLocation", checkpoint)
    writer = writer.options(topic="out", exactlyOnce="true", sinkId="copy", **{"kafka.batch.size": "1024"})
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def through_gates(gates: Path, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        numbers = {value.strip().decode() for value in part.column("value").to_pylist()}
        for gate in gates.iterdir():
            reached = gate.with_name(f"{gate.name}.reached")
            if gate.name in numbers and not reached.exists():
                reached.touch()
                gate.read_bytes()
        yield part


if __name__ == "__main__":
    main(*sys.argv[1:])
