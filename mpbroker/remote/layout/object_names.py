"""Names of a segment's objects. (Aiven: ObjectKeyFactory.)

    <topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.log
                                                                        .indexes
                                                                        .rsm-manifest

Ids are in URL-safe Base64, as Kafka writes them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from mpbroker.storage.names import OFFSET_DIGITS

LOG: Final = ".log"
INDEXES: Final = ".indexes"
MANIFEST: Final = ".rsm-manifest"
_ID: Final = "([A-Za-z0-9_-]{22})"
_NAME = re.compile(
    rf"([A-Za-z0-9._-]+)-{_ID}/(0|[1-9][0-9]{{0,9}})/([0-9]{{{OFFSET_DIGITS}}})-{_ID}(\.log|\.indexes|\.rsm-manifest)"
).fullmatch


class SegmentObjects(NamedTuple):
    """The objects of a segment of a partition, in the order in which they are written."""

    topic: str
    topic_id: bytes
    partition: int
    base: int
    segment_id: bytes

    @property
    def log(self) -> str:
        """Return the name of the segment's bytes."""
        return self._stem + LOG

    @property
    def indexes(self) -> str:
        """Return the name of the segment's indexes (see `indexes`)."""
        return self._stem + INDEXES

    @property
    def manifest(self) -> str:
        """Return the name of the segment's manifest (see `manifest`)."""
        return self._stem + MANIFEST

    @property
    def all(self) -> tuple[str, str, str]:
        """Return the names of all objects."""
        return self.log, self.indexes, self.manifest

    @property
    def _stem(self) -> str:
        topic, place = uuid_text(self.topic_id), f"{self.partition}/{self.base:0{OFFSET_DIGITS}d}"
        return f"{self.topic}-{topic}/{place}-{uuid_text(self.segment_id)}"


def parse_object(name: str) -> SegmentObjects | None:
    """Return the segment that an object belongs to; None if the object is of another kind."""
    found = _NAME(name)
    if found is None:
        return None
    topic, topic_id, partition, base, segment_id, _ = found.groups()
    objects = SegmentObjects(topic, uuid_bytes(topic_id), int(partition), int(base), uuid_bytes(segment_id))
    # The last letter of an id has bits that are no part of it.
    return objects if name in objects.all else None
