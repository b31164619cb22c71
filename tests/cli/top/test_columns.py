"""Columns of the views, and the order of their rows."""

from __future__ import annotations

import pytest

from mpbroker.cli.top.columns import GROUPS, VIEWS, arranged
from mpbroker.ipc.meters import ApiHistogram
from mpbroker.metrics.snapshot import NS, ApiCounts
from mpbroker.observe.model import Model, Row, Summary
from mpbroker.observe.samples import BrokerSeen, Groups, GroupSeen, Health, PartitionSeen, ProcessSeen, Sample
from mpbroker.protocol.api_keys import ApiKey
from tests.support.snapshots import counted, counts, spread


def test_without_a_sample_there_is_nothing() -> None:
    model = Model()
    assert [list(view.rows(model)) for view in VIEWS] == [[]] * len(VIEWS)
    assert model.summary == Summary()


def test_every_row_has_every_column() -> None:
    model = Model()
    apis = {int(ApiKey.PRODUCE): ApiCounts({9: 1}, [spread({1: 1})] * ApiHistogram.API_HISTOGRAMS)}
    processes = (ProcessSeen("log 0", 1, "running", 0),)
    partitions = (PartitionSeen("t", 0, 0, 1, 1),)
    serving = counted(log_0={"STARTED_NS": 1})
    for second in (0, 1):
        seen = counts(second, apis=apis, counters=serving)
        model.add(Sample(second * NS, BrokerSeen(Health.RUNNING, pid=1), processes, seen, partitions))
    model.add_groups(Groups(0, (GroupSeen("g", "Stable", 1, {}),)))
    for view in VIEWS:
        rows = list(view.rows(model))
        assert rows, view.key
        assert all({one.key for one in view.columns} <= set(one) for one in rows)


ROWS: list[Row] = [
    {"group": "b", "type": "classic", "state": "Empty", "lag": 5, "topics": "orders"},
    {"group": "a", "type": "classic", "state": "Stable", "lag": None, "topics": "clicks"},
    {"group": "c", "type": "classic", "state": "Stable", "lag": 70, "topics": None},
]


@pytest.mark.parametrize(
    ("wanted", "key", "is_reversed", "expected"),
    [
        ("", None, False, "bac"),
        ("", "group", False, "abc"),
        ("", "group", True, "cba"),
        ("", "lag", False, "cba"),
        ("", "lag", True, "bca"),
        ("STABLE", "lag", False, "ca"),
        ("ord", None, False, "b"),
        ("click*", None, False, "a"),
        ("*lick", None, False, ""),
    ],
)
def test_rows_are_filtered_and_sorted(wanted: str, key: str | None, is_reversed: bool, expected: str) -> None:
    rows = arranged(ROWS, GROUPS, wanted, key, is_reversed=is_reversed)
    assert "".join(one["group"] for one in rows) == expected
