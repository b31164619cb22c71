"""Announces topics, quotas, ACLs and subscriptions to client metrics to the handlers, in a bulletin.

The bulletin has the usable topics with their slots in the partition table, all quotas, access control entries
and subscriptions. A word in shared memory shows the processors whether any quota on request time exists.

A change is announced when it is durable and the log workers have opened the topic. `then` queues an action to
run after the announcement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mpbroker.coordinator.bulletins.bulletin_writer import BulletinWriter, Written
from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.metadata import (
    MetadataBase,
    MetadataDelta,
    PartitionImage,
    PartitionSlots,
    QuotaImage,
    SubscriptionImage,
    TopicImage,
)
from mpbroker.ipc.nodes import Nodes
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.topic_names import INTERNAL_TOPICS
from mpbroker.quotas.entities import REQUEST_PERCENTAGE, Entity
from mpbroker.security.acls import Acl
from shm.word import Words


class Announcer(BulletinWriter):
    """The writer of the handlers' bulletin.

    `slots` and `topics` have the topics that the log workers have opened, with the settings that the workers
    got. `announced` has the topics as the bulletin describes them to handlers. These dicts are by topic id.
    `nodes` are the brokers of the cluster; call `replaced` after changing them.
    """

    def __init__(
        self, publisher: BulletinPublisher, request_quotas: Words, cluster_id: str, node_id: int
    ) -> None:
        super().__init__(publisher, "topics and quotas")
        self.slots: dict[bytes, PartitionSlots] = {}
        self.topics: dict[bytes, Topic] = {}
        self.announced: dict[bytes, Topic] = {}
        self.nodes: Nodes | None = None
        self._readable: Mapping[bytes, PartitionSlots] = {}
        self._request_quotas = request_quotas
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._changed: set[bytes] = set()
        self._removed: list[bytes] = []
        self._quotas: dict[Entity, None] = {}
        self._acls: dict[Acl, None] = {}
        self._subscriptions: dict[str, None] = {}

    def opened(self, topic: Topic, partitions: PartitionSlots) -> bool:
        """Note the slots of an opened topic. Return whether the topic or its slots have changed."""
        topic_id = topic.topic_id
        if self.slots.get(topic_id) == partitions and self.announced.get(topic_id) == topic:
            return False
        self.slots[topic_id] = partitions
        self.topics[topic_id] = topic
        self._changed.add(topic_id)
        self.has_news = True
        return True

    def removed(self, topic_id: bytes, then: Callable[[], None]) -> None:
        self.slots.pop(topic_id, None)
        self.topics.pop(topic_id, None)
        self._changed.discard(topic_id)
        self.announced.pop(topic_id, None)
        self._removed.append(topic_id)
        self.has_news = True
        self.then(then)

    def follow(self, topics: Mapping[bytes, Topic]) -> None:
        """Announce these topics in place of all others, as those of another broker."""
        self.topics = dict(topics)
        self.slots = {topic_id: self._read_slots(topic) for topic_id, topic in topics.items()}
        self.replaced()

    def follow_slots(self, slots: Mapping[bytes, PartitionSlots]) -> None:
        """Announce with which slots consumers may read topics of another broker."""
        self._readable = slots
        for topic in self.topics.values():
            self.opened(topic, self._read_slots(topic))

    def _read_slots(self, topic: Topic) -> PartitionSlots:
        """Return the slots of another broker's topic.

        Partitions that cannot be read here have generation 0, which no slot has.
        """
        found: Mapping[int, PartitionImage] = self._readable.get(topic.topic_id) or {}
        none = PartitionImage(0, 0, 0)
        return PartitionSlots.of(found.get(number, none) for number in range(topic.partitions))

    def quotas_changed(self, entities: list[Entity]) -> None:
        self._quotas.update(dict.fromkeys(entities))
        self.has_news = True

    def acls_changed(self, acls: list[Acl]) -> None:
        """Note access control entries that were created or deleted; the next bulletin message has them."""
        self._acls.update(dict.fromkeys(acls))
        self.has_news = True

    def subscriptions_changed(self, names: list[str]) -> None:
        self._subscriptions.update(dict.fromkeys(names))
        self.has_news = True

    def publish(self, state: MetadataState) -> bool:
        """Announce the noted changes. Return False if nothing was written."""
        if not self.has_news:
            return False
        written = self.write(lambda: self._delta(state), lambda: self._base(state))
        if written is Written.DELTA:
            self.announced |= {topic_id: self.topics[topic_id] for topic_id in self._changed}
        elif written is Written.BASE:
            self.announced = self.topics.copy()
        else:
            return False
        if written is Written.BASE or self._quotas:
            self._request_quotas.store(0, state.quotas.has(REQUEST_PERCENTAGE))
        self._changed.clear()
        self._removed.clear()
        self._quotas.clear()
        self._acls.clear()
        self._subscriptions.clear()
        return True

    def _delta(self, state: MetadataState) -> MetadataDelta:
        changed = [self._image(self.topics[topic_id]) for topic_id in sorted(self._changed)]
        quotas = [QuotaImage(list(entity), state.quotas.of(entity)) for entity in self._quotas]
        there = [AclImage(*acl) for acl in self._acls if acl in state.acls]
        deleted = [AclImage(*acl) for acl in self._acls if acl not in state.acls]
        subscriptions = [
            SubscriptionImage(name, state.settings.get((ConfigResourceType.CLIENT_METRICS, name), {}))
            for name in self._subscriptions
        ]
        return MetadataDelta(state.next_offset, changed, self._removed, quotas, there, deleted, subscriptions)

    def _base(self, state: MetadataState) -> MetadataBase:
        topics = [self._image(topic) for topic in self.topics.values()]
        quotas = [QuotaImage(list(entity), values) for entity, values in state.quotas]
        acls = [AclImage(*acl) for acl in state.acls]
        subscriptions = [
            SubscriptionImage(name, configs)
            for (kind, name), configs in state.settings.items()
            if kind == ConfigResourceType.CLIENT_METRICS
        ]
        return MetadataBase(
            state.next_offset,
            self._cluster_id,
            self._node_id,
            topics,
            quotas,
            acls,
            subscriptions,
            self.nodes,
        )

    def _image(self, topic: Topic) -> TopicImage:
        return TopicImage(
            topic.name,
            topic.topic_id,
            self.slots[topic.topic_id].packed,
            topic.configs,
            topic.config_version,
            topic.name in INTERNAL_TOPICS,
        )
