"""Settings of topics: their table, validation for CreateTopics, and the typed result that the log uses.

A topic that does not set a key has the value of the broker's keys of the same meaning (the key's synonyms),
as in Kafka's `LogConfig` and `ServerTopicConfigSynonyms`. The messages of errors are Kafka's, because clients
get them with INVALID_CONFIG.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from mpbroker.config.broker import BROKER_KEYS, HOUR_MS, BrokerConfig
from mpbroker.config.integers import LONG_MAX
from mpbroker.config.keys import ConfigType, Key, field_name, table_of
from mpbroker.config.remote import AS_RETENTION, local_retention_problem

REMOTE_STORAGE_ENABLE: Final = "remote.storage.enable"
NOTHING: Final[Mapping[str, str]] = {}
_KEEPS_REMOTE_DATA: Final = (
    "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote "
    "data and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If "
    "you want to disable remote storage and delete all remote data, please set "
    "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
)
BOOLEAN, LIST, LONG = ConfigType.BOOLEAN, ConfigType.LIST, ConfigType.LONG


class TopicConfigError(ValueError):
    """A topic's setting is unknown or invalid. The message is for the client."""


def _throttled_replicas(replicas: tuple[str, ...]) -> str:
    well_formed = replicas == ("*",) or all(
        [part.isdecimal() for part in replica.split(":")] == [True, True] for replica in replicas
    )
    return "" if well_formed else "must be the literal '*' or a list of [partitionId]:[brokerId]"


def _as(broker_key: str, **differs: Any) -> Key:
    """Return the Key of a topic's setting: a copy of the broker's Key, with `differs` as changes."""
    key = BROKER_KEYS[broker_key]
    synonyms = key.synonyms or (broker_key,)
    own: dict[str, Any] = {"name": "", "default": None, "pending": "", "begins": "", "synonyms": synonyms}
    return msgspec.structs.replace(key, **own | differs)


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one topic: those that the topic sets, and inherited values."""

    cleanup_policy: Annotated[tuple[str, ...], _as("log.cleanup.policy")] = ("delete",)
    compression_type: Annotated[str, _as("compression.type")] = "producer"
    compression_gzip_level: Annotated[int, _as("compression.gzip.level")] = -1
    compression_lz4_level: Annotated[int, _as("compression.lz4.level")] = 9
    compression_zstd_level: Annotated[int, _as("compression.zstd.level")] = 3
    delete_retention_ms: Annotated[int, _as("log.cleaner.delete.retention.ms")] = 86_400_000
    file_delete_delay_ms: Annotated[int, _as("log.segment.delete.delay.ms")] = 60_000
    flush_messages: Annotated[
        int,
        _as(
            "log.flush.interval.messages",
            doc="Records after which the segment is synced before they are visible; acks=all waits for it.",
        ),
    ] = LONG_MAX
    flush_ms: Annotated[
        int,
        _as(
            "log.flush.interval.ms",
            doc="Time after which the segment itself is synced; it is checked twice a second.",
            at_least=0,
        ),
    ] = LONG_MAX
    follower_replication_throttled_replicas: Annotated[
        tuple[str, ...],
        Key(LIST, "Replicas throttled while they follow; a single node has none.", check=_throttled_replicas),
    ] = ()
    index_interval_bytes: Annotated[int, _as("log.index.interval.bytes")] = 4096
    leader_replication_throttled_replicas: Annotated[
        tuple[str, ...],
        Key(LIST, "Replicas throttled while they lead; a single node has none.", check=_throttled_replicas),
    ] = ()
    local_retention_bytes: Annotated[
        int,
        _as(
            "log.local.retention.bytes",
            doc="Local size of a partition above which copied segments are deleted locally; "
            "-2: as retention.bytes.",
        ),
    ] = AS_RETENTION
    local_retention_ms: Annotated[
        int,
        _as(
            "log.local.retention.ms",
            doc="Age at which copied segments are deleted locally; -2: as retention.ms.",
        ),
    ] = AS_RETENTION
    max_compaction_lag_ms: Annotated[int, _as("log.cleaner.max.compaction.lag.ms")] = LONG_MAX
    max_message_bytes: Annotated[int, _as("message.max.bytes")] = 1_048_588
    message_timestamp_after_max_ms: Annotated[int, _as("log.message.timestamp.after.max.ms")] = HOUR_MS
    message_timestamp_before_max_ms: Annotated[int, _as("log.message.timestamp.before.max.ms")] = LONG_MAX
    message_timestamp_type: Annotated[str, _as("log.message.timestamp.type")] = "CreateTime"
    min_cleanable_dirty_ratio: Annotated[float, _as("log.cleaner.min.cleanable.ratio")] = 0.5
    min_compaction_lag_ms: Annotated[int, _as("log.cleaner.min.compaction.lag.ms")] = 0
    min_insync_replicas: Annotated[int, _as("min.insync.replicas")] = 1
    preallocate: Annotated[bool, _as("log.preallocate")] = False
    remote_log_copy_disable: Annotated[
        bool, Key(BOOLEAN, "Stop copying segments of a tiered topic to the object store.")
    ] = False
    remote_log_delete_on_disable: Annotated[
        bool, Key(BOOLEAN, "Delete remote segments when remote.storage.enable becomes false.")
    ] = False
    remote_storage_enable: Annotated[
        bool, Key(BOOLEAN, "Copy the topic's sealed segments to the object store.")
    ] = False
    retention_bytes: Annotated[int, _as("log.retention.bytes")] = -1
    retention_ms: Annotated[int, _as("log.retention.ms", check=None, at_least=-1)] = 604_800_000
    segment_bytes: Annotated[int, _as("log.segment.bytes")] = 1_073_741_824
    segment_index_bytes: Annotated[int, _as("log.index.size.max.bytes")] = 10_485_760
    segment_jitter_ms: Annotated[
        int, _as("log.roll.jitter.ms", doc="Random time taken off the age at which segments roll.")
    ] = 0
    segment_ms: Annotated[
        int,
        _as("log.roll.ms", doc="Age at which a new segment is begun even if the current one is not full."),
    ] = 604_800_000
    unclean_leader_election_enable: Annotated[bool, _as("unclean.leader.election.enable")] = False

    @property
    def is_remote_deleted(self) -> bool:
        """Return whether what an object store has of the topic is deleted: its tiering was switched off."""
        return self.remote_log_delete_on_disable and not self.remote_storage_enable


TOPIC_KEYS: dict[str, Key] = table_of(TopicConfig)

# Settings whose broker keys come in several units. The broker's struct has the result.
_INHERITED: dict[str, Callable[[BrokerConfig], Any]] = {
    "flush.ms": lambda broker: broker.flush_ms,
    "retention.ms": lambda broker: broker.retention_ms,
    "segment.jitter.ms": lambda broker: broker.roll_jitter_ms,
    "segment.ms": lambda broker: broker.roll_ms,
}


def inherited(key: Key, broker: BrokerConfig) -> Any:
    """Return the value that a setting has for topics that do not set it."""
    if (computed := _INHERITED.get(key.name)) is not None:
        return computed(broker)
    synonym = field_name(key.synonyms[0]) if key.synonyms else ""
    return getattr(broker, synonym, key.default)


def resolve(broker: BrokerConfig, overrides: Mapping[str, str | None]) -> TopicConfig:
    """Return all settings of a topic, from the texts that it sets (`overrides`) and the broker's settings.

    Raises TopicConfigError for an unknown name or an invalid text.
    """
    values = {field_name(name): inherited(key, broker) for name, key in TOPIC_KEYS.items()}
    for name, text in overrides.items():
        values[field_name(name)] = _parse(name, text)
    return TopicConfig(**values)


def validate(
    broker: BrokerConfig, overrides: Mapping[str, str | None], before: Mapping[str, str] = NOTHING
) -> TopicConfig:
    """Resolve and check the settings of a topic, for CreateTopics and AlterConfigs.

    `before`: the settings that the topic had. Raises TopicConfigError with the message for the client.
    """
    config = resolve(broker, overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise TopicConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    if config.remote_storage_enable:
        _check_tiered(config, broker)
    elif is_tiered(before) and not config.remote_log_delete_on_disable:
        raise TopicConfigError(_KEEPS_REMOTE_DATA)
    if config.min_insync_replicas > 1 and not broker.mpbroker_replication_factor_clamp:
        raise TopicConfigError(
            f"Invalid value {config.min_insync_replicas} for configuration min.insync.replicas: this broker "
            "is a single node with one replica of each partition"
        )
    return config


def is_tiered(overrides: Mapping[str, str]) -> bool:
    """Return whether a topic with these settings of its own is tiered."""
    return overrides.get(REMOTE_STORAGE_ENABLE, "").strip().lower() == "true"


def _check_tiered(config: TopicConfig, broker: BrokerConfig) -> None:
    """Check a tiered topic's settings (LogConfig.validateTopicLogConfigValues). Raises TopicConfigError."""
    if not broker.remote_log_storage_system_enable:
        raise TopicConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    if config.cleanup_policy not in ((), ("delete",)):
        raise TopicConfigError(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an "
            "empty list."
        )
    retentions = (
        ("retention.bytes", config.retention_bytes, config.local_retention_bytes),
        ("retention.ms", config.retention_ms, config.local_retention_ms),
    )
    for key, whole, local in retentions:
        if problem := local_retention_problem(key, whole, local):
            raise TopicConfigError(problem)
    for key, whole, local in retentions if config.remote_log_copy_disable else ():
        if local not in (AS_RETENTION, whole):
            raise TopicConfigError(
                f"When `remote.log.copy.disable` is set to true, the `local.{key}` and `{key}` must be set "
                "to the identical value because there will be no more logs copied to the remote storage."
            )


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
