"""Pushed metrics as series: sums, names, labels, ends, and bounds that hold whatever clients push."""

from __future__ import annotations

import math
import mmap
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpbroker.exporter import client_metrics
from mpbroker.exporter.client_metrics import INSTANCE_SERIES_MAX, KEPT_MS, SERIES_MAX, ClientMetrics
from mpbroker.exporter.exposition import Page
from mpbroker.exporter.otlp_points import Points, Starts
from mpbroker.ipc.client_metrics import BYTES, Push, PushQueue
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.compression import Codec, compress
from tests.support.pushed_metrics import SENT, gauge, payload, point, total

ID = bytes(range(16))
OWN = {"client_id": "c", "client_instance_id": uuid_text(ID)}
SERIES = "kafka_client_producer_record_send_total"
INTERVAL_MS = 60_000


class Pushing:
    """The series of clients, with the test as the clients and the clock."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.metrics = ClientMetrics((), lambda: self.now_ms)

    def push(self, data: bytes, codec: Codec = Codec.NONE, **changed: Any) -> None:
        who = {"client_instance_id": ID, "client_id": "c", "software_name": "java"}
        about = {"software_version": "4.3.0", "source_address": "1.2.3.4", "principal": "User:a"}
        rest = {"interval_ms": INTERVAL_MS, "terminating": False, "codec": codec, "metrics": data}
        self.metrics.take(Push(**{**who, **about, **rest, **changed}))

    def page(self) -> Page:
        page = Page()
        self.metrics.write(page)
        return page

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.page().text().decode())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, frozenset(labels.items())))

    def clients(self) -> set[str]:
        """Return the names of clients' series."""
        return {name for name, _ in self.samples() if name.startswith("kafka_client_")}


@pytest.fixture
def pushing() -> Pushing:
    return Pushing()


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_deltas_are_added_up(pushing: Pushing, codec: Codec) -> None:
    for value in (3, 4):
        pushing.push(compress(codec, payload(total(SENT, point(value, topic="t")))), codec)
    assert pushing.value(SERIES, topic="t", **OWN) == 7
    assert pushing.value("mpbroker_client_metrics_pushes_total", result="taken") == 2
    assert pushing.metrics.left_out == pushing.metrics.malformed == 0


def test_cumulative_sums_and_gauges_have_their_last_value(pushing: Pushing) -> None:
    for value in (3.0, 2.0):
        pushing.push(
            payload(
                total("a.total", point(value), is_delta=False),
                gauge("b", point(value), point(math.nan, x="y")),
            )
        )
    assert pushing.value("kafka_client_a_total", **OWN) == 2
    assert pushing.value("kafka_client_b", **OWN) == 2
    assert math.isnan(pushing.value("kafka_client_b", x="y", **OWN) or 0)
    for value in (3, -1):
        pushing.push(payload(total("c", point(value), is_monotonic=False)))
    assert pushing.value("kafka_client_c", **OWN) == 2


def test_a_sum_that_grows_is_a_counter_by_its_name(pushing: Pushing) -> None:
    pushing.push(payload(total("Sent-bytes.é", point(1))))
    assert pushing.value("kafka_client_sent_bytes___total", **OWN) == 1
    assert "# TYPE kafka_client_sent_bytes___total counter\n" in pushing.page().text().decode()


def test_what_is_known_of_a_client_is_in_its_info(pushing: Pushing) -> None:
    pushing.push(payload(gauge("g", point(1)), group_id="readers", principal="User:root"))
    about = {"client_software_name": "java", "client_software_version": "4.3.0"}
    about |= {"client_source_address": "1.2.3.4", "principal": "User:a", "group_id": "readers"}
    assert pushing.value("kafka_client_info", **OWN, **about) == 1


def test_an_info_without_room_for_the_labels_of_a_client_has_ours(pushing: Pushing) -> None:
    pushing.push(payload(gauge("g", point(1)), **{f"label{number}": "v" * 250 for number in range(8)}))
    (info,) = (dict(labels) for name, labels in pushing.samples() if name == "kafka_client_info")
    assert info["principal"] == "User:a"
    assert "label0" not in info


def test_what_is_known_of_a_client_fits_whatever_its_texts_contain(pushing: Pushing) -> None:
    about = dict.fromkeys(("client_id", "principal"), '"' * 1000)
    pushing.push(payload(gauge("g", point(1))), **about)
    (info,) = (dict(labels) for name, labels in pushing.samples() if name == "kafka_client_info")
    assert info["client_id"] == info["principal"] == '"' * 256
    assert "kafka_client_g" in pushing.clients()


def test_labels_of_a_client_neither_replace_ours_nor_break_the_page(pushing: Pushing) -> None:
    hostile = {"client_id": "forged", "a b": '"\n\\', "__name__": "x", "1": "one", "": "none"}
    pushing.push(payload(gauge("g", point(1, **hostile))))
    assert pushing.value("kafka_client_g", a_b='"\n\\', name__="x", **OWN) == 1


def test_a_gauge_that_is_not_pushed_again_is_dropped_and_a_sum_stays(pushing: Pushing) -> None:
    pushing.push(payload(gauge("lag", point(5, partition=0)), total(SENT, point(2))))
    pushing.push(payload(gauge("lag", point(6, partition=1))))
    assert pushing.value("kafka_client_lag", partition="0", **OWN) is None
    assert pushing.value("kafka_client_lag", partition="1", **OWN) == 6
    assert pushing.value(SERIES, **OWN) == 2
    assert pushing.metrics.series == 3
    pushing.push(payload(total(SENT, point(2))))
    assert pushing.value(SERIES, **OWN) == 4


def test_series_end_with_their_instance(pushing: Pushing) -> None:
    pushing.push(payload(gauge("g", point(1))))
    pushing.now_ms += 3 * INTERVAL_MS - 1
    assert pushing.clients() == {"kafka_client_info", "kafka_client_g"}
    pushing.push(payload(gauge("g", point(1))), terminating=True)
    pushing.now_ms += KEPT_MS - 1
    assert pushing.clients() == {"kafka_client_info", "kafka_client_g"}
    pushing.now_ms += 1
    assert pushing.clients() == set()
    assert pushing.metrics.series == 0


def test_a_name_may_have_another_type_when_its_series_have_ended(pushing: Pushing) -> None:
    pushing.push(payload(gauge("g.total", point(1))), terminating=True)
    pushing.push(payload(total("g", point(1))), client_instance_id=bytes(16))
    assert pushing.metrics.left_out == 1
    pushing.now_ms += KEPT_MS
    pushing.push(payload(total("g", point(1))))
    assert pushing.value("kafka_client_g_total", **OWN) == 1
    assert pushing.metrics.left_out == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: total("s", point(-1)),
        lambda: total("s", point(math.inf)),
        lambda: total("s", point(math.nan)),
        lambda: gauge("", point(1)),
        lambda: gauge("n" * 300, point(1)),
        lambda: gauge("info", point(1)),
        lambda: gauge("ok", point(1, **{f"label{n}": "v" * 250 for n in range(9)})),
        lambda: gauge("taken.total", point(1)),
    ],
)
def test_what_no_series_can_have_is_left_out_and_counted(pushing: Pushing, wrong: Callable[[], Any]) -> None:
    pushing.push(payload(total("taken", point(1)), wrong()))
    assert pushing.metrics.left_out == 1
    assert pushing.value("kafka_client_taken_total", **OWN) == 1
    assert pushing.metrics.series == 2


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x7f", os.urandom(64) + b"\x0b"], ids=["a tag", "cut off", "noise"]
)
def test_a_malformed_push_changes_nothing(pushing: Pushing, data: bytes) -> None:
    pushing.push(payload(gauge("g", point(1))) + data)
    pushing.push(data, Codec.ZSTD)
    assert pushing.metrics.malformed == 2
    assert pushing.clients() == set()


def test_a_bomb_is_malformed(pushing: Pushing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "DECOMPRESSED_BYTES_MAX", 1 << 16)
    pushing.push(compress(Codec.ZSTD, bytes(1 << 20)), Codec.ZSTD)
    assert pushing.metrics.malformed == 1


def test_a_million_series_are_bounded(pushing: Pushing, monkeypatch: pytest.MonkeyPatch) -> None:
    each, pushes = INSTANCE_SERIES_MAX + 5, 7
    many = payload(gauge("g", *(point(1, at=number) for number in range(each))))
    for number in range(pushes):
        pushing.push(many, client_instance_id=number.to_bytes(16))
    samples = pushing.samples()
    found = [labels for name, labels in samples if name == "kafka_client_g"]
    instances = sum(name == "kafka_client_info" for name, _ in samples)
    assert pushing.metrics.series == len(found) + instances == SERIES_MAX
    assert pushing.metrics.left_out == pushes * each - len(found)
    assert (
        max(Counter(dict(labels)["client_instance_id"] for labels in found).values()) == INSTANCE_SERIES_MAX
    )
    monkeypatch.setattr(client_metrics, "POINTS_MAX", 100)
    before = pushing.metrics.left_out
    pushing.push(many, client_instance_id=bytes(16))
    assert pushing.metrics.left_out == before + each - 100


def test_queues_are_emptied_in_turn() -> None:
    queues = [PushQueue(memoryview(mmap.mmap(-1, BYTES))) for _ in range(3)]
    metrics = ClientMetrics(queues, lambda: 0)
    assert not metrics
    for queue, count in zip(queues, (2, 0, 1), strict=True):
        for _ in range(count):
            queue.put(Push(ID, "c", "j", "4", "h", "p", 1, False, Codec.NONE, payload(gauge("g", point(1)))))
    assert metrics
    metrics.take_some()
    assert metrics.pushes == 2
    assert metrics
    metrics.take_some()
    assert metrics.pushes == 3
    assert not metrics


def test_they_go_out_by_otlp_with_the_page(pushing: Pushing) -> None:
    pushing.push(payload(total(SENT, point(3, topic="t")), gauge("g", point(0.5))))
    found = {one.name: one.data for one in Points(1, 2, Starts(1)).metrics(pushing.page())}
    (sent,) = found[SERIES].data_points
    assert (sent.value, dict(sent.attributes or {})) == (3.0, {"topic": "t", **OWN})
    (told,) = found["kafka_client_g"].data_points
    assert told.value == 0.5
