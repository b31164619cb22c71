"""Adds snapshots to tables and takes them away: what pyiceberg has no public names for.

Its public `append` takes rows and writes files of its own; those of the job are written already. It has no
operation that replaces files by others with the same rows, and none that removes snapshots only if nothing
has happened since they were chosen. Other private names of pyiceberg are in `catalog`, which is one of its
catalogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

# Iceberg's property of a table.
_RETRIES: Final = "commit.retry.num-retries"


def try_once(table: Table) -> None:
    """Let commits to a loaded table fail if another one was first.

    pyiceberg's own retries would not look at what that one has done.
    """
    table.metadata.properties[_RETRIES] = "0"


def append(transaction: Transaction, files: Iterable[DataFile], properties: Mapping[str, str]) -> None:
    """Add a snapshot with these files and properties."""
    with transaction._append_snapshot_producer(dict(properties)) as adding:
        for file in files:
            adding.append_data_file(file)


def replace(table: Table, old: Iterable[DataFile], made: Iterable[DataFile]) -> None:
    """Replace files by others with the same rows. Raises CommitFailedException."""
    with table.transaction() as transaction:
        replacing = _Replace(Operation.OVERWRITE, transaction, table.io)
        for file in old:
            replacing.delete_data_file(file)
        for file in made:
            replacing.append_data_file(file)
        replacing.commit()


class _Replace(_OverwriteFiles):
    def _summary(self, snapshot_properties: Any = ()) -> Summary:
        return super()._summary(dict(snapshot_properties)).model_copy(update={"operation": Operation.REPLACE})


def remove(table: Table, snapshot_ids: list[int]) -> None:
    """Remove snapshots. Raises CommitFailedException if the table has another one since it was loaded."""
    head = table.metadata.current_snapshot_id
    with table.transaction() as transaction:
        transaction._apply(
            (RemoveSnapshotsUpdate(snapshot_ids=snapshot_ids),),  # type: ignore[call-arg]
            (AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head),),  # type: ignore[call-arg]
        )
