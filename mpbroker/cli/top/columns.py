"""The views of `mpbroker top`: their columns, named as in the rows of the JSON, and the order of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from mpbroker.observe.model import Model, Row


class Kind(Enum):
    """The kinds of values. The module `text` formats a value by its kind."""

    TEXT = "text"
    STATE = "state"
    NUMBER = "number"
    RATE = "rate"
    BYTES = "bytes"
    BYTE_RATE = "bytes a second"
    MS = "milliseconds"
    PERCENT = "percent"
    BAR = "percent, drawn"
    TREND = "values over time"


class Column(NamedTuple):
    """A column for terminals at least `from_columns` wide. `is_wide`: it takes the remaining width."""

    key: str
    title: str
    kind: Kind
    from_columns: int = 0
    is_wide: bool = False


class View(NamedTuple):
    """A view: its name for `--view`, title, rows and columns, and the column that sorts it at first."""

    key: str
    title: str
    rows: Callable[[Model], Iterable[Row]]
    columns: tuple[Column, ...]
    sorted_by: str | None = None


PROCESSES: Final = View(
    "processes",
    "Processes",
    Model.process_rows,
    (
        Column("name", "PROCESS", Kind.TEXT, is_wide=True),
        Column("pid", "PID", Kind.NUMBER),
        Column("cpu_percent", "CPU %", Kind.PERCENT),
        Column("cpu_bar", "", Kind.BAR, 80),
        Column("pss_bytes", "PSS", Kind.BYTES),
        Column("requests_per_s", "REQ/S", Kind.RATE, 104),
        Column("turns_per_s", "TURNS/S", Kind.RATE, 116),
        Column("heartbeat_age_ms", "BEAT ms", Kind.MS, 92),
        Column("restarts", "RESTARTS", Kind.NUMBER),
        Column("state", "STATE", Kind.STATE),
    ),
)
REQUESTS: Final = View(
    "requests",
    "Requests",
    Model.request_rows,
    (
        Column("api", "API", Kind.TEXT, is_wide=True),
        Column("requests_per_s", "REQ/S", Kind.RATE),
        Column("bytes_per_s", "IN", Kind.BYTE_RATE, 72),
        Column("errors_per_s", "ERR/S", Kind.RATE),
        Column("p50_ms", "p50 ms", Kind.MS),
        Column("p95_ms", "p95 ms", Kind.MS, 88),
        Column("p99_ms", "p99 ms", Kind.MS),
        Column("queue_p99_ms", "QUEUE", Kind.MS, 100),
        Column("local_p99_ms", "LOCAL", Kind.MS, 100),
        Column("remote_p99_ms", "REMOTE", Kind.MS, 110),
        Column("send_p99_ms", "SEND", Kind.MS, 110),
        Column("total", "TOTAL", Kind.NUMBER),
    ),
    "requests_per_s",
)
MEMORY: Final = View(
    "memory",
    "Rings & arenas",
    Model.memory_rows,
    (
        Column("name", "PROCESS", Kind.TEXT, is_wide=True),
        Column("arena_bytes", "ARENA", Kind.BYTES),
        Column("arena_limit_bytes", "LIMIT", Kind.BYTES, 108),
        Column("arena_percent", "", Kind.BAR, 96),
        Column("queued", "QUEUED", Kind.NUMBER),
        Column("answers", "ANSWERS", Kind.NUMBER),
        Column("waiting", "WAITING", Kind.NUMBER),
        Column("ring_full", "RING FULL", Kind.NUMBER),
        Column("memory_full", "MEM FULL", Kind.NUMBER),
        Column("fences", "FENCES", Kind.NUMBER, 116),
    ),
)
PARTITIONS: Final = View(
    "partitions",
    "Partitions",
    Model.partition_rows,
    (
        Column("topic", "TOPIC", Kind.TEXT, is_wide=True),
        Column("partition", "PART", Kind.NUMBER),
        Column("records_per_s", "RECORDS/S", Kind.RATE),
        Column("bytes_per_s", "IN", Kind.BYTE_RATE, 72),
        Column("trend", "TREND", Kind.TREND, 96),
        Column("size_bytes", "SIZE", Kind.BYTES),
        Column("segments", "SEG", Kind.NUMBER, 72),
        Column("log_start_offset", "START", Kind.NUMBER),
        Column("log_end_offset", "END", Kind.NUMBER),
    ),
    "records_per_s",
)
GROUPS: Final = View(
    "groups",
    "Groups",
    Model.group_rows,
    (
        Column("group", "GROUP", Kind.TEXT, is_wide=True),
        Column("type", "TYPE", Kind.TEXT, 80),
        Column("state", "STATE", Kind.STATE),
        Column("members", "MEMBERS", Kind.NUMBER),
        Column("partitions", "PARTS", Kind.NUMBER),
        Column("uncommitted", "NO COMMIT", Kind.NUMBER, 88),
        Column("lag", "LAG", Kind.NUMBER),
        Column("trend", "TREND", Kind.TREND, 72),
        Column("committed_per_s", "READ/S", Kind.RATE),
        Column("topics", "TOPICS", Kind.TEXT, 100),
    ),
    "lag",
)
VIEWS: Final = (PROCESSES, REQUESTS, MEMORY, PARTITIONS, GROUPS)
# Only drawn, not in reports: the same values are in other columns, or are of the past.
DRAWN: Final = (Kind.TREND,)


def arranged(
    rows: Iterable[Row], view: View, wanted: str, key: str | None, *, is_reversed: bool
) -> list[Row]:
    """Return the rows that match `wanted`, sorted by the column `key`; None keeps the order of `rows`.

    `wanted` is a part of a text in the row, or a pattern with * and ?. Numbers begin with the largest, texts
    and offsets with the smallest, unless `is_reversed`. Unknown values come last in either direction.
    """
    kinds = {column.key: column.kind for column in view.columns}
    texts = [name for name, kind in kinds.items() if kind in (Kind.TEXT, Kind.STATE)]
    found = [row for row in rows if _has(wanted, [row[name] for name in texts])]
    if key is None:
        return found
    known = [row for row in found if row[key] is not None]
    is_descending = kinds[key] not in (Kind.TEXT, Kind.STATE) and not key.endswith("_offset")
    known.sort(key=lambda row: row[key], reverse=is_descending != is_reversed)
    return known + [row for row in found if row[key] is None]


def _has(wanted: str, texts: Sequence[str | None]) -> bool:
    wanted = wanted.lower()
    if not wanted:
        return True
    given = [text.lower() for text in texts if text]
    if any(one in wanted for one in "*?["):
        return any(fnmatchcase(text, wanted) for text in given)
    return any(wanted in text for text in given)
