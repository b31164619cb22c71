"""Parses texts of options: numbers, durations, JSON by partition. Error texts are those of Spark's source.

(Spark: JsonUtils, JavaUtils.timeStringAs.) The parsing functions raise OptionError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from mpbroker.client.config import from_properties
from mpbroker.client.errors import ClientConfigError
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.reading.errors import OptionError

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
    return _by_partition(text, OptionError(f"{option}: {_WANT_OFFSETS}{text}"), lowest)


def timestamps_ms(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":1735689600000}}`, milliseconds since 1970."""
    return _by_partition(text, OptionError(f"{option}: {_WANT_TIMES}{text}"), 0)


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the network client, which begin with `kafka.`, without that prefix."""
    given = {
        key.removeprefix("kafka."): value
        for key, value in options.items()
        if key.startswith("kafka.") and key != "kafka.bootstrap.servers"
    }
    if RELAY in options:
        return given
    try:
        _, unknown = from_properties(given)
    except ClientConfigError as error:
        raise OptionError(f"kafka.{error}") from error
    return {key: value for key, value in given.items() if key not in unknown}


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
