"""Topics follow the bulletin, and whoever holds an earlier picture keeps it."""

from __future__ import annotations

import msgspec

from mpbroker.ipc.metadata import MetadataBase, MetadataDelta, TopicImage
from mpbroker.remote.tier.topics import Topics

A, B = TopicImage("a", b"a" * 16, b""), TopicImage("b", b"b" * 16, b"")


def test_topics_are_unknown_before_the_first_base_and_follow_each_delta() -> None:
    topics = Topics()
    topics.apply([])
    assert topics.now is None
    topics.apply([msgspec.msgpack.encode(MetadataBase(1, "cluster", 1, [A]))])
    before = topics.now
    assert before == {A.topic_id: A}
    topics.apply([msgspec.msgpack.encode(MetadataDelta(2, [B], [A.topic_id]))])
    assert topics.now == {B.topic_id: B}
    assert before == {A.topic_id: A}
    topics.apply([msgspec.msgpack.encode(MetadataBase(3, "cluster", 1, []))])
    assert topics.now == {}
