"""Metrics of log directories and of the logs in them (Kafka: LogManager.scala, UnifiedLog.scala)."""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker.metrics.broker import OURS
from mpbroker.metrics.families import Bean, View, family, value

MANAGER = "kafka.log:type=LogManager,name="
LOGS = "kafka.log:type=Log,name="
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "*": "\\*", "?": "\\?", "\n": "\\n"})


def quoted(name: str) -> str:
    """Return a quoted path for a bean's name, as javax.management.ObjectName.quote does."""
    return f'"{name.translate(_QUOTED)}"'


@family(
    MANAGER + "OfflineLogDirectoryCount", "gauge", "Log directories that failed since the broker's start."
)
def offline_count(view: View) -> Iterator[Bean]:
    failed = sum(seen.failed for seen in view.now.log_dirs.values())
    yield value(f"{MANAGER}OfflineLogDirectoryCount", failed)


@family(MANAGER + "LogDirectoryOffline,logDirectory=<log directory>", "gauge", "1 if it failed.")
def offline(view: View) -> Iterator[Bean]:
    for _, seen in sorted(view.now.log_dirs.items()):
        name = f"{MANAGER}LogDirectoryOffline,logDirectory={quoted(seen.name)}"
        yield value(name, int(seen.failed))


@family(
    OURS + "LogDir,name=<log directory>",
    "gauge",
    "As in DescribeLogDirs: partitions that can be used; bytes of their segments, without indexes and "
    "deleted files; all bytes of the file system, and the usable rest. Bytes are as of the last half minute, "
    "and missing before the first measurement.",
    ("partitions", "size-bytes", "total-bytes", "usable-bytes"),
)
def sizes(view: View) -> Iterator[Bean]:
    for number, seen in sorted(view.now.log_dirs.items()):
        attributes = {
            "partitions": view.now.partitions.live.get(number, 0),
            "size-bytes": seen.size_bytes,
            "total-bytes": seen.total_bytes,
            "usable-bytes": seen.usable_bytes,
        }
        known: dict[str, float] = {name: count for name, count in attributes.items() if count is not None}
        yield Bean(f"{OURS}LogDir,name={quoted(seen.name)}", known)


@family(
    LOGS + "<Size|NumLogSegments|LogStartOffset|LogEndOffset>,topic=<topic>,partition=<partition>",
    "gauge",
    "Of one partition. Size and NumLogSegments are as of the last half minute, and missing before the first "
    "measurement; offsets are current.",
)
def logs(view: View) -> Iterator[Bean]:
    usable = (one for one in view.now.logs if one.usable)
    for seen in sorted(usable, key=lambda one: (one.topic, one.partition)):
        where = f",topic={seen.topic},partition={seen.partition}"
        if seen.sizes is not None:
            yield value(f"{LOGS}NumLogSegments{where}", seen.sizes[0])
            yield value(f"{LOGS}Size{where}", seen.sizes[1])
        yield value(f"{LOGS}LogStartOffset{where}", seen.log_start)
        yield value(f"{LOGS}LogEndOffset{where}", seen.log_end)
