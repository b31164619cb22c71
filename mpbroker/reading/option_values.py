"""Parses texts of options: numbers, durations, JSON by partition. Errors read as in Spark's source.

(Spark: JsonUtils, JavaUtils.timeStringAs.) The parsing functions raise OptionError.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mpbroker.client.config import from_properties, known_names
from mpbroker.client.errors import ClientConfigError
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.reading.errors import OptionError, warn_once

# An unknown option that is at least so like a known one (difflib's ratio) is taken for a typo.
_ALIKE: Final = 0.8
_CLIENT: Final = "kafka."
# The JVM reader sets this option. (Java: Logins.)
RELAY: Final = "mpbroker.relay"

_DURATION: Final = re.compile(r"([0-9]+)\s*([a-z]+)?")
_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
# Settings of Kafka's consumers and producers that options stand for, or that change no result: how these
# clients fetch, send, and report.
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("acks", "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter"),
        *("batch.size", "buffer.memory", "check.crcs", "client.dns.lookup", "client.rack"),
        *("compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level"),
        *("default.api.timeout.ms", "enable.idempotence", "enable.metrics.push", "exclude.internal.topics"),
        *("fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id", "group.instance.id"),
        *("group.protocol", "heartbeat.interval.ms", "isolation.level", "linger.ms", "max.block.ms"),
        *("max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records", "max.request.size"),
        *("metadata.max.idle.ms", "metrics.num.samples", "metrics.recording.level"),
        *("metrics.sample.window.ms", "partition.assignment.strategy", "partitioner.ignore.keys"),
        *("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        *("partitioner.class", "retries", "session.timeout.ms", "transaction.timeout.ms"),
    )
)
_WANT_PARTITIONS: Final = 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got '
_WANT_OFFSETS: Final = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '
_WANT_TIMES: Final = (
    'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}, '
    "got "
)


def boolean(text: str, option: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{option} is true or false, not '{text}'")
    return text.strip().lower() == "true"


def natural(text: str, option: str) -> int:
    if not _is_decimal(text.strip()):
        raise OptionError(f"{option} must be a number of 0 or more, not '{text}'")
    return int(text)


def positive(text: str, option: str) -> int:
    if not _is_decimal(text.strip()) or int(text) == 0:
        raise OptionError(f"{option} must be positive, not '{text}'")
    return int(text)


def timestamp_ms(text: str, option: str) -> int:
    """Parse milliseconds since 1970."""
    if not _is_decimal(text.strip()):
        raise OptionError(
            f"{option}: Expected a single long value, got {text} "
            "(it is a time in milliseconds since 1970, 0 or later)"
        )
    return int(text)


def duration_ms(text: str, option: str) -> int:
    """Parse a duration in Spark's form, such as `90s` or `15m`; without a unit it is in milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_US:
        raise OptionError(
            f"{option} '{text}': Time must be specified as seconds (s), milliseconds (ms), "
            "microseconds (us), minutes (m or min), hour (h), or day (d). E.g. 50s, 100ms, or 250us."
        )
    return int(found[1]) * _UNITS_US[found[2] or "ms"] // 1000


def partitions(text: str, option: str) -> tuple[TopicPartition, ...]:
    """Parse `{"topic":[0,1]}`. A partition that is named twice is returned once."""
    wrong = OptionError(f"{option}: {_WANT_PARTITIONS}{text}")
    found = []
    for topic, numbers in _json_object(text, wrong).items():
        if not isinstance(numbers, list) or not all(_is_whole(number) and number >= 0 for number in numbers):
            raise wrong
        found += [(topic, number) for number in numbers]
    return tuple(dict.fromkeys(found))


def offsets(text: str, option: str, lowest: int) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":23,"1":-2}}`; no offset may be below `lowest`."""
    return _by_partition(
        text, OptionError(f"{option}: {_WANT_OFFSETS}{text}; as a word it is earliest or latest"), lowest
    )


def timestamps_ms(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":1735689600000}}`, milliseconds since 1970."""
    return _by_partition(text, OptionError(f"{option}: {_WANT_TIMES}{text}"), 0)


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the network client, which begin with `kafka.`, without that prefix.

    Warns of names that neither this client nor Kafka's clients know.
    """
    given = {
        key.removeprefix(_CLIENT): value
        for key, value in options.items()
        if key.startswith(_CLIENT) and key != "kafka.bootstrap.servers"
    }
    if RELAY in options:
        # Kafka's client checks them.
        return given
    try:
        _, unknown = from_properties(given)
    except ClientConfigError as error:
        raise OptionError(f"kafka.{error}") from error
    known = [f"{_CLIENT}{name}" for name in (*known_names(), *_WITHOUT_EFFECT)]
    _warn_of([f"{_CLIENT}{name}" for name in unknown], dict(zip(known, known, strict=True)), if_alike=False)
    return {key: value for key, value in given.items() if key not in unknown}


def warn_of_unknown(options: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Warn of options that resemble a known one; `known` has the names by their lower-cased form.

    Other unknown options may be Spark's. `client_settings` warns of the client's unknown options.
    """
    _warn_of((name for name in options if not name.startswith(_CLIENT)), known, if_alike=True)


def _warn_of(given: Iterable[str], known: Mapping[str, str], *, if_alike: bool) -> None:
    for name in sorted(set(given) - set(known)):
        alike = difflib.get_close_matches(name, known, 1, _ALIKE)
        if alike or not if_alike:
            hint = f"; did you mean {known[alike[0]]}?" if alike else ""
            warn_once(f"option {name} is not known and ignored{hint}")


def listed(found: Mapping[TopicPartition, int] | set[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(found)) or "none"


def _by_partition(text: str, wrong: OptionError, lowest: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(text, wrong).items():
        if not isinstance(numbers, dict):
            raise wrong
        for number, value in numbers.items():
            if not _is_decimal(number) or not _is_whole(value) or value < lowest:
                raise wrong
            found[topic, int(number)] = value
    return found


def _json_object(text: str, wrong: OptionError) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(value, dict):
        raise wrong
    return value


def _is_decimal(text: str) -> bool:
    """Return whether the text consists of ASCII digits. (Python's `isdecimal` accepts other scripts, too.)"""
    return text.isascii() and text.isdecimal()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
