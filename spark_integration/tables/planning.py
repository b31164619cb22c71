"""Decides what the next commit of a table reads and removes. Knows nothing of Spark and of Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps

from mpbroker.protocol.uuids import uuid_text
from mpbroker.reading.plan import Lineage, PartitionBounds
from spark_integration.tables.spans import Covered, Span, TopicIdPartition


@dataclass
class Step:
    """The plan of one commit.

    `topic_id`: the present topic's. `cut`: rows to remove, since the log no longer has them. `lost`: offsets
    that the log had removed before the table had them. `ahead`: partitions that end before the table does.
    `is_whole`: nothing is left after it.
    """

    topic_id: str | None = None
    spans: list[Span] = field(default_factory=list)
    cut: dict[TopicIdPartition, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    is_whole: bool = True

    def edges(self, topic: str) -> dict[str, str]:
        """Return the options of the source that read exactly these offsets."""
        starts = {str(span.partition): span.start for span in self.spans}
        ends = {str(span.partition): span.end for span in self.spans}
        return {
            "assign": dumps({topic: [span.partition for span in self.spans]}),
            "startingOffsets": dumps({topic: starts}),
            "endingOffsets": dumps({topic: ends}),
        }


def plan_step(
    before: Covered,
    bounds: Mapping[int, PartitionBounds],
    lineages: Mapping[int, Lineage],
    most_offsets: int,
) -> Step:
    """Plan the next step of a table that has `before`, of a topic with these partitions.

    `lineages` were asked for before `bounds`: a restore in between is noticed by the next step.
    """
    step, ends = Step(), before.ends()
    for number, (log_start, end, raw_id) in sorted(bounds.items()):
        step.topic_id = id_text(raw_id)
        log = (step.topic_id, number)
        last, lineage = ends.get(log), lineages[number]
        start = log_start if last is None else last.end
        if last is not None and 0 <= lineage.end < last.end:
            step.cut[log] = start = lineage.end
        name = f"{before.topic}-{number}"
        if start < log_start:
            step.lost.append(f"{name} offsets [{start}, {log_start})")
            start = log_start
        if start > end:
            step.ahead.append(f"{name} may be read up to offset {end}, and the table has it up to {start}")
        elif end > start:
            step.spans.append(Span(*log, start, end, lineage.epoch))
    there, step.spans = step.spans, limited(step.spans, most_offsets)
    step.is_whole = step.spans == there
    return step


def limited(spans: list[Span], most: int) -> list[Span]:
    """Return the first `most` offsets or so of spans, of each in proportion."""
    total = sum(span.end - span.start for span in spans)
    return spans if total <= most else [_first(span, most, total) for span in spans]


def epochs_of(before: Covered, topic_id: bytes | None) -> dict[int, int]:
    """Return the leader epoch in which each partition of a topic was read last."""
    wanted = id_text(topic_id)
    return {number: span.epoch for (known, number), span in before.ends().items() if known == wanted}


def id_text(topic_id: bytes | None) -> str | None:
    return None if topic_id is None else uuid_text(topic_id)


def _first(span: Span, most: int, total: int) -> Span:
    size = max(1, (span.end - span.start) * most // total)
    return Span(*span.key, span.start, span.start + size, span.epoch)
