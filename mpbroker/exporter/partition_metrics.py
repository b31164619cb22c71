"""Metrics per partition: Kafka's metrics of logs, and kafka_exporter's metrics of topics and groups.

(danielqsj/kafka_exporter: README.) Labels are rendered once per partition and used for all metrics, so that a
scrape of thousands of partitions is fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from mpbroker.exporter.exposition import Family, Page, labels_text
from mpbroker.metrics.snapshot import LogSeen
from mpbroker.observe.committed_groups import CommittedGroup
from mpbroker.observe.lag import lag_behind
from mpbroker.protocol.topic_names import METADATA_TOPIC

# Anybody who may commit can make groups, and a page has to end. The limit of sums and of members is the same.
GROUP_OFFSETS_MAX = 50_000
_families: list[Family] = []
_AS_OF = "as of the last half minute"


def _gauge(name: str, meaning: str) -> Family:
    _families.append(Family(name, "gauge", meaning))
    return _families[-1]


LOG_SIZE: Final = _gauge("kafka_log_log_size", f"Bytes of a partition's segments, {_AS_OF}.")
LOG_SEGMENTS: Final = _gauge("kafka_log_log_numlogsegments", f"Segments of a partition, {_AS_OF}.")
LOG_START: Final = _gauge("kafka_log_log_logstartoffset", "First offset of a partition.")
LOG_END: Final = _gauge("kafka_log_log_logendoffset", "Offset of a partition's next record.")

BROKERS: Final = _gauge("kafka_brokers", "Brokers of the cluster.")
TOPIC_PARTITIONS: Final = _gauge("kafka_topic_partitions", "Partitions of a topic.")
CURRENT: Final = _gauge(
    "kafka_topic_partition_current_offset", "High watermark: the offset after the last committed record."
)
OLDEST: Final = _gauge("kafka_topic_partition_oldest_offset", "First offset of a partition.")
LEADER: Final = _gauge("kafka_topic_partition_leader", "Id of the leader; -1: it is offline.")
PREFERRED: Final = _gauge(
    "kafka_topic_partition_leader_is_preferred", "1 if the preferred replica leads the partition."
)
REPLICAS: Final = _gauge("kafka_topic_partition_replicas", "Replicas of a partition.")
IN_SYNC: Final = _gauge("kafka_topic_partition_in_sync_replica", "In-sync replicas of a partition.")
UNDER_REPLICATED: Final = _gauge(
    "kafka_topic_partition_under_replicated_partition", "1 if a replica is missing: it is offline."
)

GROUP_OFFSET: Final = _gauge("kafka_consumergroup_current_offset", "Committed offset of a group.")
GROUP_OFFSET_SUM: Final = _gauge(
    "kafka_consumergroup_current_offset_sum", "Committed offsets of a group in a topic, added up."
)
GROUP_LAG: Final = _gauge(
    "kafka_consumergroup_lag", "High watermark less committed offset: what a group has yet to read."
)
GROUP_LAG_SUM: Final = _gauge(
    "kafka_consumergroup_lag_sum", "Lag of a group in a topic, in partitions with a committed offset."
)
GROUP_MEMBERS: Final = _gauge("kafka_consumergroup_members", "Members of a group, as of its last generation.")

FAMILIES: Final = tuple(_families)


def write_topics(logs: Iterable[LogSeen], node_id: int, page: Page) -> None:
    """Write the metrics of each partition, except those of the broker's internal metadata topic."""
    seen = [
        (labels_text((("partition", str(one.partition)), ("topic", one.topic))), one)
        for one in sorted(logs, key=lambda one: (one.topic, one.partition))
        if one.topic != METADATA_TOPIC
    ]
    usable = [(labels, one) for labels, one in seen if one.usable]
    page.lines(LOG_SIZE, ((labels, one.sizes[1]) for labels, one in usable if one.sizes))
    page.lines(LOG_SEGMENTS, ((labels, one.sizes[0]) for labels, one in usable if one.sizes))
    page.lines(LOG_START, ((labels, one.log_start) for labels, one in usable))
    page.lines(LOG_END, ((labels, one.log_end) for labels, one in usable))
    page.lines(BROKERS, [("", 1)])
    topics = Counter(one.topic for _, one in seen)
    page.lines(TOPIC_PARTITIONS, ((labels_text([("topic", name)]), n) for name, n in topics.items()))
    page.lines(CURRENT, ((labels, one.high_watermark) for labels, one in usable))
    page.lines(OLDEST, ((labels, one.log_start) for labels, one in usable))
    page.lines(LEADER, ((labels, node_id if one.usable else -1) for labels, one in seen))
    page.lines(PREFERRED, ((labels, int(one.usable)) for labels, one in seen))
    page.lines(REPLICAS, ((labels, 1) for labels, _ in seen))
    page.lines(IN_SYNC, ((labels, int(one.usable)) for labels, one in seen))
    page.lines(UNDER_REPLICATED, ((labels, int(not one.usable)) for labels, one in seen))


def write_groups(groups: Mapping[str, CommittedGroup], logs: Iterable[LogSeen], page: Page) -> int:
    """Write groups' committed offsets and lags, without deleted topics. Return how many offsets are omitted.

    A page has at most GROUP_OFFSETS_MAX offsets. If groups have more, each gets a fair share, so that a group
    with many offsets does not displace others. Sums by topic include the omitted offsets.
    """
    ends = {(one.topic, one.partition): one.high_watermark for one in logs if one.usable}
    seen = [_GroupLag(name, group, ends) for name, group in sorted(groups.items())]
    # If there are more groups than offsets, those with members come first.
    seen.sort(key=lambda one: not one.members)
    shares = fair_shares([len(one.offsets) for one in seen], GROUP_OFFSETS_MAX)
    named = [
        (labels_text((("consumergroup", one.name), ("partition", str(partition)), ("topic", topic))), at, lag)
        for one, share in zip(seen, shares, strict=True)
        for (topic, partition), at, lag in one.offsets[:share]
    ]
    shares = fair_shares([len(one.sums) for one in seen], GROUP_OFFSETS_MAX)
    sums = [
        (labels_text((("consumergroup", one.name), ("topic", topic))), at, lag)
        for one, share in zip(seen, shares, strict=True)
        for topic, (at, lag) in islice(one.sums.items(), share)
    ]
    page.lines(GROUP_OFFSET, ((labels, at) for labels, at, _ in named))
    page.lines(GROUP_OFFSET_SUM, ((labels, at) for labels, at, _ in sums))
    page.lines(GROUP_LAG, ((labels, lag) for labels, _, lag in named))
    page.lines(GROUP_LAG_SUM, ((labels, lag) for labels, _, lag in sums))
    members = ((labels_text([("consumergroup", one.name)]), one.members) for one in seen[:GROUP_OFFSETS_MAX])
    page.lines(GROUP_MEMBERS, ((labels, count) for labels, count in members if count is not None))
    return sum(len(one.offsets) for one in seen) - len(named)


class _GroupLag:
    """A group's committed offsets and lags: sorted by partition, and summed by topic."""

    def __init__(self, name: str, group: CommittedGroup, ends: Mapping[tuple[str, int], int]) -> None:
        self.name = name
        self.members = group.members
        self.offsets = [
            (place, offset, lag_behind(end, offset))
            for place, offset in sorted(group.offsets.items())
            if (end := ends.get(place)) is not None
        ]
        self.sums: dict[str, tuple[int, int]] = {}
        for (topic, _), offset, lag in self.offsets:
            offsets, lags = self.sums.get(topic, (0, 0))
            self.sums[topic] = offsets + offset, lags + lag


def fair_shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return a share of `room` for each wanted number: small numbers in full, equal shares for the others."""
    shares = [0] * len(wanted)
    smallest_first = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for done, index in enumerate(smallest_first):
        # Rounded up for the first of equals, so that nothing is left over.
        equal = -(-room // (len(wanted) - done))
        shares[index] = min(wanted[index], equal)
        room -= shares[index]
    return shares
