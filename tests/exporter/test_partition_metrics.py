"""Partitions and the lag of groups, from what is known of the logs."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpbroker.exporter import partition_metrics
from mpbroker.exporter.exposition import Page
from mpbroker.metrics.snapshot import LogSeen
from mpbroker.observe.committed_groups import CommittedGroup


def seen(topic: str, partition: int, end: int, *, usable: bool = True) -> LogSeen:
    return LogSeen(topic, partition, 2, end + 1, (1, 100), end, usable, 9, 1)


def samples(page: Page) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.text().decode())
        for sample in family.samples
    }


def test_a_partition_that_is_offline_has_no_leader() -> None:
    page = Page()
    partition_metrics.write_topics([seen("t", 0, 10), seen("t", 1, 20, usable=False)], 7, page)
    found = samples(page)
    assert found["kafka_topic_partitions", "t"] == 2
    assert found["kafka_topic_partition_current_offset", "0", "t"] == 10
    assert found["kafka_topic_partition_oldest_offset", "0", "t"] == 2
    assert found["kafka_log_log_logendoffset", "0", "t"] == 11
    assert found["kafka_topic_partition_leader", "0", "t"] == 7
    assert found["kafka_topic_partition_leader", "1", "t"] == -1
    assert found["kafka_topic_partition_in_sync_replica", "1", "t"] == 0
    assert found["kafka_topic_partition_under_replicated_partition", "1", "t"] == 1
    assert ("kafka_topic_partition_current_offset", "1", "t") not in found


def test_the_metadata_of_the_broker_are_no_topic() -> None:
    page = Page()
    partition_metrics.write_topics([seen("__cluster_metadata", 0, 10)], 1, page)
    assert samples(page) == {("kafka_brokers",): 1}


def test_lag_is_what_a_group_has_yet_to_read() -> None:
    page = Page()
    groups = {
        "g": CommittedGroup({("t", 0): 4, ("t", 1): 20, ("gone", 0): 5}, members=2),
        'odd "one"\n': CommittedGroup({("t", 0): 99}),
    }
    partition_metrics.write_groups(groups, [seen("t", 0, 10), seen("t", 1, 20)], page)
    found = samples(page)
    assert found["kafka_consumergroup_lag", "g", "0", "t"] == 6
    assert found["kafka_consumergroup_lag", "g", "1", "t"] == 0
    assert found["kafka_consumergroup_lag_sum", "g", "t"] == 6
    assert found["kafka_consumergroup_current_offset_sum", "g", "t"] == 24
    assert found["kafka_consumergroup_members", "g"] == 2
    # A commit beyond the end, by a consumer of a topic that was made anew.
    assert found["kafka_consumergroup_lag", 'odd "one"\n', "0", "t"] == 0
    assert not any("gone" in key for key in found)
    assert ("kafka_consumergroup_members", 'odd "one"\n') not in found


def test_a_page_has_room_for_so_many_offsets_and_says_how_many_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_metrics, "GROUP_OFFSETS_MAX", 3)
    page = Page()
    groups = {f"g{number}": CommittedGroup({("t", 0): 1, ("t", 1): 1}) for number in range(4)}
    assert partition_metrics.write_groups(groups, [seen("t", 0, 10), seen("t", 1, 20)], page) == 5
    assert sum(key[0] == "kafka_consumergroup_lag" for key in samples(page)) == 3


def test_one_group_with_many_offsets_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_metrics, "GROUP_OFFSETS_MAX", 20)
    page = Page()
    logs = [seen("t", number, 10) for number in range(100)]
    greedy = CommittedGroup({("t", number): 1 for number in range(100)})
    groups = {
        "a-greedy": greedy,
        "b": CommittedGroup({("t", 0): 3, ("t", 1): 4}),
        "c": CommittedGroup({("t", 5): 6}),
    }
    assert partition_metrics.write_groups(groups, logs, page) == 83
    found = samples(page)
    assert [found["kafka_consumergroup_lag", "b", str(n), "t"] for n in (0, 1)] == [7, 6]
    assert found["kafka_consumergroup_lag", "c", "5", "t"] == 4
    assert sum(key[:2] == ("kafka_consumergroup_lag", "a-greedy") for key in found) == 17
    sums = {key[1]: value for key, value in found.items() if key[0] == "kafka_consumergroup_lag_sum"}
    assert sums == {"a-greedy": 900, "b": 13, "c": 4}, "sums have what is left out"


def test_groups_with_members_go_before_crowds_of_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_metrics, "GROUP_OFFSETS_MAX", 3)
    page = Page()
    groups = {f"g{number}": CommittedGroup({("t", 0): 1}, members=0) for number in range(9)}
    groups["works"] = CommittedGroup({("t", 0): 1}, members=2)
    assert partition_metrics.write_groups(groups, [seen("t", 0, 10)], page) == 7
    found = samples(page)
    for name in ("lag", "lag_sum", "current_offset", "current_offset_sum", "members"):
        named = {key[1] for key in found if key[0] == f"kafka_consumergroup_{name}"}
        assert len(named) == 3
        assert "works" in named


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [
        ([], 5, []),
        ([3, 1, 2], 6, [3, 1, 2]),
        ([9, 1, 9], 7, [3, 1, 3]),
        ([9, 0, 9], 7, [4, 0, 3]),
        ([1, 1, 1], 2, [1, 1, 0]),
        ([2, 2], 0, [0, 0]),
    ],
)
def test_fair_shares(wanted: list[int], room: int, shares: list[int]) -> None:
    assert partition_metrics.fair_shares(wanted, room) == shares


def test_a_group_whose_name_is_no_text_breaks_no_page() -> None:
    page = Page()
    partition_metrics.write_groups({"\udc80": CommittedGroup({("t", 0): 1})}, [seen("t", 0, 10)], page)
    assert samples(page)["kafka_consumergroup_lag", "?", "0", "t"] == 9
