"""The position of a streaming query: the offsets that Spark keeps in the query's checkpoint.

The JSON has the format of Spark's Kafka source, `{"orders":{"0":23}}`: for each partition the next offset to
read (Spark: KafkaSourceOffset, JsonUtils). Kafka's source and mpbroker's can each continue from a checkpoint
of the other.

A recreated topic has the same name but other records, and Kafka's format has no field for topic ids. An id is
written as a topic without partitions, `"orders#<id>":{}`, since topic names contain no `#`. Kafka's source
ignores such a topic, and does not write it. Nor has the format a field for the generation of an object
store's ledger, which grows when the broker is restored: it is written as `"#generation-<number>":{}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from mpbroker.reading.errors import OptionError
from mpbroker.reading.options import TopicPartition

Json: TypeAlias = dict[str, dict[str, int]]
_BEFORE_ID = "#"
_GENERATION = "generation-"


@dataclass(frozen=True)
class StreamOffsets:
    """The next offset of each partition, and the topic ids and the generation, as far as they are known."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    generation: int | None = None

    def of_another(self, topic: str, topic_id: bytes | None) -> bool:
        """Return whether `topic` has an id here that differs from `topic_id`; False if an id is unknown."""
        known = self.topic_ids.get(topic)
        return known is not None and topic_id is not None and known != topic_id

    def to_json(self) -> Json:
        """Return the JSON, with sorted topics and partitions, because Spark compares offsets as text.

        Callers must not modify the returned object.
        """
        return self._json

    @cached_property
    def _json(self) -> Json:
        """Build the JSON once: an idle query needs the same thousand offsets again and again."""
        found: Json = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        for topic, topic_id in sorted(self.topic_ids.items()):
            found[f"{topic}{_BEFORE_ID}{uuid_text(topic_id)}"] = {}
        if self.generation is not None:
            found[f"{_BEFORE_ID}{_GENERATION}{self.generation}"] = {}
        return found


def parse_offsets(json: Mapping[str, Any]) -> StreamOffsets:
    """Parse the JSON of a checkpoint's offsets. Raises OptionError if it is malformed."""
    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[str, bytes] = {}
    generation = None
    wrong = OptionError(
        f"the query's checkpoint has the offsets {json}, expected e.g. {{'orders': {{'0': 23}}}}: "
        "was it written by another source? Start with a new checkpointLocation"
    )
    for name, partitions in json.items():
        topic, sign, topic_id = name.partition(_BEFORE_ID)
        if not isinstance(partitions, Mapping):
            raise wrong
        try:
            if sign and not topic and topic_id.startswith(_GENERATION):
                generation = int(topic_id.removeprefix(_GENERATION))
            elif sign:
                topic_ids[topic] = uuid_bytes(topic_id)
            for partition, offset in partitions.items():
                offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise wrong from None
    return StreamOffsets(offsets, topic_ids, generation)
