"""Archives topics in an Iceberg table, each record once: one commit shows a run's files and offsets.

Spark writes the Parquet files; pyiceberg adds them to the table, with the offsets among the properties of the
snapshot. The catalog's commit is the only step that readers see, so offsets and data cannot disagree. Of two
jobs that run at once one fails, because it did not see the other's snapshot.

Files of a job that was killed before its commit are in no snapshot; the next job removes them. It recognises
them by a mark that a commit removes. Files without the mark may be those of a table that this job does not
know: renamed, or in another catalog.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from spark_integration.jobs.frame import JobError
from spark_integration.jobs.lake import FORMAT, Log, Span, joined, locked, sync_tree

if TYPE_CHECKING:
    from pyiceberg.table import Table

# Property of a snapshot: the offsets of everything in the table, not only of what the snapshot added.
OFFSETS: Final = "mpbroker.offsets"
_FILES: Final = "mpbroker"
# The mark with the files of a run until the catalog has them.
UNCOMMITTED: Final = "_uncommitted"


@dataclass(frozen=True)
class IcebergTarget:
    """A table in a SQL catalog. `uri` is SQLAlchemy's; `warehouse` is a directory for the files."""

    uri: str
    warehouse: Path
    table: str
    catalog: str = "default"


class Archived(msgspec.Struct, frozen=True):
    """The value of the snapshot property `mpbroker.offsets`: the offsets that the table has archived."""

    format: int
    spans: tuple[Span, ...]


class IcebergLake:
    """An open Iceberg table, with the methods that `lake.Lake` has for a directory; made by `opened`."""

    def __init__(self, target: IcebergTarget, catalog: Any) -> None:
        self.name = f"table {target.table} of {target.uri}"
        self._target = target
        self._catalog = catalog
        self._making = target.warehouse / _FILES / target.table
        self._committed: set[Path] = set()

    def ends(self) -> dict[Log, int]:
        """Return for each log the first offset that the table does not have. Raises JobError."""
        return {span.log: span.end for span in self._spans(self._table())}

    def new_place(self) -> Path:
        """Make and return a directory for a run's files. A commit leaves the files there."""
        place = self._making / uuid.uuid4().hex
        place.mkdir(parents=True)
        (place / UNCOMMITTED).touch()
        return place

    def drop(self, place: Path) -> None:
        """Remove a run's files, unless they were committed."""
        if place not in self._committed:
            shutil.rmtree(place, ignore_errors=True)

    def commit(self, place: Path, spans: list[Span]) -> None:
        """Add the files to the table. Raises JobError if another program has changed the table since."""
        from pyiceberg.exceptions import CommitFailedException

        files = sorted(str(path) for path in place.rglob("*.parquet"))
        sync_tree(place)
        table = self._table() or self._create(files[0])
        whole = Archived(FORMAT, joined([*self._spans(table), *spans]))
        properties = {OFFSETS: msgspec.json.encode(whole).decode()}
        # By default pyiceberg retries on top of what another job has added, perhaps the same records.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        # The outcome of a commit may stay unknown; then the next job checks whether a snapshot has the files.
        self._committed.add(place)
        try:
            table.add_files([f"file://{file}" for file in files], snapshot_properties=properties)
        except CommitFailedException as error:
            self._committed.remove(place)
            raise JobError(
                f"{self.name} was changed by another program at the same time: nothing of this run was kept. "
                f"Run the job again ({error})"
            ) from error
        (place / UNCOMMITTED).unlink()

    def begin(self) -> None:
        """Remove the files of each incomplete run, except files that a snapshot has."""
        begun = [mark.parent for mark in self._making.glob(f"*/{UNCOMMITTED}")]
        if not begun:
            return
        table = self._table()
        # Compare names of directories, which are never used twice: paths change when a warehouse is moved.
        files = [] if table is None else table.inspect.all_files().to_pylist()
        kept = {part for file in files for part in Path(file["file_path"].removeprefix("file://")).parts}
        for place in begun:
            if place.name in kept:
                (place / UNCOMMITTED).unlink()
            else:
                shutil.rmtree(place, ignore_errors=True)

    def _table(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            found: Table = self._catalog.load_table(self._target.table)
        except NoSuchTableError:
            return None
        return found

    def _create(self, file: str) -> Table:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        namespace = self._target.table.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        made: Table = self._catalog.create_table(self._target.table, schema=pq.read_schema(file))
        return made

    def _spans(self, table: Table | None) -> tuple[Span, ...]:
        """Return the newest archive snapshot's spans. Raises JobError if there are only other snapshots."""
        if table is None:
            return ()
        snapshot = table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            text = None if summary is None else summary.additional_properties.get(OFFSETS)
            if text is not None:
                return msgspec.json.decode(text, type=Archived).spans
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        if table.current_snapshot() is not None:
            raise JobError(f"{self.name} has data, but no snapshot of an archive. Name a new table")
        return ()


@contextmanager
def opened(target: IcebergTarget) -> Iterator[IcebergLake]:
    """Lock the table against other jobs and open its catalog. Raises JobError."""
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise JobError("format iceberg needs pyiceberg: pip install 'mpbroker-server[iceberg]'") from error
    target.warehouse.mkdir(parents=True, exist_ok=True)
    warehouse = target.warehouse.resolve()
    settings = {"type": "sql", "uri": target.uri, "warehouse": f"file://{warehouse}"}
    with locked(warehouse, f"{_FILES}-{target.table}.lock"):
        catalog = load_catalog(target.catalog, **settings)
        lake = IcebergLake(IcebergTarget(target.uri, warehouse, target.table, target.catalog), catalog)
        lake.begin()
        try:
            yield lake
        finally:
            catalog.close()
