"""Converts a page of metrics to OpenTelemetry metrics with the same names and labels.

Sums are cumulative from the broker's start. When a process is replaced, its counts restart at 0. A sum that
has decreased gets a later start time, as the data model demands (OpenTelemetry specification: Metrics Data
Model, Resets and Gaps).

Counters become monotonic sums, histograms remain histograms. OpenTelemetry's exporter has no summaries: their
quantiles become a gauge, and count and sum become sums. (OpenTelemetry specification: Prometheus and
OpenMetrics Compatibility)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from mpbroker.exporter.exposition import Page

Number: TypeAlias = int | float
_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}
"""Units by the last word of a name. Receivers that append units skip a name that ends with its unit."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# A process that is being replaced has no sums for a while.
_ROUNDS_KEPT: Final = 10
_ESCAPED: Final = re.compile(r"\\(.)")


class Starts:
    """Remembers the start time of each cumulative sum. All times are in ns since 1970."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._round = 0
        self._now_ns = self._before_ns = began_ns
        # By name and labels: the value, its start, and the round in which it was there last.
        self._seen: dict[tuple[str, ...], tuple[Number, int, int]] = {}

    def begin(self, now_ns: int) -> None:
        """Begin another export, at the time `now_ns`; forget sums that no recent export had."""
        self._round += 1
        self._before_ns, self._now_ns = self._now_ns, now_ns
        oldest = self._round - _ROUNDS_KEPT
        self._seen = {key: known for key, known in self._seen.items() if known[2] >= oldest}

    def of(self, name: str, labels: Mapping[str, str], value: Number) -> int:
        """Return a sum's start time. If the value has decreased, that is the time of the previous export."""
        key = (name, *labels.values())
        before, start_ns, _ = self._seen.get(key, (value, self._began_ns, 0))
        if value < before:
            start_ns = self._before_ns
        self._seen[key] = value, start_ns, self._round
        return start_ns


class Points:
    """Makes the data points of one export at the time `now_ns`. Times are in ns since 1970."""

    def __init__(self, began_ns: int, now_ns: int, starts: Starts) -> None:
        self._began_ns = began_ns
        self._now_ns = now_ns
        self._starts = starts
        starts.begin(now_ns)
        # Families with a sample per partition share the text of their labels.
        self._labels: dict[str, Mapping[str, str]] = {}

    def metrics(self, page: Page) -> list[Metric]:
        """Return all metrics of the page."""
        found = [metric for family in page.collect() for metric in self._of(family)]
        for one, samples in page.rendered():
            pairs = ((self._parsed(labels), value) for labels, value in samples)
            found.append(self._numbers(one.name, one.help, pairs, adds=one.type == "counter"))
        return found

    def _of(self, family: Family) -> Iterable[Metric]:
        if family.type == "histogram":
            return [self._histogram(family)]
        by_name: dict[str, list[Sample]] = {}
        for sample in family.samples:
            by_name.setdefault(sample.name, []).append(sample)
        return [
            self._numbers(
                name,
                family.documentation,
                ((one.labels, float(one.value)) for one in samples),
                # The quantiles of a summary have its name, count and sum a suffix.
                adds=family.type == "counter" or (family.type == "summary" and name != family.name),
            )
            for name, samples in by_name.items()
        ]

    def _numbers(
        self, name: str, meaning: str, pairs: Iterable[tuple[Mapping[str, str], Number]], *, adds: bool
    ) -> Metric:
        points = [
            NumberDataPoint(
                _valid(labels), self._starts.of(name, labels, value) if adds else 0, self._now_ns, value
            )
            for labels, value in pairs
        ]
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if adds else Gauge(points)
        return Metric(name, meaning, _unit(name), data)

    def _histogram(self, family: Family) -> Metric:
        """Return a histogram with a point for each set of labels. Bucket counts are not cumulative."""
        buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
        sums: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in family.samples:
            key = tuple((name, text) for name, text in sample.labels.items() if name != "le")
            if sample.name.endswith("_bucket"):
                buckets.setdefault(key, []).append((float(sample.labels["le"]), int(sample.value)))
            elif sample.name.endswith("_sum"):
                sums[key] = sample.value
        points = []
        for key, below in buckets.items():
            counts = [count for _, count in below]
            between = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
            bounds = [bound for bound, _ in below if bound != math.inf]
            points.append(
                HistogramDataPoint(
                    attributes=_valid(dict(key)),
                    start_time_unix_nano=self._began_ns,
                    time_unix_nano=self._now_ns,
                    count=counts[-1],
                    sum=sums[key],
                    bucket_counts=between,
                    explicit_bounds=bounds,
                    # Unknown, so not sent; the exporter's types do not allow None.
                    min=None,  # type: ignore[arg-type]
                    max=None,  # type: ignore[arg-type]
                )
            )
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
        return Metric(family.name, family.documentation, _unit(family.name), data)

    def _parsed(self, text: str) -> Mapping[str, str]:
        """Parse labels that `labels_text` has rendered."""
        found = self._labels.get(text)
        if found is None:
            found = self._labels[text] = {
                name: _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], value)
                for name, value in _LABEL.findall(text)
            }
        return found


def _unit(name: str) -> str:
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


def _valid(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Replace characters that UTF-8 cannot encode. (Clients choose some of the label values.)"""
    return {name: text.encode(errors="replace").decode() for name, text in labels.items()}
