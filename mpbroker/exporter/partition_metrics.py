"""Metrics with a sample per partition: Kafka's logs, kafka_exporter's topics and the lag of consumer groups.

(danielqsj/kafka_exporter: README.) Labels are rendered once per partition, and one family after the other is
written from them: a scrape of thousands of partitions must not take long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from mpbroker.coordinator.groups.committed import GroupSeen
from mpbroker.exporter.exposition import Family, Page, labels_text
from mpbroker.metrics.snapshot import LogSeen
from mpbroker.protocol.topic_names import METADATA_TOPIC

# Anybody who may commit can make groups.
MOST_GROUP_OFFSETS = 50_000
_AS_OF = "as of the last half minute"
LOG_SIZE: Final = Family("kafka_log_log_size", "gauge", f"Bytes of a partition's segments, {_AS_OF}.")
LOG_SEGMENTS: Final = Family("kafka_log_log_numlogsegments", "gauge", f"Segments of a partition, {_AS_OF}.")
LOG_START: Final = Family("kafka_log_log_logstartoffset", "gauge", "First offset of a partition.")
LOG_END: Final = Family("kafka_log_log_logendoffset", "gauge", "Offset of a partition's next record.")

BROKERS: Final = Family("kafka_brokers", "gauge", "Brokers of the cluster.")
TOPIC_PARTITIONS: Final = Family("kafka_topic_partitions", "gauge", "Partitions of a topic.")
CURRENT: Final = Family(
    "kafka_topic_partition_current_offset",
    "gauge",
    "High watermark: the offset behind what is committed.",
)
OLDEST: Final = Family("kafka_topic_partition_oldest_offset", "gauge", "First offset of a partition.")
LEADER: Final = Family("kafka_topic_partition_leader", "gauge", "Id of the leader; -1: it is offline.")
PREFERRED: Final = Family(
    "kafka_topic_partition_leader_is_preferred", "gauge", "1 if the preferred replica leads the partition."
)
REPLICAS: Final = Family("kafka_topic_partition_replicas", "gauge", "Replicas of a partition.")
IN_SYNC: Final = Family("kafka_topic_partition_in_sync_replica", "gauge", "In-sync replicas of a partition.")
UNDER_REPLICATED: Final = Family(
    "kafka_topic_partition_under_replicated_partition", "gauge", "1 if a replica is missing: it is offline."
)

GROUP_OFFSET: Final = Family("kafka_consumergroup_current_offset", "gauge", "Committed offset of a group.")
GROUP_OFFSET_SUM: Final = Family(
    "kafka_consumergroup_current_offset_sum", "gauge", "Committed offsets of a group in a topic, added up."
)
GROUP_LAG: Final = Family(
    "kafka_consumergroup_lag", "gauge", "High watermark less committed offset: what a group has yet to read."
)
GROUP_LAG_SUM: Final = Family("kafka_consumergroup_lag_sum", "gauge", "Lag of a group in a topic.")
GROUP_MEMBERS: Final = Family(
    "kafka_consumergroup_members", "gauge", "Members of a group, as of its last generation."
)

FAMILIES: Final = (
    *(LOG_SIZE, LOG_SEGMENTS, LOG_START, LOG_END, BROKERS, TOPIC_PARTITIONS, CURRENT, OLDEST, LEADER),
    *(PREFERRED, REPLICAS, IN_SYNC, UNDER_REPLICATED, GROUP_OFFSET, GROUP_OFFSET_SUM, GROUP_LAG),
    *(GROUP_LAG_SUM, GROUP_MEMBERS),
)


def write_topics(logs: Iterable[LogSeen], node_id: int, page: Page) -> None:
    """Write what there is of each partition but those of the broker's own metadata."""
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


def write_groups(groups: Mapping[str, GroupSeen], logs: Iterable[LogSeen], page: Page) -> int:
    """Write what each group has committed, and its lag. Topics that are gone are left out.

    Return how many offsets there is no room for.
    """
    ends = {(one.topic, one.partition): one.high_watermark for one in logs if one.usable}
    offsets: list[tuple[str, int]] = []
    lags: list[tuple[str, int]] = []
    offset_sums: list[tuple[str, int]] = []
    lag_sums: list[tuple[str, int]] = []
    members: list[tuple[str, int]] = []
    left_out = 0
    for name, group in sorted(groups.items()):
        of_topic: dict[str, list[int]] = {}
        for (topic, partition), offset in sorted(group.offsets.items()):
            end = ends.get((topic, partition))
            if end is None:
                continue
            if len(offsets) == MOST_GROUP_OFFSETS:
                left_out += 1
                continue
            labels = labels_text((("consumergroup", name), ("partition", str(partition)), ("topic", topic)))
            # Records may be committed, and so read, between two looks.
            lag = max(end - offset, 0)
            offsets.append((labels, offset))
            lags.append((labels, lag))
            total = of_topic.setdefault(topic, [0, 0])
            total[0] += offset
            total[1] += lag
        for topic, (offset_sum, lag_sum) in of_topic.items():
            labels = labels_text((("consumergroup", name), ("topic", topic)))
            offset_sums.append((labels, offset_sum))
            lag_sums.append((labels, lag_sum))
        if group.members is not None and len(members) < MOST_GROUP_OFFSETS:
            members.append((labels_text([("consumergroup", name)]), group.members))
    for family, samples in (
        (GROUP_OFFSET, offsets),
        (GROUP_OFFSET_SUM, offset_sums),
        (GROUP_LAG, lags),
        (GROUP_LAG_SUM, lag_sums),
        (GROUP_MEMBERS, members),
    ):
        page.lines(family, samples)
    return left_out
