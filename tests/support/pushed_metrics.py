"""Payloads of pushed client metrics, made with OpenTelemetry's classes."""

from __future__ import annotations

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

SENT = "org.apache.kafka.producer.record.send.total"


def attributes(labels: dict[str, str | int | float | bool]) -> list[KeyValue]:
    kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
    return [KeyValue(key=key, value=AnyValue(**{kinds[type(v)]: v})) for key, v in labels.items()]  # type: ignore[arg-type]


def point(value: float, **labels: str | int | float | bool) -> NumberDataPoint:
    if isinstance(value, int):
        return NumberDataPoint(as_int=value, attributes=attributes(labels), time_unix_nano=1)
    return NumberDataPoint(as_double=value, attributes=attributes(labels), time_unix_nano=1)


def gauge(name: str, *points: NumberDataPoint) -> Metric:
    return Metric(name=name, description="told", unit="ms", gauge=Gauge(data_points=points))


def total(name: str, *points: NumberDataPoint, is_delta: bool = True, is_monotonic: bool = True) -> Metric:
    temporality = AGGREGATION_TEMPORALITY_DELTA if is_delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    data = Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=is_monotonic)
    return Metric(name=name, sum=data)


def payload(*metrics: Metric, **resource: str) -> bytes:
    about = Resource(attributes=attributes({**resource}))
    of_client = ResourceMetrics(resource=about, scope_metrics=[ScopeMetrics(metrics=metrics)])
    return MetricsData(resource_metrics=[of_client]).SerializeToString()
