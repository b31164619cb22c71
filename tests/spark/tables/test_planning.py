"""What the next commit of a table reads and removes."""

from __future__ import annotations

from mpbroker.reading.plan import Lineage, PartitionBounds
from spark_integration.tables.planning import Step, epochs_of, id_text, plan_step
from spark_integration.tables.spans import Covered, Span

ID = b"\1" * 16
TEXT = id_text(ID)


def step(
    before: tuple[int, int, int] | None, log: tuple[int, int], lineage: tuple[int, int], most: int = 99
) -> Step:
    """Plan one partition: the table has (from, to, epoch), the log (start, end)."""
    covered = Covered("t") if before is None else Covered("t", (Span(TEXT, 0, *before),))
    return plan_step(covered, {0: PartitionBounds(*log, ID)}, {0: Lineage(*lineage)}, most)


def test_a_table_begins_at_the_start_of_the_log() -> None:
    assert step(None, (3, 9), (2, -1)).spans == [Span(TEXT, 0, 3, 9, 2)]


def test_it_goes_on_where_it_is() -> None:
    assert step((0, 5, 2), (3, 9), (2, -1)).spans == [Span(TEXT, 0, 5, 9, 2)]
    found = step((0, 9, 2), (3, 9), (2, -1))
    assert (found.spans, found.cut, found.lost, found.ahead) == ([], {}, [], [])


def test_what_retention_took_first_is_lost() -> None:
    found = step((0, 5, 2), (7, 9), (2, -1))
    assert found.spans == [Span(TEXT, 0, 7, 9, 2)]
    assert found.lost == ["t-0 offsets [5, 7)"]


def test_a_log_that_ends_first_is_waited_for() -> None:
    """Nothing says that it was restored: perhaps a broker has to recover it."""
    found = step((0, 9, 2), (0, 5), (2, -1))
    assert (found.spans, found.cut) == ([], {})
    assert found.ahead == ["t-0 may be read up to offset 5, and the table has it up to 9"]


def test_a_restored_log() -> None:
    """Its end is known by the epoch, also where it is longer than the table again."""
    found = step((0, 9, 2), (0, 20), (3, 5))
    assert (found.cut, found.spans) == ({(TEXT, 0): 5}, [Span(TEXT, 0, 5, 20, 3)])
    assert step((0, 9, 2), (0, 20), (3, 9)).cut == {}
    assert step((0, 9, 2), (0, 20), (3, 15)).cut == {}
    assert step((0, 9, 2), (0, 4), (3, 4)).cut == {(TEXT, 0): 4}


def test_a_long_way_is_cut() -> None:
    """Of each partition in proportion, and at least one offset."""
    bounds = {0: PartitionBounds(0, 1000, ID), 1: PartitionBounds(0, 10, ID)}
    found = plan_step(Covered("t"), bounds, dict.fromkeys(bounds, Lineage(0, -1)), 101)
    assert not found.is_whole
    assert [(span.start, span.end) for span in found.spans] == [(0, 100), (0, 1)]


def test_a_topic_made_anew_begins_at_its_start() -> None:
    before = Covered("t", (Span("another", 0, 0, 50, 7),))
    assert epochs_of(before, ID) == {}
    found = plan_step(before, {0: PartitionBounds(0, 4, ID)}, {0: Lineage(0, -1)}, 99)
    assert (found.cut, found.spans) == ({}, [Span(TEXT, 0, 0, 4, 0)])
