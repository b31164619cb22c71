"""The topics of the broker, as the coordinator announces them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mpbroker.ipc.metadata import MetadataBase, MetadataNews, TopicImage

_decoder: msgspec.msgpack.Decoder[MetadataNews] = msgspec.msgpack.Decoder(MetadataNews)


class Topics:
    """All topics by id. One thread calls `apply`; others may read `now`, which is replaced, never changed.

    `now` is None until the coordinator has announced them: then no topic may be taken for a deleted one.
    """

    def __init__(self) -> None:
        self.now: Mapping[bytes, TopicImage] | None = None

    def apply(self, news: Iterable[bytes]) -> None:
        """Apply messages of the bulletin, oldest first."""
        topics = dict(self.now or {})
        has_news = False
        for data in news:
            message = _decoder.decode(data)
            has_news = True
            if isinstance(message, MetadataBase):
                topics = {topic.topic_id: topic for topic in message.topics}
                continue
            for topic_id in message.removed:
                topics.pop(topic_id, None)
            topics |= {topic.topic_id: topic for topic in message.changed}
        if has_news:
            self.now = topics
