"""Reads the metrics that a client has pushed: an OTLP MetricsData, which is protobuf.

Clients of Kafka push sums and gauges; histograms and summaries are skipped. A payload may come from anybody,
so the number of its fields is bounded. (opentelemetry-proto: metrics.proto, common.proto; protobuf.dev:
Encoding.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

POINTS_MAX: Final = 10_000
# A data point with a few attributes has about twenty; reading this many takes about half a second.
FIELDS_MAX: Final = 500_000
# Longer texts are cut off.
TEXT_BYTES_MAX: Final = 1024
_VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA: Final = 1
_DOUBLE, _INT64 = struct.Struct("<d"), struct.Struct("<q")

Value: TypeAlias = int | memoryview
Labels: TypeAlias = list[tuple[str, str]]


class MalformedPayload(ValueError):
    """Raised for a payload that is no MetricsData or has too many fields."""


class Point(NamedTuple):
    """A data point. `adds`: its metric only grows. `is_delta`: `value` is the growth since the last push."""

    name: str
    adds: bool
    is_delta: bool
    labels: Labels
    value: float


class Payload:
    """A payload to read. When `points` is exhausted, `labels` has the attributes of the client's resource."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._fields = 0
        self.labels: Labels = []

    def points(self) -> Iterator[Point]:
        """Yield the data points in their order. Raises MalformedPayload."""
        for number, resource_metrics in self._messages(self._data):
            if number != 1:
                continue
            for part, message in self._messages(resource_metrics):
                if part == 1:
                    self.labels += [self._label(one) for key, one in self._messages(message) if key == 1]
                elif part == 2:
                    for key, metric in self._messages(message):
                        if key == 2:
                            yield from self._metric(metric)

    def _metric(self, metric: memoryview) -> Iterator[Point]:
        fields = dict(self._messages(metric))
        name = _text(fields.get(1, b""))
        # A gauge has number 5, a sum 7; both have their points in number 1.
        for number in (5, 7):
            points: list[memoryview] = []
            temporality = is_monotonic = 0
            for key, value in self._all(fields.get(number, b"")):
                if key == 1 and isinstance(value, memoryview):
                    points.append(value)
                elif key == 2 and isinstance(value, int):
                    temporality = value
                elif key == 3 and isinstance(value, int):
                    is_monotonic = value
            for point in points:
                yield self._point(name, point, adds=bool(is_monotonic), is_delta=temporality == _DELTA)

    def _point(self, name: str, point: memoryview, *, adds: bool, is_delta: bool) -> Point:
        labels: Labels = []
        value = 0.0
        for number, field in self._all(point):
            if number == 7 and isinstance(field, memoryview):
                labels.append(self._label(field))
            elif number == 4 and isinstance(field, memoryview) and len(field) == _DOUBLE.size:
                (value,) = _DOUBLE.unpack(field)
            elif number == 6 and isinstance(field, memoryview) and len(field) == _INT64.size:
                value = float(_INT64.unpack(field)[0])
        return Point(name, adds, is_delta, labels, value)

    def _label(self, attribute: memoryview) -> tuple[str, str]:
        """Return a KeyValue as texts. Arrays and maps become an empty text."""
        fields = dict(self._messages(attribute))
        text = ""
        for number, value in self._all(fields.get(2, b"")):
            if number == 1 and isinstance(value, memoryview):
                text = _text(value)
            elif number == 2 and isinstance(value, int):
                text = "true" if value else "false"
            elif number == 3 and isinstance(value, int):
                text = str(value - (1 << 64) if value >> 63 else value)
            elif number == 4 and isinstance(value, memoryview) and len(value) == _DOUBLE.size:
                text = str(_DOUBLE.unpack(value)[0])
        return _text(fields.get(1, b"")), text

    def _messages(self, data: memoryview | bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (number, bytes) of the fields that have bytes: messages and texts."""
        return ((number, value) for number, value in self._all(data) if isinstance(value, memoryview))

    def _all(self, data: memoryview | bytes) -> Iterator[tuple[int, Value]]:
        """Yield (number, value) of all fields of a message. A value is an int for a varint, else bytes."""
        data, at = memoryview(data), 0
        while at < len(data):
            self._fields += 1
            if self._fields > FIELDS_MAX:
                raise MalformedPayload(f"more than {FIELDS_MAX} fields")
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _VARINT:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
            if kind == _BYTES:
                length, at = _varint(data, at)
            if length is None or length > len(data) - at:
                raise MalformedPayload(f"field {tag >> 3} of type {kind} is unknown or cut off")
            yield tag >> 3, data[at : at + length]
            at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a number. Return it and the position after it."""
    result = 0
    for shift, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        result |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return result & (1 << 64) - 1, at + shift + 1
    raise MalformedPayload("a number is cut off or too long")


def _text(data: memoryview | bytes) -> str:
    # A point has the name of its metric: a long one would be copied for each point.
    return str(data[:TEXT_BYTES_MAX], "utf-8", "replace")
