"""A page of metrics as points of OpenTelemetry, encoded as its exporter does."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from mpbroker.exporter.exposition import Family, Page, labels_text
from mpbroker.exporter.otlp_points import _ROUNDS_KEPT, Points, Starts
from mpbroker.metrics.snapshot import Distribution
from shm.counters import BUCKETS, bucket_of

BEGAN_NS, NOW_NS = 1_000, 5_000
EVIL = 'a"b\\c\nd,e="f"'


def encoded(page: Page, now_ns: int = NOW_NS, starts: Starts | None = None) -> dict[str, Metric]:
    """What a receiver decodes, by name."""
    points = Points(BEGAN_NS, now_ns, starts or Starts(BEGAN_NS))
    scope = ScopeMetrics(InstrumentationScope("t"), points.metrics(page), "")
    request = encode_metrics(MetricsData([ResourceMetrics(Resource({}), [scope], "")]))
    metrics = list(request.resource_metrics[0].scope_metrics[0].metrics)
    assert len({one.name for one in metrics}) == len(metrics)
    return {one.name: one for one in metrics}


def labels(point: object) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}  # type: ignore[attr-defined]


def test_counters_are_sums_since_the_broker_began() -> None:
    page = Page()
    page.add(Family("mpbroker_restarts_total", "counter", "Deaths."), 3, {"process": "log 0"})
    found = encoded(page)["mpbroker_restarts_total"]
    assert (found.description, found.unit) == ("Deaths.", "")
    assert found.sum.is_monotonic
    assert found.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = found.sum.data_points
    assert labels(point) == {"process": "log 0"}
    assert point.as_double == 3
    assert (point.start_time_unix_nano, point.time_unix_nano) == (BEGAN_NS, NOW_NS)


def test_a_sum_that_goes_back_starts_anew() -> None:
    starts = Starts(BEGAN_NS)

    def start(now_ns: int, value: float | None, process: str = "log 0") -> int:
        page = Page()
        page.add(Family("other_total", "counter", ""), 9, {"process": process})
        if value is not None:
            page.add(Family("cpu_seconds_total", "counter", ""), value, {"process": process})
        found = encoded(page, now_ns, starts)
        assert found["other_total"].sum.data_points[0].start_time_unix_nano == BEGAN_NS
        return found["cpu_seconds_total"].sum.data_points[0].start_time_unix_nano if value is not None else 0

    assert start(2_000, 7.0) == BEGAN_NS
    assert start(3_000, 7.5) == BEGAN_NS
    start(4_000, None)  # it is being replaced
    assert start(5_000, 0.1) == 4_000
    assert start(6_000, 0.2) == 4_000
    assert start(7_000, 0.1, "log 1") == BEGAN_NS
    for now_ns in range(8_000, 8_000 + _ROUNDS_KEPT):
        start(now_ns, None)
    assert start(9_000, 0.1) == BEGAN_NS


def test_gauges_and_their_units() -> None:
    page = Page()
    for name, value in (("a_bytes", 7), ("b_seconds", 0.5), ("c", -1)):
        page.add(Family(name, "gauge", ""), value)
    found = encoded(page)
    assert {name: one.unit for name, one in found.items()} == {"a_bytes": "By", "b_seconds": "s", "c": ""}
    assert [one.gauge.data_points[0].as_double for one in found.values()] == [7, 0.5, -1]


def test_families_with_rendered_labels_come_back_as_they_were() -> None:
    page = Page()
    text = labels_text((("partition", "0"), ("topic", EVIL)))
    page.lines(Family("t_lag", "gauge", ""), [(text, 1 << 60), (labels_text([("topic", "\udcff")]), 1)])
    page.lines(Family("t_brokers", "gauge", ""), [("", 1)])
    found = encoded(page)
    evil, broken = found["t_lag"].gauge.data_points
    assert (labels(evil), evil.as_int) == ({"partition": "0", "topic": EVIL}, 1 << 60)
    assert labels(broken) == {"topic": "?"}
    assert labels(found["t_brokers"].gauge.data_points[0]) == {}


def test_histograms_have_the_counts_between_bounds() -> None:
    buckets = [0] * BUCKETS
    for value in (1, 1, 3, 1 << 20):
        buckets[bucket_of(value)] += 1
    page = Page()
    bounds = [(bucket_of(1 << power), float(1 << power)) for power in (1, 2, 3)]
    seen = Distribution(buckets, 5 + (1 << 20), 1 << 20)
    page.histogram(Family("h_seconds", "histogram", ""), seen, bounds, 1, {"request": "Fetch"})
    page.histogram(Family("h_seconds", "histogram", ""), seen, bounds, 1, {"request": "Produce"})
    found = encoded(page)["h_seconds"]
    assert found.unit == "s"
    assert found.histogram.aggregation_temporality == (
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    fetch, produce = found.histogram.data_points
    assert [labels(one)["request"] for one in (fetch, produce)] == ["Fetch", "Produce"]
    assert (list(fetch.explicit_bounds), list(fetch.bucket_counts)) == ([2, 4, 8], [2, 1, 0, 1])
    assert (fetch.count, fetch.sum, fetch.start_time_unix_nano) == (4, 5 + (1 << 20), BEGAN_NS)
    assert not fetch.HasField("min")
    assert not fetch.HasField("max")


def test_summaries_are_quantiles_and_two_sums() -> None:
    page = Page()
    page.summary(Family("s_ms", "summary", ""), {"0.5": 1.5, "0.99": 9}, 4, 12, {"request": "Fetch"})
    found = encoded(page)
    assert {labels(one)["quantile"]: one.as_double for one in found["s_ms"].gauge.data_points} == {
        "0.5": 1.5,
        "0.99": 9,
    }
    for name, value in (("s_ms_count", 4), ("s_ms_sum", 12)):
        (point,) = found[name].sum.data_points
        assert found[name].sum.is_monotonic
        assert labels(point) == {"request": "Fetch"}
        assert point.as_double == value
