"""Runs streaming queries over what is available now."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

from tests.support.polling import PATIENCE_S


def rows_of(frame: DataFrame, checkpoint: Path) -> list[tuple[int, int]]:
    """Run a query on a checkpoint; return its rows as (partition, offset), sorted."""
    found: list[tuple[int, int]] = []

    def take(batch: DataFrame, _number: int) -> None:
        found.extend((row.partition, row.offset) for row in batch.select("partition", "offset").collect())

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)
    return sorted(found)
