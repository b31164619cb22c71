"""Notes of tables in the metadata of offsets, which anybody may write."""

from __future__ import annotations

import pytest

from mpbroker.protocol.table_progress import TableNote, group_of, note_of

# As many bytes as a broker takes by default.
METADATA_MAX = 4096


def test_a_note_is_read_as_it_was_written_and_fits() -> None:
    note = TableNote(rows=1 << 40, error_rows=3, committed_ms=1 << 41, problem="é" * 10_000)
    assert len(note.text().encode()) < METADATA_MAX
    found = note_of(group_of("lake.orders"), note.text())
    assert found is not None
    assert (found.rows, found.error_rows, found.problem[:3]) == (1 << 40, 3, "ééé")


@pytest.mark.parametrize("metadata", ["", "mine", "{", '{"rows": "many"}', "[]"])
def test_what_is_no_note_is_none(metadata: str) -> None:
    assert note_of(group_of("lake.orders"), metadata) is None


def test_other_groups_have_none() -> None:
    assert note_of("readers", TableNote(rows=1).text()) is None
