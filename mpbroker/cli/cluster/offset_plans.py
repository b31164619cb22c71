"""Offsets in files of kafka-consumer-groups.sh (`--from-file`, `--export`), without I/O.

A file is CSV without headings: topic,partition,offset for one group, or group,topic,partition,offset for
several. (Kafka: ConsumerGroupCommand.parseResetPlan and exportOffsetsToCsv, CsvUtils)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.config.integers import INT_MAX, LONG_MAX, parse_decimal
from mpbroker.protocol.topic_names import TopicPartition

GroupOffsets: TypeAlias = Mapping[str, Mapping[TopicPartition, int]]
"""Offsets by group and partition."""

_OF_ONE, _OF_SEVERAL = 3, 4


def parse(text: str, file: str, groups: Sequence[str]) -> GroupOffsets:
    """Parse the text of an offsets file. `groups`: the groups of the command, [] for all. Raises CliError."""
    plan: dict[str, dict[TopicPartition, int]] = {}
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for fields in lines:
            if not fields:
                continue
            where = f"{file}, line {lines.line_num}"
            group, place, offset = _entry(fields, where, groups)
            offsets = plan.setdefault(group, {})
            if offsets.setdefault(place, offset) != offset:
                raise CliError(
                    f"{where}: {place[0]}-{place[1]} of group {group} has offset {offsets[place]} in a line "
                    "above: leave one of the two out",
                    USAGE_ERROR,
                )
    except csv.Error as error:
        raise CliError(f"{file}, line {lines.line_num}: {error}", USAGE_ERROR) from error
    if not plan:
        raise CliError(f"{file}: it has no offsets", USAGE_ERROR)
    return plan


def _entry(fields: list[str], where: str, groups: Sequence[str]) -> tuple[str, TopicPartition, int]:
    """Return the group, partition and offset of a line. Raises CliError."""
    topic, partition, offset = (one.strip() for one in fields[-_OF_ONE:]) if len(fields) >= _OF_ONE else "???"
    if (
        len(fields) not in (_OF_ONE, _OF_SEVERAL)
        or not topic
        or not _is_up_to(partition, INT_MAX)
        or not _is_up_to(offset, LONG_MAX)
    ):
        raise CliError(
            f"{where}: {','.join(fields)!r} is not topic,partition,offset or group,topic,partition,offset",
            USAGE_ERROR,
        )
    if len(fields) == _OF_SEVERAL:
        return fields[0], (topic, int(partition)), int(offset)
    if len(groups) != 1:
        raise CliError(
            f"{where}: topic,partition,offset does not say of which group: name one, or write "
            "group,topic,partition,offset",
            USAGE_ERROR,
        )
    return groups[0], (topic, int(partition)), int(offset)


def _is_up_to(text: str, most: int) -> bool:
    number = parse_decimal(text)
    return text.isascii() and number is not None and number <= most


def text_of(rows: Iterable[tuple[str, str, int, int]], *, with_groups: bool) -> str:
    """Return rows (group, topic, partition, offset) as CSV text, without the group unless `with_groups`."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(row if with_groups else row[1:] for row in rows)
    return made.getvalue()
