"""Log lines about topics: one for each that is created or deleted, or gets more partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from mpbroker.coordinator.metadata.metadata_records import MetadataRecord
from mpbroker.coordinator.metadata.state import Topic
from mpbroker.protocol.messages import PartitionRecord, RemoveTopicRecord, TopicRecord
from mpbroker.protocol.uuids import uuid_text


def topic_lines(records: Iterable[MetadataRecord], before: dict[bytes, Topic]) -> Iterator[str]:
    """Yield the lines of one round of changes; `before` has the topics as they were."""
    made: dict[bytes, str] = {}
    added: Counter[bytes] = Counter()
    gone: dict[bytes, None] = {}
    for record in records:
        match record:
            case TopicRecord():
                made[record.topic_id] = record.name
            case PartitionRecord():
                added[record.topic_id] += 1
            case RemoveTopicRecord():
                gone[record.topic_id] = None
    for topic_id, name in made.items():
        yield f"topic {name} is created: {_partitions(added.pop(topic_id))}, id {uuid_text(topic_id)}"
    for topic_id, more in added.items():
        topic = before[topic_id]
        yield f"topic {topic.name} has {_partitions(topic.partitions + more)}, {more} of them new"
    for topic_id in gone:
        name = made[topic_id] if topic_id in made else before[topic_id].name
        yield f"topic {name} is deleted: id {uuid_text(topic_id)}"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
