"""Expires snapshots of a table: those that are old and not among the newest ones.

Only the table's metadata changes. The files that no snapshot has any longer are orphans (`orphans`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyiceberg.utils.properties import property_as_int

from spark_integration.tables.snapshots import remove
from spark_integration.tables.spans import OFFSETS, newest_first, property_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

# Iceberg's properties of a table. Each commit writes the whole list of snapshots, so the defaults are smaller
# than Iceberg's, which would be seven thousand snapshots for a commit each minute.
MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
MAX_AGE_MS: Final = 3_600_000
MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
MIN_SNAPSHOTS_DEFAULT: Final = 100


def expire(table: Table) -> int:
    """Expire what is due by the table's properties; return how many snapshots.

    Raises CommitFailedException if the table was changed at the same time.
    """
    doomed = expired(table.metadata, time.time_ns() // 1_000_000)
    if doomed:
        remove(table, doomed)
    return len(doomed)


def expired(metadata: TableMetadata, now_ms: int) -> list[int]:
    """Return the ids of snapshots that may go.

    Branches and tags stay, and so does the way from the newest snapshot back to the newest one with offsets:
    the tables job walks it to learn where to continue.
    """
    newest_first = sorted(metadata.snapshots, key=lambda one: -(one.sequence_number or 0))
    least = property_as_int(metadata.properties, MIN_SNAPSHOTS, MIN_SNAPSHOTS_DEFAULT)
    age_ms = property_as_int(metadata.properties, MAX_AGE, MAX_AGE_MS)
    assert least is not None
    assert age_ms is not None
    kept = {one.snapshot_id for one in metadata.refs.values()} | set(_to_offsets(metadata))
    return [
        one.snapshot_id
        for one in newest_first[least:]
        if one.timestamp_ms < now_ms - age_ms and one.snapshot_id not in kept
    ]


def _to_offsets(metadata: TableMetadata) -> Iterator[int]:
    for one in newest_first(metadata):
        yield one.snapshot_id
        if property_of(one, OFFSETS) is not None:
            return
