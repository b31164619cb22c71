"""Parses the options of the source, with the names, defaults and errors of Spark's Kafka source.

Options that Spark's Kafka source lacks: log.dir, mpbroker.bucket, readMode, columns, maxBytesPerTask,
maxBytesPerTrigger, commitGroupId, filterPushdown, check.crcs, and, used on Spark's side only, accelerated and
all options that begin with `value`. Spark passes options with lower-cased keys. (Spark: KafkaSourceProvider.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mpbroker.protocol.numbers import EARLIEST, LATEST
from mpbroker.protocol.topic_names import TopicPartition as TopicPartition
from mpbroker.reading import option_values as values
from mpbroker.reading.errors import OptionError, warn_once
from mpbroker.reading.java_regex import UnsupportedPattern, compile_java

MAX_BYTES_PER_TASK: Final = 128 << 20
FETCH_BYTES: Final = 4 << 20
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000

_STRATEGIES = ("subscribe", "subscribepattern", "assign")
# Options as they are written, by their lower-cased form.
_NAMES = {
    name.lower(): name
    for name in (
        *("assign", "subscribe", "subscribePattern"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        "startingOffsetsByTimestampStrategy",
        *("failOnDataLoss", "includeHeaders", "columns", "filterPushdown"),
        *("minPartitions", "maxRecordsPerPartition", "maxBytesPerTask"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay"),
        *("commitGroupId", "groupIdPrefix"),
        *("log.dir", "kafka.bootstrap.servers", "mpbroker.bucket", "readMode", "check.crcs", "accelerated"),
        *("valueFormat", "valueSchema", "valueMode", "valueReaderSchema"),
        *("valueRegistry", "valueRegistryHeaders", "valueSubject", "valueVersion"),
        *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    )
}
_OFFSET_RESET = (
    "Kafka option 'auto.offset.reset' is not supported. Instead set the source option 'startingOffsets' "
    "to 'earliest' or 'latest' to specify where to start."
)
_DESERIALIZED = (
    "Kafka option '{0}.deserializer' is not supported as {0}s are deserialized as byte arrays. "
    "Use DataFrame operations to explicitly deserialize the {0}s."
)
_REFUSED = {
    "kafka.auto.offset.reset": _OFFSET_RESET,
    "kafka.key.deserializer": _DESERIALIZED.format("key"),
    "kafka.value.deserializer": _DESERIALIZED.format("value"),
    "kafka.enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported",
    "kafka.interceptor.classes": (
        "Kafka option 'interceptor.classes' is not supported "
        "as source always read keys and values as byte arrays."
    ),
}
_OF_STREAMS = (
    *("maxoffsetspertrigger", "minoffsetspertrigger", "maxbytespertrigger", "maxtriggerdelay"),
    "commitgroupid",
)
_OF_BATCH = {
    "endingoffsets": "ending offset not valid in streaming queries",
    "endingoffsetsbytimestamp": "ending timestamp not valid in streaming queries",
    "endingtimestamp": "ending timestamp not valid in streaming queries",
}
# Kafka's source joins a group by these; here tasks are given their partitions, and no group is joined.
_OF_GROUPS = ("kafka.group.id", "groupidprefix")
_BY_TIMESTAMP = "startingoffsetsbytimestampstrategy"


@dataclass(frozen=True)
class Subscribe:
    """A query's choice of partitions: all partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """A query's choice of partitions: all partitions of topics whose names contain a match of the pattern.

    The user wrote the pattern in Java's syntax. It is searched for as by Spark's Kafka source.
    """

    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Assign:
    """A query's choice of partitions: exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class AtOffset:
    """A start or end of reading: EARLIEST or LATEST, the same for every partition."""

    offset: int


@dataclass(frozen=True)
class AtOffsets:
    """A start or end of reading: for each partition its own offset, or EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamp:
    """A start or end of reading: in each partition the first record with this timestamp or a later one."""

    timestamp_ms: int


@dataclass(frozen=True)
class AtTimestamps:
    """A start or end of reading: like AtTimestamp, but with its own timestamp for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


Strategy = Subscribe | SubscribePattern | Assign
Limit = AtOffset | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a query. In a batch query, options that only streams use have their defaults."""

    strategy: Strategy
    starting: Limit
    ending: Limit
    latest_if_no_later_record: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_task: int = MAX_BYTES_PER_TASK
    read_mode: str = "auto"
    check_crcs: bool = True
    # Leave out records of aborted and of open transactions.
    read_committed: bool = True
    # Let Spark hand conditions of the query to Python's reader, too.
    filter_pushdown: bool = False
    log_dirs: tuple[str, ...] = ()
    # The URL of the object store of the broker, such as s3://bucket/prefix.
    bucket: str | None = None
    bootstrap_servers: str | None = None
    request_timeout_ms: int = 120_000
    retries: int = 3
    retry_interval_ms: int = 1000
    # The usual size of a fetch. A larger batch comes alone.
    fetch_bytes: int = FETCH_BYTES
    # Settings of the network client, by their Kafka names; passwords are among them.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The socket of the JVM's client, which connects with settings that this package's client lacks.
    relay: str = ""
    # For streams: offsets of one micro-batch, over all partitions; None for no limit.
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    # After this long a micro-batch begins though it has fewer offsets than min_offsets_per_trigger.
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    # The consumer group that a stream commits its progress to, for monitoring the lag.
    commit_group_id: str | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the micro-batches of a stream have limits."""
        offsets = (self.min_offsets_per_trigger, self.max_offsets_per_trigger)
        return any(limit is not None for limit in (*offsets, self.max_bytes_per_trigger))


def includes_headers(options: Mapping[str, str]) -> bool:
    return _boolean(_lowered(options), "includeheaders", default=False)


def chosen_columns(options: Mapping[str, str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the option `columns`.

    Without the option return all known columns, but `headers` only with includeHeaders. Raises OptionError
    for a name that is unknown or listed twice.
    """
    text = _lowered(options).get("columns")
    if text is None:
        return tuple(name for name in known if name != "headers" or includes_headers(options))
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names:
        raise OptionError(f"No columns as specified value for option 'columns' is '{text}'")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(f"columns: '{unknown[0]}' does not exist, only {', '.join(known)}")
    if len(set(names)) != len(names):
        raise OptionError(f"columns: a column is named twice in '{','.join(names)}'")
    return names


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Parse the options of a batch query, or with `streaming` of a stream. Raises OptionError.

    A stream begins at the latest offsets by default and has no end (`ending` is LATEST). A batch query
    ignores options for streams only, with a warning.
    """
    options = _lowered(given)
    _refuse(options)
    _warn(options, streaming=streaming)
    return _parsed(options, streaming=streaming)


def check_options(given: Mapping[str, str]) -> None:
    """Check a query's options. The query is a batch query if an option sets its end. Raises OptionError."""
    options = _lowered(given)
    _refuse(options)
    _parsed(options, streaming=not any(key in options for key in _OF_BATCH))


def _parsed(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    strategy = _strategy(options)
    read_mode = _choice(options, "readmode", "auto", "local", "remote")
    isolation = _choice(options, "kafka.isolation.level", "read_committed", "read_uncommitted")
    log_dirs = tuple(part for part in (one.strip() for one in options.get("log.dir", "").split(",")) if part)
    bootstrap = options.get("kafka.bootstrap.servers", "").strip() or None
    bucket = options.get("mpbroker.bucket", "").strip() or None
    _check_places(read_mode, log_dirs, bootstrap, bucket)
    starting, ending = _limits(options, strategy, streaming=streaming)
    if not streaming:
        options = {key: value for key, value in options.items() if key not in _OF_STREAMS}
    delay = options.get("maxtriggerdelay")
    found = ReadOptions(
        strategy=strategy,
        starting=starting,
        ending=ending,
        latest_if_no_later_record=_choice(options, _BY_TIMESTAMP, "error", "latest") == "latest",
        fail_on_data_loss=_boolean(options, "failondataloss", default=True),
        min_partitions=_positive(options, "minpartitions"),
        max_records_per_partition=_positive(options, "maxrecordsperpartition"),
        max_bytes_per_task=_positive(options, "maxbytespertask") or MAX_BYTES_PER_TASK,
        read_mode=read_mode,
        check_crcs=_boolean(options, "check.crcs", "kafka.check.crcs", default=True),
        read_committed=isolation == "read_committed",
        filter_pushdown=_boolean(options, "filterpushdown", default=False),
        log_dirs=log_dirs,
        bucket=bucket,
        bootstrap_servers=bootstrap,
        request_timeout_ms=_positive(options, "kafkaconsumer.polltimeoutms") or 120_000,
        retries=_natural(options, "fetchoffset.numretries", 3),
        retry_interval_ms=_natural(options, "fetchoffset.retryintervalms", 1000),
        fetch_bytes=_positive(options, "kafka.max.partition.fetch.bytes") or FETCH_BYTES,
        client=values.client_settings(options),
        relay=options.get(values.RELAY, ""),
        max_offsets_per_trigger=_positive(options, "maxoffsetspertrigger"),
        min_offsets_per_trigger=_positive(options, "minoffsetspertrigger"),
        max_bytes_per_trigger=_positive(options, "maxbytespertrigger"),
        max_trigger_delay_ms=(
            MAX_TRIGGER_DELAY_MS if delay is None else values.duration_ms(delay, _shown("maxtriggerdelay"))
        ),
        commit_group_id=_commit_group(options, bootstrap),
    )
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    return found


def _commit_group(options: Mapping[str, str], bootstrap: str | None) -> str | None:
    group = options.get("commitgroupid")
    if group is None:
        return None
    if not group.strip():
        raise OptionError("commitGroupId is empty: name a consumer group, or leave the option out")
    if bootstrap is None:
        raise OptionError("commitGroupId needs 'kafka.bootstrap.servers': a broker keeps a group's offsets")
    return group.strip()


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def _shown(key: str) -> str:
    return _NAMES.get(key, key)


def _refuse(options: Mapping[str, str]) -> None:
    for key, text in _REFUSED.items():
        if key in options:
            raise OptionError(text)


def _warn(options: Mapping[str, str], *, streaming: bool) -> None:
    """Warn of ignored options, and of unknown options whose names resemble a known name."""
    if not streaming:
        for key in _OF_STREAMS:
            if key in options:
                warn_once(f"{_shown(key)} option ignored in batch queries")
    for key in _OF_GROUPS:
        if key in options:
            warn_once(
                f"option {_shown(key)} has no meaning here: no consumer group is used. A stream with the "
                "option commitGroupId commits its progress to a group of that name"
            )
    values.warn_of_unknown(options, _NAMES)


def _check_places(
    read_mode: str, log_dirs: tuple[str, ...], bootstrap: str | None, bucket: str | None
) -> None:
    if not log_dirs and bootstrap is None and bucket is None:
        raise OptionError(
            "Option 'log.dir' (the broker's log directory, to read its files), 'mpbroker.bucket' (its object "
            "store) or 'kafka.bootstrap.servers' (to fetch over the network) must be specified"
        )
    if read_mode == "local" and not log_dirs:
        raise OptionError("Option 'log.dir' must be specified with readMode local")
    if read_mode == "remote" and bootstrap is None:
        raise OptionError("Option 'kafka.bootstrap.servers' must be specified with readMode remote")


def _strategy(options: Mapping[str, str]) -> Strategy:
    given = [key for key in _STRATEGIES if key in options]
    if len(given) != 1:
        how = "One" if not given else "Only one"
        verb = "must" if not given else "can"
        raise OptionError(
            f"{how} of the following options {verb} be specified for Kafka source: "
            "subscribe, subscribePattern, assign. See mpbroker docs spark#all-options for more details."
        )
    value = options[given[0]]
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(name for name in (part.strip() for part in value.split(",")) if name))
        if not topics:
            raise OptionError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'"
            )
        return Subscribe(topics)
    if given[0] == "subscribepattern":
        return SubscribePattern(_pattern(value))
    none = OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{value}'")
    if not value.strip().startswith("{"):
        raise none
    assigned = values.partitions(value, "assign")
    if not assigned:
        raise none
    return Assign(assigned)


def _pattern(value: str) -> re.Pattern[str]:
    if not value.strip():
        raise OptionError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
        )
    try:
        return compile_java(value.strip())
    except UnsupportedPattern as error:
        raise OptionError(f"subscribePattern: {error}") from error


def _limits(options: Mapping[str, str], strategy: Strategy, *, streaming: bool) -> tuple[Limit, Limit]:
    """Return the limits at which reading starts and ends."""
    if streaming:
        for key, text in _OF_BATCH.items():
            if key in options:
                raise OptionError(f"{text} ({_shown(key)})")
        return _limit(options, "starting", LATEST, strategy), AtOffset(LATEST)
    starting = _limit(options, "starting", EARLIEST, strategy)
    ending = _limit(options, "ending", LATEST, strategy)
    _not_for_batches(starting, LATEST, "starting offset", "startingOffsets")
    _not_for_batches(ending, EARLIEST, "ending offset", "ending offset")
    _check_order(starting, ending)
    return starting, ending


def _limit(options: Mapping[str, str], side: str, default: int, strategy: Strategy) -> Limit:
    """Return the limit in `<side>timestamp`, else `<side>offsetsbytimestamp`, else `<side>offsets`."""
    one, many, offsets = f"{side}timestamp", f"{side}offsetsbytimestamp", f"{side}offsets"
    if one in options:
        return AtTimestamp(values.timestamp_ms(options[one], _shown(one)))
    if many in options:
        times = values.timestamps_ms(options[many], _shown(many))
        _check_assigned(times, _shown(many), strategy)
        return AtTimestamps(times)
    text = options.get(offsets, "").strip()
    if not text:
        return AtOffset(default)
    if text.lower() in ("earliest", "latest"):
        return AtOffset(EARLIEST if text.lower() == "earliest" else LATEST)
    found = values.offsets(text, _shown(offsets), EARLIEST)
    _check_assigned(found, _shown(offsets), strategy)
    return AtOffsets(found)


def _not_for_batches(limit: Limit, refused: int, for_all: str, for_one: str) -> None:
    """Raise OptionError if the limit is or contains `refused`: LATEST for a start, EARLIEST for an end."""
    word = "latest" if refused == LATEST else "earliest"
    if limit == AtOffset(refused):
        raise OptionError(f"{for_all} can't be {word} for batch queries on Kafka")
    if isinstance(limit, AtOffsets):
        for (topic, number), offset in limit.offsets.items():
            if offset == refused:
                raise OptionError(
                    f"{for_one} for {topic}-{number} can't be {word} for batch queries on Kafka"
                )


def _check_order(starting: Limit, ending: Limit) -> None:
    """Raise OptionError if limits of the same kind name different partitions or a start is after its end."""
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        first, last, what = starting.offsets, ending.offsets, "offset"
    elif isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        first, last, what = starting.timestamps_ms, ending.timestamps_ms, "timestamp"
    else:
        return
    if set(first) != set(last):
        raise OptionError(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Topic-partitions for start offset: {values.listed(first)}, "
            f"topic-partitions for end offset: {values.listed(last)}."
        )
    for (topic, number), start in first.items():
        end = last[topic, number]
        if start > end >= 0:
            raise OptionError(
                f"The specified start {what} {start} is greater than the end {what} {end} for topic {topic} "
                f"partition {number}."
            )


def _check_assigned(found: Mapping[TopicPartition, int], option: str, strategy: Strategy) -> None:
    if isinstance(strategy, Assign):
        check_names_all(found, option, strategy.partitions)


def check_names_all(
    found: Mapping[TopicPartition, int], option: str, assigned: Iterable[TopicPartition]
) -> None:
    """Raise OptionError unless `found`, the option's value, names exactly the assigned partitions."""
    if set(found) == set(assigned):
        return
    advice = "" if "Timestamp" in option else "Use -1 for latest, -2 for earliest. "
    raise OptionError(
        f"If {option} contains specific offsets, you must specify all TopicPartitions. {advice}"
        f"Specified: {values.listed(found)} Assigned: {values.listed(set(assigned))}"
    )


def _choice(options: Mapping[str, str], key: str, default: str, *others: str) -> str:
    value = options.get(key, default).strip().lower()
    if value not in (default, *others):
        names = ", ".join((default, *others[:-1]))
        raise OptionError(f"{_shown(key)} is {names} or {others[-1]}, not '{value}'")
    return value


def _natural(options: Mapping[str, str], key: str, default: int) -> int:
    text = options.get(key)
    return default if text is None else values.natural(text, _shown(key))


def _positive(options: Mapping[str, str], key: str) -> int | None:
    text = options.get(key)
    return None if text is None else values.positive(text, _shown(key))


def _boolean(options: Mapping[str, str], *keys: str, default: bool) -> bool:
    for key in keys:
        if key in options:
            return values.boolean(options[key], _shown(key))
    return default
