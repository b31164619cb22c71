"""The metrics that clients push, as series of the metrics page.

A metric `org.apache.kafka.producer.record.send.total` becomes `kafka_client_producer_record_send_total`. Its
labels are the client's `client_id` and `client_instance_id`, and the attributes of the data point.
Values that clients push as deltas are added up. The labels of `kafka_client_info` have all else that is known
of an instance.

A gauge that the last push of an instance lacks is dropped; sums stay. All series of an instance are dropped
when it has pushed nothing for KEPT_MS and for three intervals; after a push that is its last (`terminating`),
KEPT_MS is enough. Any client may push anything, so the number of series is bounded, in all and for each
instance.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

from mpbroker.exporter import mpbroker_metrics
from mpbroker.exporter.exposition import Family, Page, labels_text
from mpbroker.exporter.pushed_payload import POINTS_MAX, Labels, MalformedPayload, Payload, Point
from mpbroker.ipc.client_metrics import DECOMPRESSED_BYTES_MAX, Push, PushQueue
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.compression import Codec, decompress
from mpbroker.records.errors import CompressionError

SERIES_MAX: Final = 10_000
INSTANCE_SERIES_MAX: Final = 2_000
# The last push of an instance is kept this long, so that Prometheus can scrape it.
KEPT_MS: Final = 120_000
NAME_LENGTH_MAX: Final = 200
# The labels of a client always fit, whatever its texts contain.
LABELS_LENGTH_MAX: Final = 2_048
_TEXT_LENGTH_MAX: Final = 256
_THEIRS: Final = "org.apache.kafka."
_NO_NAME = re.compile(r"[^a-z0-9_]")
INFO: Final = Family("kafka_client_info", "gauge", "1, with what is known of a client that pushes metrics.")
_MEANING: Final = "As clients have pushed it."

Series: TypeAlias = dict[tuple[str, str], float]
"""Values by name and rendered labels."""

log = logging.getLogger("mpbroker.exporter")


@dataclass
class _Instance:
    """A client instance: its series, and `info`, the rendered labels of its `kafka_client_info`."""

    ends_ms: int = 0
    info: str = ""
    series: Series = field(default_factory=dict)


class ClientMetrics:
    """The series of all client instances. `take_some` and `write` may run in two threads at once."""

    def __init__(self, queues: Sequence[PushQueue], now_ms: Callable[[], int]) -> None:
        self._queues = queues
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._instances: dict[bytes, _Instance] = {}
        # The type of each name of a metric, as the first client pushed it.
        self._types: dict[str, str] = {}
        self.series = 0
        self.pushes = self.malformed = self.left_out = 0

    def __bool__(self) -> bool:
        """Return whether pushes wait in the queues."""
        return any(self._queues)

    def take_some(self) -> None:
        """Take the oldest push of each queue."""
        for queue in self._queues:
            if (push := queue.take()) is not None:
                self.take(push)

    def take(self, push: Push) -> None:
        """Add the metrics of a push. A malformed one is counted and adds nothing."""
        try:
            payload = Payload(decompress(Codec(push.codec), push.metrics, DECOMPRESSED_BYTES_MAX))
            points = payload.points()
            found = list(islice(points, POINTS_MAX))
            rest = sum(1 for _ in points)
        except (CompressionError, MalformedPayload, ValueError) as error:
            self.malformed += 1
            log.debug("a push of client %s is malformed: %s", push.client_id, error)
            return
        with self._lock:
            self.pushes += 1
            self.left_out += rest
            self._forget()
            if (instance := self._instance(push, payload.labels)) is None:
                self.left_out += len(found)
            else:
                before = instance.series
                instance.series = {key: v for key, v in before.items() if self._types[key[0]] == "counter"}
                self.series -= len(before) - len(instance.series)
                for point in found:
                    self.left_out += not self._added(instance, before, push, point)

    def _instance(self, push: Push, labels: Labels) -> _Instance | None:
        """Return the instance of a push; None if there is no room for another one."""
        instance = self._instances.get(push.client_instance_id)
        if instance is None:
            if self.series >= SERIES_MAX:
                return None
            instance = self._instances[push.client_instance_id] = _Instance()
            self.series += 1
        kept_ms = KEPT_MS if push.terminating else max(KEPT_MS, 3 * push.interval_ms)
        instance.ends_ms = self._now_ms() + kept_ms
        own = [
            *_own_labels(push),
            ("client_software_name", push.software_name),
            ("client_software_version", push.software_version),
            ("client_source_address", push.source_address),
            ("principal", push.principal),
        ]
        instance.info = _rendered(own, labels) or _rendered(own, ())
        return instance

    def _added(self, instance: _Instance, before: Series, push: Push, point: Point) -> bool:
        """Add a data point to its series; return False to omit it. `before`: the series before the push."""
        name = _name_of(point)
        kind = "counter" if point.adds else "gauge"
        labels = _rendered(_own_labels(push), point.labels)
        is_wrong = point.adds and not (math.isfinite(point.value) and point.value >= 0)
        if not (name and labels) or is_wrong or self._types.get(name, kind) != kind:
            return False
        key = name, labels
        if key not in instance.series:
            if self.series >= SERIES_MAX or len(instance.series) >= INSTANCE_SERIES_MAX:
                return False
            self.series += 1
            self._types[name] = kind
        known = instance.series.get(key, before.get(key, 0.0))
        instance.series[key] = known + point.value if point.is_delta else point.value
        return True

    def _forget(self) -> None:
        """Drop the instances that have ended."""
        now_ms = self._now_ms()
        ended = [one for one, instance in self._instances.items() if instance.ends_ms <= now_ms]
        for one in ended:
            self.series -= 1 + len(self._instances.pop(one).series)
        if ended or len(self._types) > 2 * SERIES_MAX:
            left = {name for instance in self._instances.values() for name, _ in instance.series}
            self._types = {name: kind for name, kind in self._types.items() if name in left}

    def write(self, page: Page) -> None:
        """Write all series, and how many there are."""
        with self._lock:
            self._forget()
            by_name: dict[str, list[tuple[str, float]]] = defaultdict(list)
            for instance in self._instances.values():
                for (name, labels), value in instance.series.items():
                    by_name[name].append((labels, value))
            page.lines(INFO, [(instance.info, 1) for instance in self._instances.values()])
            for name, samples in sorted(by_name.items()):
                page.lines(Family(name, self._types[name], _MEANING), samples)
            pushes = {
                "taken": self.pushes,
                "malformed": self.malformed,
                "dropped": sum(queue.dropped for queue in self._queues),
            }
            mpbroker_metrics.write_clients(len(self._instances), self.series, pushes, self.left_out, page)


def _own_labels(push: Push) -> Labels:
    return [("client_id", push.client_id), ("client_instance_id", uuid_text(push.client_instance_id))]


def _name_of(point: Point) -> str:
    """Return the name of a metric for Prometheus; "" if it cannot have one."""
    name = f"kafka_client_{_NO_NAME.sub('_', point.name.removeprefix(_THEIRS).lower())}"
    if point.adds and not name.endswith("_total"):
        name += "_total"
    return "" if not point.name or len(name) > NAME_LENGTH_MAX or name == INFO.name else name


def _rendered(own: Labels, theirs: Iterable[tuple[str, str]]) -> str:
    """Render labels as a text; "" if it is too long. For a name in both, the value in `own` is used."""
    labels = {name: text[:_TEXT_LENGTH_MAX] for name, text in own}
    for key, text in theirs:
        name = _NO_NAME.sub("_", key.lower()).lstrip("_0123456789")
        if name:
            labels.setdefault(name, text[:_TEXT_LENGTH_MAX])
    text = labels_text(sorted(labels.items()))
    return text if len(text) <= LABELS_LENGTH_MAX else ""
