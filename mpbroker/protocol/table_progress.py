"""The note of the tables job about a table, beside the offsets that it commits: for consoles and metrics.

A table's offsets are in its own snapshots. The job commits a copy to a group whose name has the table's, with
this note as the offsets' metadata. So lag is known without reading the table.
"""

from __future__ import annotations

from typing import Final

import msgspec

GROUP_PREFIX: Final = "mpbroker.table."
# Kafka's default of offset.metadata.max.bytes is 4,096.
PROBLEM_MAX: Final = 500


class TableNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a table. `error_rows`: since the job began; `problem`: why the last try failed, or ""."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    error_rows: int = 0
    committed_ms: int = 0
    problem: str = ""

    def text(self) -> str:
        return msgspec.json.encode(msgspec.structs.replace(self, problem=self.problem[:PROBLEM_MAX])).decode()


def group_of(table: str) -> str:
    """Return the group of a table, which is named NAMESPACE.NAME."""
    return GROUP_PREFIX + table


def note_of(group: str, metadata: str) -> TableNote | None:
    """Return the note in the metadata of a group's offset; None if the group belongs to no table.

    Anybody may commit any metadata: what cannot be decoded is no note.
    """
    if not (group.startswith(GROUP_PREFIX) and metadata):
        return None
    try:
        return msgspec.json.decode(metadata, type=TableNote)
    except msgspec.DecodeError:
        return None
