"""Settings of topics: their table, validation for CreateTopics, and the typed result the log works with.

A setting that a topic does not have comes from the broker's key of the same meaning (its synonyms), as in
Kafka's `LogConfig` and `ServerTopicConfigSynonyms`. Messages are Kafka's: clients see them with
INVALID_CONFIG.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from mpbroker.config.broker import (
    CLEANUP_POLICIES,
    CODECS,
    HOUR_MS,
    TIMESTAMP_TYPES,
    BrokerConfig,
    gzip_level,
)
from mpbroker.config.integers import LONG_MAX
from mpbroker.config.keys import ConfigType, Key, field_name, table_of

BOOLEAN, DOUBLE, INT, LIST = ConfigType.BOOLEAN, ConfigType.DOUBLE, ConfigType.INT, ConfigType.LIST
LONG, STRING = ConfigType.LONG, ConfigType.STRING

_RETENTION_SYNONYMS = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")


class TopicConfigError(ValueError):
    """A topic cannot have this setting. The message is for the client."""


def _throttled_replicas(replicas: tuple[str, ...]) -> str:
    well_formed = replicas == ("*",) or all(
        [part.isdecimal() for part in replica.split(":")] == [True, True] for replica in replicas
    )
    return "" if well_formed else "must be the literal '*' or a list of [partitionId]:[brokerId]"


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one topic, its own and inherited ones."""

    cleanup_policy: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "What happens to old segments: delete, compact, or both.",
            choices=CLEANUP_POLICIES,
            synonyms=("log.cleanup.policy",),
        ),
    ] = ("delete",)
    compression_type: Annotated[
        str,
        Key(
            STRING,
            "Codec of stored batches; producer keeps what was sent, uncompressed stores them plain.",
            choices=CODECS,
            synonyms=("compression.type",),
        ),
    ] = "producer"
    compression_gzip_level: Annotated[
        int,
        Key(
            INT,
            "Level used when this topic's batches are compressed with gzip.",
            check=gzip_level,
            synonyms=("compression.gzip.level",),
        ),
    ] = -1
    compression_lz4_level: Annotated[
        int,
        Key(
            INT,
            "Level used when this topic's batches are compressed with lz4.",
            at_least=1,
            at_most=17,
            synonyms=("compression.lz4.level",),
        ),
    ] = 9
    compression_zstd_level: Annotated[
        int,
        Key(
            INT,
            "Level used when this topic's batches are compressed with zstd.",
            at_least=-131072,
            at_most=22,
            synonyms=("compression.zstd.level",),
        ),
    ] = 3
    delete_retention_ms: Annotated[
        int,
        Key(
            LONG,
            "Time for which tombstones of a compacted topic are kept.",
            at_least=0,
            synonyms=("log.cleaner.delete.retention.ms",),
        ),
    ] = 86_400_000
    file_delete_delay_ms: Annotated[
        int,
        Key(
            LONG,
            "Time for which a deleted segment stays readable for those who have it open.",
            at_least=0,
            synonyms=("log.segment.delete.delay.ms",),
        ),
    ] = 60_000
    flush_messages: Annotated[
        int,
        Key(
            LONG,
            "Records after which the segment itself is synced, before they are seen; acks=all waits for it.",
            at_least=1,
            synonyms=("log.flush.interval.messages",),
        ),
    ] = LONG_MAX
    flush_ms: Annotated[
        int,
        Key(
            LONG,
            "Time after which the segment itself is synced; it is looked at twice a second.",
            at_least=0,
            synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
    ] = LONG_MAX
    follower_replication_throttled_replicas: Annotated[
        tuple[str, ...],
        Key(
            LIST,
            "Replicas throttled while they follow; a single node has none.",
            check=_throttled_replicas,
        ),
    ] = ()
    index_interval_bytes: Annotated[
        int,
        Key(
            INT,
            "Bytes of records between two entries of the offset index.",
            at_least=0,
            synonyms=("log.index.interval.bytes",),
        ),
    ] = 4096
    leader_replication_throttled_replicas: Annotated[
        tuple[str, ...],
        Key(LIST, "Replicas throttled while they lead; a single node has none.", check=_throttled_replicas),
    ] = ()
    local_retention_bytes: Annotated[
        int,
        Key(
            LONG,
            "Bytes kept locally of a tiered topic; -2 takes retention.bytes.",
            at_least=-2,
            synonyms=("log.local.retention.bytes",),
        ),
    ] = -2
    local_retention_ms: Annotated[
        int,
        Key(
            LONG,
            "Time kept locally of a tiered topic; -2 takes retention.ms.",
            at_least=-2,
            synonyms=("log.local.retention.ms",),
        ),
    ] = -2
    max_compaction_lag_ms: Annotated[
        int,
        Key(
            LONG,
            "Age above which a record waits no longer for compaction.",
            at_least=1,
            synonyms=("log.cleaner.max.compaction.lag.ms",),
        ),
    ] = LONG_MAX
    max_message_bytes: Annotated[
        int,
        Key(INT, "Largest record batch that is accepted.", at_least=0, synonyms=("message.max.bytes",)),
    ] = 1_048_588
    message_timestamp_after_max_ms: Annotated[
        int,
        Key(
            LONG,
            "How far a record's timestamp may lie in the future of the broker's clock.",
            at_least=0,
            synonyms=("log.message.timestamp.after.max.ms",),
        ),
    ] = HOUR_MS
    message_timestamp_before_max_ms: Annotated[
        int,
        Key(
            LONG,
            "How far a record's timestamp may lie in the past of the broker's clock.",
            at_least=0,
            synonyms=("log.message.timestamp.before.max.ms",),
        ),
    ] = LONG_MAX
    message_timestamp_type: Annotated[
        str,
        Key(
            STRING,
            "Whose clock stamps records: the producer's or the broker's.",
            choices=TIMESTAMP_TYPES,
            synonyms=("log.message.timestamp.type",),
        ),
    ] = "CreateTime"
    min_cleanable_dirty_ratio: Annotated[
        float,
        Key(
            DOUBLE,
            "Share of dirty bytes from which the log is compacted.",
            at_least=0,
            at_most=1,
            synonyms=("log.cleaner.min.cleanable.ratio",),
        ),
    ] = 0.5
    min_compaction_lag_ms: Annotated[
        int,
        Key(
            LONG,
            "Age below which a record is never compacted.",
            at_least=0,
            synonyms=("log.cleaner.min.compaction.lag.ms",),
        ),
    ] = 0
    min_insync_replicas: Annotated[
        int,
        Key(
            INT,
            "Replicas that must have a write before acks=all is answered: there is one.",
            at_least=1,
            synonyms=("min.insync.replicas",),
        ),
    ] = 1
    preallocate: Annotated[
        bool, Key(BOOLEAN, "Give new segments their full size at once.", synonyms=("log.preallocate",))
    ] = False
    remote_log_copy_disable: Annotated[
        bool, Key(BOOLEAN, "Stop copying segments of a tiered topic to remote storage.")
    ] = False
    remote_log_delete_on_disable: Annotated[
        bool, Key(BOOLEAN, "Delete remote segments when tiering of the topic is switched off.")
    ] = False
    remote_storage_enable: Annotated[
        bool, Key(BOOLEAN, "Tier the topic to remote storage; this broker has none.")
    ] = False
    retention_bytes: Annotated[
        int,
        Key(
            LONG,
            "Size of a partition above which old segments are deleted; -1: no limit.",
            synonyms=("log.retention.bytes",),
        ),
    ] = -1
    retention_ms: Annotated[
        int,
        Key(
            LONG,
            "Age at which segments are deleted; -1: never.",
            at_least=-1,
            synonyms=_RETENTION_SYNONYMS,
        ),
    ] = 604_800_000
    segment_bytes: Annotated[
        int,
        Key(
            INT,
            "Size at which a new segment is begun.",
            at_least=1_048_576,
            synonyms=("log.segment.bytes",),
        ),
    ] = 1_073_741_824
    segment_index_bytes: Annotated[
        int,
        Key(
            INT,
            "Largest size of an offset index.",
            at_least=4,
            synonyms=("log.index.size.max.bytes",),
        ),
    ] = 10_485_760
    segment_jitter_ms: Annotated[
        int,
        Key(
            LONG,
            "Random time taken off the age at which segments roll.",
            at_least=0,
            synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ),
    ] = 0
    segment_ms: Annotated[
        int,
        Key(
            LONG,
            "Age at which a new segment is begun even if the current one is not full.",
            at_least=1,
            synonyms=("log.roll.ms", "log.roll.hours"),
        ),
    ] = 604_800_000
    unclean_leader_election_enable: Annotated[
        bool,
        Key(
            BOOLEAN,
            "Let a replica that is behind become leader; a single node never has one.",
            synonyms=("unclean.leader.election.enable",),
        ),
    ] = False


TOPIC_KEYS: dict[str, Key] = table_of(TopicConfig)

# Settings whose broker keys come in several units. The broker's struct has the result.
_INHERITED: dict[str, Callable[[BrokerConfig], Any]] = {
    "flush.ms": lambda broker: broker.flush_ms,
    "retention.ms": lambda broker: broker.retention_ms,
    "segment.jitter.ms": lambda broker: broker.roll_jitter_ms,
    "segment.ms": lambda broker: broker.roll_ms,
}


def inherited(key: Key, broker: BrokerConfig) -> Any:
    """Return the value of a setting in a topic that does not have it itself."""
    if (computed := _INHERITED.get(key.name)) is not None:
        return computed(broker)
    synonym = field_name(key.synonyms[0]) if key.synonyms else ""
    return getattr(broker, synonym, key.default)


def resolve(broker: BrokerConfig, overrides: Mapping[str, str | None]) -> TopicConfig:
    """Return all settings of a topic from its own texts and the broker's.

    Raises TopicConfigError for a bad text.
    """
    values = {field_name(name): inherited(key, broker) for name, key in TOPIC_KEYS.items()}
    for name, text in overrides.items():
        values[field_name(name)] = _parse(name, text)
    return TopicConfig(**values)


def validate(broker: BrokerConfig, overrides: Mapping[str, str | None]) -> TopicConfig:
    """Check settings for CreateTopics and AlterConfigs.

    Raises TopicConfigError with the text for the client.
    """
    config = resolve(broker, overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise TopicConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    if config.min_insync_replicas > 1 and not broker.mpbroker_replication_factor_clamp:
        raise TopicConfigError(
            f"Invalid value {config.min_insync_replicas} for configuration min.insync.replicas: this broker "
            "is a single node with one replica of each partition"
        )
    if config.remote_storage_enable:
        raise TopicConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return config


def _parse(name: str, text: str | None) -> Any:
    key = TOPIC_KEYS.get(name)
    if key is None:
        raise TopicConfigError(f"Unknown topic config name: {name}")
    if text is None:
        raise TopicConfigError(f"Null value not supported for topic configs: {name}")
    try:
        return key.parse(text)
    except ValueError as error:
        raise TopicConfigError(str(error)) from error
