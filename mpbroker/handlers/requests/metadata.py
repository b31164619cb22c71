"""Topics, quotas, ACLs and subscriptions to client metrics, as this handler knows them from the bulletin.

The bulletin is a base and deltas. Topics are found by name and id.

`__cluster_metadata` is left out: clients never see it, and a topic that is not here cannot be written or
read. (Kafka: KRaftMetadataCache.)
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, resolve
from mpbroker.handlers.hot_path.topic_table import Row, TopicTable
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.metadata import (
    MetadataBase,
    MetadataDelta,
    MetadataNews,
    PartitionSlots,
    QuotaImage,
    SubscriptionImage,
    TopicImage,
)
from mpbroker.ipc.nodes import Nodes
from mpbroker.protocol.topic_names import METADATA_TOPIC, collision_key
from mpbroker.quotas.entities import QuotaTable
from mpbroker.records.compression import Codec
from mpbroker.records.record import CREATE_TIME, LOG_APPEND_TIME
from mpbroker.records.validation import TopicPolicy
from mpbroker.security.acls import Acl
from mpbroker.security.authorizer import authorizer_of

_CODECS = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE, "producer": None}

_decoder: msgspec.msgpack.Decoder[MetadataNews] = msgspec.msgpack.Decoder(MetadataNews)


class Topic(msgspec.Struct, frozen=True, gc=False):
    """A topic, and the values derived from its configuration."""

    name: str
    topic_id: bytes
    internal: bool
    config_version: int
    overrides: dict[str, str]
    config: TopicConfig
    policy: TopicPolicy
    partitions: PartitionSlots

    @property
    def row(self) -> Row:
        """The topic's data that the native turn needs."""
        policy = self.policy
        return Row(
            self.name,
            self.topic_id,
            self.partitions.packed,
            self.config_version,
            policy.max_message_bytes,
            not self.internal,
            -1 if policy.compression is None else int(policy.compression),
            policy.timestamp_type == LOG_APPEND_TIME,
            policy.compact,
            policy.timestamp_before_max_ms,
            policy.timestamp_after_max_ms,
        )


def policy_of(config: TopicConfig) -> TopicPolicy:
    """Return the part of a topic's configuration that record validation uses."""
    codec = _CODECS[config.compression_type]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return TopicPolicy(
        compact="compact" in config.cleanup_policy,
        timestamp_type=LOG_APPEND_TIME if config.message_timestamp_type == "LogAppendTime" else CREATE_TIME,
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        max_message_bytes=config.max_message_bytes,
        compression=codec,
        compression_level=None if codec is None else levels.get(codec),
    )


class Metadata:
    """The content of the coordinator's bulletin. `version` is -1 until the first base has come.

    `authorizer` is None if the broker has none.
    """

    def __init__(self, config: BrokerConfig, table: TopicTable) -> None:
        self.version = -1
        self.cluster_id = ""
        self.node_id = config.node_id
        # The brokers of a cluster with a standby; None if this broker is the only one.
        self.nodes: Nodes | None = None
        # The replicas that serve reads.
        self.replicas: list[int] = []
        self.replicas_by_rack: dict[str, list[int]] = {}
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self._by_collision_key: dict[str, set[str]] = {}
        self.quotas = QuotaTable()
        # Grows when the quotas change: values derived from them are good for one version.
        self.quotas_version = 0
        self.authorizer = authorizer_of(config)
        # Grows when entries are added or removed.
        self.acls_version = 0
        # Settings of subscriptions to client metrics, by name; the version grows when they change.
        self.subscriptions: dict[str, dict[str, str]] = {}
        self.subscriptions_version = 0
        self._config = config
        self._table = table
        self._resolved: dict[tuple[tuple[str, str], ...], tuple[TopicConfig, TopicPolicy]] = {}

    def apply(self, messages: Iterable[bytes]) -> None:
        """Apply messages of the bulletin, in its order. A base replaces everything known before."""
        for message in messages:
            news = _decoder.decode(message)
            if isinstance(news, MetadataBase):
                self._apply_base(news)
            else:
                self._apply_delta(news)
            self.version = news.version

    @property
    def leader_id(self) -> int:
        """The broker that leads all partitions, coordinates all groups and is the controller."""
        return self.node_id if self.nodes is None else self.nodes.leader

    @property
    def leads(self) -> bool:
        return self.leader_id == self.node_id

    def collides(self, name: str) -> bool:
        """Return True if the name collides with the name of another topic."""
        key = collision_key(name)
        return key is not None and not self._by_collision_key.get(key, set()) <= {name}

    def _apply_base(self, base: MetadataBase) -> None:
        self.cluster_id, self.node_id, self.nodes = base.cluster_id, base.node_id, base.nodes
        replicas = [one for one in base.nodes.nodes if one.is_replica] if base.nodes is not None else []
        self.replicas = [one.id for one in replicas]
        self.replicas_by_rack = {
            rack: [one.id for one in replicas if one.rack == rack] for rack in {one.rack for one in replicas}
        }
        self._table.set_replica_racks(self.replicas_by_rack if self.leads else ())
        self.by_name, self.by_id, self._by_collision_key = {}, {}, {}
        self._table.clear()
        self._put(base.topics)
        self.quotas = QuotaTable()
        self._put_quotas(base.quotas)
        if self.authorizer is not None:
            self.authorizer.clear()
        self._put_acls(base.acls, [])
        self.subscriptions = {}
        self._put_subscriptions(base.subscriptions)

    def _apply_delta(self, delta: MetadataDelta) -> None:
        for topic_id in delta.removed:
            self._remove(topic_id)
        self._table.update((), delta.removed)
        self._put(delta.changed)
        if delta.quotas:
            self._put_quotas(delta.quotas)
        if delta.acls or delta.removed_acls:
            self._put_acls(delta.acls, delta.removed_acls)
        if delta.subscriptions:
            self._put_subscriptions(delta.subscriptions)

    def _put_quotas(self, images: list[QuotaImage]) -> None:
        for image in images:
            self.quotas.put(tuple(image.entity), image.values)
        self.quotas_version += 1

    def _put_acls(self, there: list[AclImage], removed: list[AclImage]) -> None:
        if self.authorizer is None:
            return
        for image in removed:
            self.authorizer.remove(Acl(*image))
        for image in there:
            self.authorizer.put(Acl(*image))
        self.acls_version += 1

    def _put_subscriptions(self, images: list[SubscriptionImage]) -> None:
        self.subscriptions |= {image.name: image.configs for image in images}
        self.subscriptions = {name: configs for name, configs in self.subscriptions.items() if configs}
        self.subscriptions_version += 1

    def _remove(self, topic_id: bytes) -> None:
        topic = self.by_id.pop(topic_id, None)
        # A name may belong to a younger topic already.
        if topic is not None and self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            if key := collision_key(topic.name):
                self._by_collision_key[key].discard(topic.name)
                if not self._by_collision_key[key]:
                    del self._by_collision_key[key]

    def _put(self, images: list[TopicImage]) -> None:
        topics = [self._topic(image) for image in images if image.name != METADATA_TOPIC]
        replaced = [
            old.topic_id
            for topic in topics
            if (old := self.by_name.get(topic.name)) is not None and old.topic_id != topic.topic_id
        ]
        for topic_id in replaced:
            self._remove(topic_id)
        for topic in topics:
            self._remove(topic.topic_id)
            self.by_name[topic.name] = self.by_id[topic.topic_id] = topic
            if key := collision_key(topic.name):
                self._by_collision_key.setdefault(key, set()).add(topic.name)
        self._table.update([topic.row for topic in topics], replaced)

    def _topic(self, image: TopicImage) -> Topic:
        key = tuple(sorted(image.configs.items()))
        resolved = self._resolved.get(key)
        if resolved is None:
            config = resolve(self._config, image.configs)
            resolved = self._resolved[key] = config, policy_of(config)
        return Topic(
            image.name,
            image.topic_id,
            image.internal,
            image.config_version,
            image.configs,
            *resolved,
            partitions=image.partitions,
        )
