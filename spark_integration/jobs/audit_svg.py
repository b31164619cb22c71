"""Draws an audit: records over time by topic, and each partition's offsets with the missing ones marked.

The output is plain SVG of rectangles and text; the same audit gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape

from spark_integration.jobs.audit import Audit, Gap, PartitionAudit

WIDTH: Final = 1000
# Left edge of the strips and the bars; names stand left of them, numbers right.
LEFT: Final = 180
PLOT: Final = 500
# Right edges of the columns of numbers.
NUMBERS: Final = (780, 850, 910, 980)
BARS_HEIGHT: Final = 120
STRIP: Final = 14
ROW: Final = 24
DRAWN: Final = 60
COLOURS: Final = ("#3b76af", "#d98032", "#4f9a4f", "#8a63b8", "#8c5a4b", "#c86fae", "#7f7f7f", "#2fa8b5")
RED: Final = "#c8322b"
GREY: Final = "#d0d0d0"
INK: Final = "#222222"
FAINT: Final = "#777777"


def draw(audit: Audit) -> str:
    """Return the picture as an SVG document."""
    parts = [*_heading(audit)]
    y = 96
    topics = sorted(audit.throughput)
    if topics:
        parts += _bars(audit, topics, y)
        y += BARS_HEIGHT + 72
    parts += _strips(audit, y)
    y += 28 + ROW * min(len(audit.partitions), DRAWN)
    if len(audit.partitions) > DRAWN:
        parts.append(_text(LEFT, y, f"and {len(audit.partitions) - DRAWN} more partitions", fill=FAINT))
    y += 20
    parts += _legend(y)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 30}" '
        f'viewBox="0 0 {WIDTH} {y + 30}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{y + 30}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _heading(audit: Audit) -> Iterator[str]:
    verdict = "nothing is missing, twice or damaged" if audit.is_whole else "not whole"
    records = sum(one.records for one in audit.partitions)
    size = sum(one.bytes for one in audit.partitions)
    yield _text(24, 34, f"Audit: {verdict}", size=18, fill=INK if audit.is_whole else RED)
    found = (
        f"{len(audit.partitions)} partitions, {records:,} records, {size / 1e6:,.1f} MB; "
        f"missing offsets: {sum(one.missing for one in audit.partitions):,}, "
        f"batches that are there twice: {sum(one.duplicates for one in audit.partitions):,}, "
        f"damaged places: {sum(one.faults for one in audit.partitions):,}"
    )
    yield _text(24, 56, found, fill=FAINT)


def _bars(audit: Audit, topics: Sequence[str], top: int) -> Iterator[str]:
    """Draw the records of each interval of time as a bar, topics stacked."""
    buckets = len(audit.throughput[topics[0]])
    sums = [sum(audit.throughput[topic][number] for topic in topics) for number in range(buckets)]
    highest = max(max(sums), 1)
    yield _text(LEFT, top, "Records over time", weight="bold")
    top += 12
    bottom = top + BARS_HEIGHT
    width = PLOT / buckets
    yield _text(LEFT - 8, top + 10, f"{highest:,}", anchor="end", fill=FAINT)
    yield _text(LEFT - 8, bottom, "0", anchor="end", fill=FAINT)
    for number in range(buckets):
        below = float(bottom)
        for topic, colour in zip(topics, _colours(len(topics)), strict=True):
            height = audit.throughput[topic][number] * BARS_HEIGHT / highest
            below -= height
            if height:
                yield _box(LEFT + number * width, below, max(width - 0.6, 0.6), height, colour)
    yield _box(LEFT, bottom, PLOT, 1, INK)
    yield _text(LEFT, bottom + 16, _time(audit.begins_ms), fill=FAINT)
    end = audit.begins_ms + buckets * audit.bucket_ms
    yield _text(LEFT + PLOT, bottom + 16, _time(end), anchor="end", fill=FAINT)
    yield _text(LEFT + PLOT / 2, bottom + 16, f"a bar: {_span(audit.bucket_ms)}", anchor="middle", fill=FAINT)
    for row, (topic, colour) in enumerate(zip(topics, _colours(len(topics)), strict=True)):
        if row < BARS_HEIGHT // 18:
            yield _box(LEFT + PLOT + 20, top + row * 18, 10, 10, colour)
            yield _text(LEFT + PLOT + 36, top + 9 + row * 18, _short(topic, 26))


def _strips(audit: Audit, top: int) -> Iterator[str]:
    yield _text(LEFT, top + 10, "Partitions, by offset", weight="bold")
    for x, name in zip(NUMBERS, ("records", "missing", "twice", "damaged"), strict=True):
        yield _text(x, top + 10, name, anchor="end", fill=FAINT)
    for row, one in enumerate(audit.partitions[:DRAWN]):
        y = top + 24 + row * ROW
        gaps = [gap for gap in audit.gaps if (gap.topic, gap.partition) == (one.topic, one.partition)]
        yield from _strip(one, gaps, y)


def _strip(one: PartitionAudit, gaps: Sequence[Gap], y: int) -> Iterator[str]:
    length = one.end - one.log_start
    yield _text(LEFT - 8, y + 11, _short(f"{one.topic}-{one.partition}", 23), anchor="end")
    yield _box(LEFT, y, PLOT, STRIP, COLOURS[0] if length else "#f2f2f2")
    for gap in gaps:
        x = (gap.start - one.log_start) * PLOT / length
        # Even a hole of one record among millions must be visible.
        width = max((gap.end - gap.start) * PLOT / length, 2)
        yield _box(LEFT + min(x, PLOT - width), y, width, STRIP, RED if gap.kind == "hole" else GREY)
    numbers = (one.records, one.missing, one.duplicates, one.faults)
    for column, (x, number) in enumerate(zip(NUMBERS, numbers, strict=True)):
        yield _text(x, y + 11, f"{number:,}", anchor="end", fill=RED if column and number else INK)


def _legend(y: int) -> Iterator[str]:
    for x, colour, text in (
        (LEFT, COLOURS[0], "records and markers"),
        (LEFT + 170, GREY, "taken by compaction"),
        (LEFT + 340, RED, "missing"),
    ):
        yield _box(x, y, 10, 10, colour)
        yield _text(x + 16, y + 9, text, fill=FAINT)


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}" '
        f'fill="{fill}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    fill: str = INK,
    size: int = 12,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    for length, name in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length} {name}"
    return f"{milliseconds} ms"
