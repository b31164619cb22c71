"""Pushed payloads: what OpenTelemetry's own classes wrote is read, and nothing else does harm."""

from __future__ import annotations

import math
import random

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Histogram, HistogramDataPoint, Metric, MetricsData

from mpbroker.exporter import pushed_payload
from mpbroker.exporter.pushed_payload import FIELDS_MAX, TEXT_BYTES_MAX, MalformedPayload, Payload, Point
from tests.support.pushed_metrics import SENT, gauge, payload, point, total


def read(data: bytes) -> list[Point]:
    return list(Payload(data).points())


def test_what_clients_push_is_read() -> None:
    data = payload(
        total(SENT, point(3, topic="orders", partition=7), point(1.5, idle=True, share=0.5)),
        gauge("org.apache.kafka.producer.queue.time", point(-2), point(math.inf), point(-1.25, node=-1)),
        total("bytes", point(9), is_delta=False),
        total("in.flight", point(-4), is_monotonic=False),
        group_id="readers",
    )
    found = Payload(data)
    assert list(found.points()) == [
        Point(SENT, True, True, [("topic", "orders"), ("partition", "7")], 3.0),
        Point(SENT, True, True, [("idle", "true"), ("share", "0.5")], 1.5),
        Point("org.apache.kafka.producer.queue.time", False, False, [], -2.0),
        Point("org.apache.kafka.producer.queue.time", False, False, [], math.inf),
        Point("org.apache.kafka.producer.queue.time", False, False, [("node", "-1")], -1.25),
        Point("bytes", True, False, [], 9.0),
        Point("in.flight", False, True, [], -4.0),
    ]
    assert found.labels == [("group_id", "readers")]


def test_histograms_and_nothing_are_no_points() -> None:
    histogram = Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)]))
    assert read(payload(histogram)) == []
    assert read(b"") == []


def test_long_texts_are_cut_off_and_wrong_ones_replaced() -> None:
    (one,) = read(payload(gauge("n" * 5000, point(1, key="v" * 5000))))
    assert one.name == "n" * TEXT_BYTES_MAX
    assert one.labels == [("key", "v" * TEXT_BYTES_MAX)]
    broken = payload(gauge("name", point(1))).replace(b"name", b"na\xff\xfe")
    assert read(broken)[0].name == "na\ufffd\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # no length
        b"\x0a\x05abc",  # cut off
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # longer than all there is
        b"\x80" * 11,  # a number without an end
        b"\x0b",  # a group
        b"\x0f\x00",  # an unknown type
        b"\x09\x00",  # half of a number
    ],
)
def test_what_is_no_protobuf_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedPayload):
        read(data)


def test_random_damage_is_read_or_refused() -> None:
    whole = bytearray(payload(total(SENT, point(3, topic="orders")), gauge("g", point(2.0)), rack="r"))
    chance = random.Random(714)
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            ours = read(bytes(damaged[: chance.randrange(len(damaged) + 1)]))
        except MalformedPayload:
            continue
        assert len(ours) < 100


def test_what_protobuf_reads_is_never_malformed() -> None:
    whole = payload(total(SENT, point(3, topic="orders")), gauge("g", point(2.0)))
    unknown = b"\xfa\x01\x02ab\xf0\x01\x07\xf5\x01abcd"
    assert MetricsData.FromString(unknown + whole)
    assert read(unknown + whole) == read(whole)


def test_the_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_payload, "FIELDS_MAX", 1000)
    assert read(b"\x10\x00" * 1000) == []
    with pytest.raises(MalformedPayload, match="more than 1000 fields"):
        read(b"\x10\x00" * 1001)
    # As deep as clients go, fields count as well.
    with pytest.raises(MalformedPayload):
        read(payload(gauge("g", *(point(1, key="v") for _ in range(200)))))
    assert FIELDS_MAX > 10 * pushed_payload.POINTS_MAX
