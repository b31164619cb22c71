"""The options of the source, checked; names, defaults and errors are those of Spark's Kafka source.

(Spark: KafkaSourceProvider, JsonUtils.) Our own: log.dir, readMode, columns, maxBytesPerTask, check.crcs.
Spark hands options over with lower-cased keys.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mpbroker.client.config import from_properties
from mpbroker.client.errors import ConfigError
from mpbroker.protocol.numbers import EARLIEST, LATEST
from spark_integration.errors import OptionError

MAX_BYTES_PER_TASK: Final = 128 << 20
# Of difflib: a letter or two are wrong.
ALIKE: Final = 0.8

TopicPartition = tuple[str, int]

_LOG = logging.getLogger("mpbroker.spark")
_WELL_SPELT = (
    "assign",
    "check.crcs",
    "columns",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafka.bootstrap.servers",
    "kafkaconsumer.polltimeoutms",
    "log.dir",
    "subscribe",
)
_STRATEGIES = ("subscribe", "subscribepattern", "assign")
_NAMES = {
    name.lower(): name
    for name in (
        "subscribePattern",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "minPartitions",
        "maxRecordsPerPartition",
        "maxBytesPerTask",
        "includeHeaders",
        "readMode",
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
    "kafka.enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported.",
    "kafka.interceptor.classes": (
        "Kafka option 'interceptor.classes' is not supported "
        "as source always read keys and values as byte arrays."
    ),
}
_IGNORED_IN_BATCH = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
_WITHOUT_MEANING = ("kafka.group.id", "groupidprefix")
_WANT_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '
_WANT_PARTITIONS = 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got '


@dataclass(frozen=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches."""

    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Assign:
    """These partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class AtOffset:
    """EARLIEST or LATEST, for every partition."""

    offset: int


@dataclass(frozen=True)
class AtOffsets:
    """An offset, EARLIEST or LATEST for each partition."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamp:
    """The first record of this time or later, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True)
class AtTimestamps:
    """The first record of each partition's time or later."""

    timestamps_ms: Mapping[TopicPartition, int]


Strategy = Subscribe | SubscribePattern | Assign
Limit = AtOffset | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True)
class ReadOptions:
    """A batch query, as the user asked for it."""

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
    log_dirs: tuple[str, ...] = ()
    bootstrap_servers: str | None = None
    request_timeout_ms: int = 120_000
    retries: int = 3
    retry_interval_ms: int = 1000
    # Of the network client, by their Kafka names; passwords are among them.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)


def includes_headers(options: Mapping[str, str]) -> bool:
    return _boolean(_lowered(options), "includeheaders", default=False)


def chosen_columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names in the option `columns`, None without it; whether they exist is the schema's business."""
    text = _lowered(options).get("columns")
    if text is None:
        return None
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names:
        raise OptionError(f"No columns as specified value for option 'columns' is '{text}'")
    return names


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises OptionError."""
    options = _lowered(given)
    _refuse(options)
    _warn_of_misspelt(options)
    strategy = _strategy(options)
    read_mode = options.get("readmode", "auto").strip().lower()
    log_dirs = tuple(part for part in (one.strip() for one in options.get("log.dir", "").split(",")) if part)
    bootstrap = options.get("kafka.bootstrap.servers", "").strip() or None
    _check_places(read_mode, log_dirs, bootstrap)
    return ReadOptions(
        strategy=strategy,
        starting=_limit(options, "starting", EARLIEST, strategy),
        ending=_limit(options, "ending", LATEST, strategy),
        latest_if_no_later_record=_timestamp_strategy(options),
        fail_on_data_loss=_boolean(options, "failondataloss", default=True),
        min_partitions=_positive(options, "minpartitions"),
        max_records_per_partition=_positive(options, "maxrecordsperpartition"),
        max_bytes_per_task=_positive(options, "maxbytespertask") or MAX_BYTES_PER_TASK,
        read_mode=read_mode,
        check_crcs=_boolean(options, "check.crcs", "kafka.check.crcs", default=True),
        log_dirs=log_dirs,
        bootstrap_servers=bootstrap,
        request_timeout_ms=_positive(options, "kafkaconsumer.polltimeoutms") or 120_000,
        retries=_natural(options, "fetchoffset.numretries", 3),
        retry_interval_ms=_natural(options, "fetchoffset.retryintervalms", 1000),
        client=_of_the_client(options),
    )


def _of_the_client(options: Mapping[str, str]) -> dict[str, str]:
    """What begins with `kafka.` and is for the network client. Raises OptionError."""
    given = {
        key.removeprefix("kafka."): value
        for key, value in options.items()
        if key.startswith("kafka.") and key != "kafka.bootstrap.servers"
    }
    try:
        _, unknown = from_properties(given)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from error
    return {key: value for key, value in given.items() if key not in unknown}


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def _shown(key: str) -> str:
    return _NAMES.get(key, key)


def _refuse(options: Mapping[str, str]) -> None:
    for key, text in _REFUSED.items():
        if key in options:
            raise OptionError(text)
    isolation = options.get("kafka.isolation.level", "read_uncommitted").strip().lower()
    if isolation not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level is read_uncommitted or read_committed, not '{isolation}'")
    if isolation == "read_committed":
        raise OptionError("kafka.isolation.level: read_committed is not supported by format mpbroker")
    for key in _IGNORED_IN_BATCH:
        if key in options:
            _LOG.warning("option %s is ignored in batch queries", key)
    for key in _WITHOUT_MEANING:
        if key in options:
            _LOG.warning("option %s has no meaning here: no consumer group is used", key)


def _warn_of_misspelt(options: Mapping[str, str]) -> None:
    """What is ignored, as Spark's own source does, and looks like what was meant to be one of ours."""
    known = (*_NAMES, *_WELL_SPELT, *_IGNORED_IN_BATCH, *_WITHOUT_MEANING)
    ours = {key for key in options if not key.startswith("kafka.")} - set(known)
    for key in sorted(ours):
        for guess in difflib.get_close_matches(key, known, 1, ALIKE):
            _LOG.warning("option %s is not known and ignored; did you mean %s?", key, _shown(guess))


def _check_places(read_mode: str, log_dirs: tuple[str, ...], bootstrap: str | None) -> None:
    if read_mode not in ("auto", "local", "remote"):
        raise OptionError(f"readMode is auto, local or remote, not '{read_mode}'")
    if not log_dirs and bootstrap is None:
        raise OptionError(
            "Option 'log.dir' (the broker's log directory, to read its files) or 'kafka.bootstrap.servers' "
            "(to fetch over the network) must be specified"
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
            "subscribe, subscribePattern, assign. See docs/SPARK.md for more details."
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
    return Assign(_assigned(value))


def _pattern(value: str) -> re.Pattern[str]:
    if not value.strip():
        raise OptionError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
        )
    try:
        return re.compile(value.strip())
    except re.error as error:
        raise OptionError(f"subscribePattern: '{value}' is not a regular expression: {error}") from error


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    if not value.strip().startswith("{"):
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{value}'")
    wrong = OptionError(f"assign: {_WANT_PARTITIONS}{value}")
    found = []
    for topic, partitions in _json_object(value, wrong).items():
        if not isinstance(partitions, list) or not all(_is_partition(number) for number in partitions):
            raise wrong
        found += [(topic, number) for number in partitions]
    if not found:
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{value}'")
    return tuple(dict.fromkeys(found))


def _limit(options: Mapping[str, str], side: str, default: int, strategy: Strategy) -> Limit:
    """A timestamp for all goes before timestamps, these go before offsets."""
    one, many, offsets = f"{side}timestamp", f"{side}offsetsbytimestamp", f"{side}offsets"
    if one in options:
        return AtTimestamp(_timestamp(options[one], _shown(one)))
    if many in options:
        return AtTimestamps(_per_partition(options[many], _shown(many), lowest=0, strategy=strategy))
    text = options.get(offsets, "").strip()
    if not text:
        return AtOffset(default)
    if text.lower() in ("earliest", "latest"):
        offset = EARLIEST if text.lower() == "earliest" else LATEST
        if offset != default:
            raise OptionError(
                f"{side} offset can't be {text.lower()} for batch queries on Kafka ({_shown(offsets)})"
            )
        return AtOffset(offset)
    found = _per_partition(text, _shown(offsets), lowest=EARLIEST, strategy=strategy)
    for (topic, number), offset in found.items():
        if offset < 0 and offset != default:
            word = "latest" if offset == LATEST else "earliest"
            raise OptionError(
                f"{_shown(offsets)} for {topic}-{number} can't be {word} for batch queries on Kafka"
            )
    return AtOffsets(found)


def _per_partition(text: str, option: str, *, lowest: int, strategy: Strategy) -> dict[TopicPartition, int]:
    wrong = OptionError(f"{option}: {_WANT_OFFSETS}{text}")
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _json_object(text, wrong).items():
        if not isinstance(partitions, dict):
            raise wrong
        for number, value in partitions.items():
            if (
                not number.isdecimal()
                or isinstance(value, bool)
                or not isinstance(value, int)
                or value < lowest
            ):
                raise wrong
            found[topic, int(number)] = value
    if isinstance(strategy, Assign) and set(found) != set(strategy.partitions):
        raise OptionError(must_name_all(option, set(found), set(strategy.partitions)))
    return found


def must_name_all(option: str, specified: set[TopicPartition], assigned: set[TopicPartition]) -> str:
    """Kafka's complaint about JSON that does not name exactly the partitions that are read."""

    def listed(partitions: set[TopicPartition]) -> str:
        return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions)) or "none"

    return (
        f"If {option} contains specific offsets, you must specify all TopicPartitions. "
        f"Use -1 for latest, -2 for earliest. Specified: {listed(specified)} Assigned: {listed(assigned)}"
    )


def _timestamp_strategy(options: Mapping[str, str]) -> bool:
    value = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if value not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is error or latest, not '{value}'")
    return value == "latest"


def _json_object(text: str, wrong: OptionError) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(value, dict):
        raise wrong
    return value


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _timestamp(text: str, option: str) -> int:
    if not text.strip().isdecimal():
        raise OptionError(f"{option} is a time in milliseconds since 1970, not '{text}'")
    return int(text)


def _natural(options: Mapping[str, str], key: str, default: int) -> int:
    text = options.get(key, str(default)).strip()
    if not text.isdecimal():
        raise OptionError(f"{_shown(key)} must be a number of 0 or more, not '{text}'")
    return int(text)


def _positive(options: Mapping[str, str], key: str) -> int | None:
    text = options.get(key)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise OptionError(f"{_shown(key)} must be positive, not '{text}'")
    return int(text)


def _boolean(options: Mapping[str, str], *keys: str, default: bool) -> bool:
    for key in keys:
        text = options.get(key)
        if text is not None:
            if text.strip().lower() not in ("true", "false"):
                raise OptionError(f"{_shown(key)} is true or false, not '{text}'")
            return text.strip().lower() == "true"
    return default
