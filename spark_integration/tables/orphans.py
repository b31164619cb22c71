"""Deletes files that no snapshot of a table has: those of failed commits, and those of expired snapshots.

They are three days old by the store's clock before they go, so that files of a commit under way are left
alone. So is whatever is not named as Iceberg's files are. A query that takes longer than its snapshot is kept
(`expiry`) may lose files that are older.
Metadata of old versions go with them: no commit takes so long that it would be about one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpbroker.remote.store.object_store import ObjectStore, delete_checked
from mpbroker.remote.tier.store_clock import store_ms
from spark_integration.tables.store_io import LOCATION, name_in, store_of

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

ORPHAN_MS: Final = 3 * 24 * 3_600_000
# Written in the table's directory to learn the time.
CLOCK: Final = "metadata/clock"
_ENDINGS: Final = {
    "data/": (".parquet",),
    "metadata/": (".avro", ".metadata.json", ".puffin"),
}


def remove_orphans(table: Table) -> int:
    """Delete the orphans in the table's directory; return how many.

    Raises StoreError, and OSError if a file of the table's metadata cannot be read: then nothing is deleted.
    """
    root = table.io.properties[LOCATION]
    store = store_of(root)
    found = old_files(store, f"{name_in(root, table.location())}/")
    # Read after the list was made: a file that was committed meanwhile is named.
    named = named_files(table.refresh())
    doomed = [name for name in found if _last_part(name) not in named]
    delete_checked(store, doomed, lambda: None)
    return len(doomed)


def old_files(store: ObjectStore, directory: str) -> list[str]:
    """Return the files of a table that are old enough to be deleted. Raises StoreError."""
    before_ms = store_ms(store, directory + CLOCK) - ORPHAN_MS
    return [
        one.name
        for kind, endings in _ENDINGS.items()
        for one in store.list(directory + kind)
        if one.modified_ms < before_ms and one.name.endswith(endings)
    ]


def named_files(table: Table) -> set[str]:
    """Return the last parts of the names of all files of the table, which have a UUID or a version.

    Whole names change when a table is moved.
    """
    return {_last_part(one) for one in _locations(table)}


def _locations(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (one.metadata_file for one in metadata.metadata_log)
    yield from (one.statistics_path for one in metadata.statistics)
    yield from (one.statistics_path for one in metadata.partition_statistics)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        manifests |= {one.manifest_path: one for one in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        yield from (one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io))


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
