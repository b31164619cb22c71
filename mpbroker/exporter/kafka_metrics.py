"""Kafka's metrics, with the names that the usual configuration of Prometheus' jmx_exporter gives them.

(prometheus/jmx_exporter: examples/kafka-2_0_0.yml; attributes of `socket-server-metrics` as in Strimzi.)

    meter ...PerSec        kafka_server_brokertopicmetrics_messagesin_total
    histogram              kafka_network_requestmetrics_totaltimems{quantile="0.99"}, ..._count
    gauge                  kafka_server_replicamanager_partitioncount
    gauge ...Percent       ..._requesthandleravgidle_percent and ..._requesthandleravgidlepercent
    attribute of a client  kafka_server_socket_server_metrics_connection_count
    quota of a client      kafka_server_quota_byte_rate{resource,user,client_id}

Label names are in lower case. Attributes in nanoseconds are left out. So are averages of metrics whose
count is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from mpbroker.exporter.exposition import Family, Page
from mpbroker.metrics import catalogue, families, log_dirs, quotas
from mpbroker.metrics.broker import OURS
from mpbroker.metrics.families import Bean, View

_PROPERTY = re.compile(r'([\w-]+)=("(?:[^"\\]|\\.)*"|[^,]*)(?:,|$)')
_PERCENTILE = re.compile(r"(\d+)thPercentile")
_UNQUOTED = re.compile(r"\\(.)")
_PER_SECOND, _PERCENT = "persec", "percent"
_OF_QUOTAS = "Use of each budget of a quota: bytes, percent of a processor, or partitions; delays in ms."
# Nanoseconds, which Prometheus frowns upon; iotime_total and io_waittime_total have the same values.
_LEFT_OUT = re.compile(r"-ns-|-ns$")
# Written elsewhere: a sample per partition, and names that may contain anything.
_ELSEWHERE = (log_dirs.LOGS, OURS.partition(":")[0])


class _Name(NamedTuple):
    """A JMX bean's name, split: `base` is its domain, type and name in Prometheus' form."""

    base: str
    labels: dict[str, str]


def write(view: View, page: Page) -> None:
    """Write all of Kafka's metrics, except metrics of single partitions (see `partition_metrics`)."""
    assert catalogue.REGISTERED
    for family in families.families():
        if family.pattern.startswith(_ELSEWHERE) or "[,user=" in family.pattern:
            continue
        for bean in family.make(view):
            _write_bean(bean, family.meaning, page)
    _write_quotas(view, page)


def _write_bean(bean: Bean, meaning: str, page: Page) -> None:
    base, labels = _parse(bean.name)
    attributes = bean.attributes
    if "50thPercentile" in attributes:
        count = int(attributes["Count"])
        found = {f"0.{m[1]}": value for name, value in attributes.items() if (m := _PERCENTILE.match(name))}
        page.summary(_family(base, "summary", meaning), found, count, attributes["Mean"] * count, labels)
    elif "MeanRate" in attributes:
        if base.endswith(_PER_SECOND):
            name = f"{base.removesuffix(_PER_SECOND)}_total"
            page.add(_family(name, "counter", meaning), attributes["Count"], labels)
        else:
            rate = attributes.get("IntervalRate", attributes["MeanRate"])
            _write_gauge(base, meaning, rate, labels, page)
    elif "Value" in attributes:
        _write_gauge(base, meaning, attributes["Value"], labels, page)
    else:
        for name, value in _kept(attributes):
            whole = f"{base}_{name.lower().replace('-', '_')}"
            kind = "counter" if whole.endswith("_total") else "gauge"
            page.add(_family(whole, kind, meaning), value, labels)


def _kept(attributes: dict[str, float]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in attributes.items() if not _LEFT_OUT.search(name))


def _write_gauge(base: str, meaning: str, value: float, labels: dict[str, str], page: Page) -> None:
    """Write a gauge. Write a percentage twice, under the two names that jmx_exporter's rules may give it."""
    page.add(_family(base, "gauge", meaning), value, labels)
    if base.endswith(_PERCENT):
        page.add(_family(f"{base.removesuffix(_PERCENT)}_{_PERCENT}", "gauge", meaning), value, labels)


def _write_quotas(view: View, page: Page) -> None:
    """Write how much of its quota each client has used. User and client id may be any text."""
    for kind, name in quotas.NAMES.items():
        for (user, client_id), attributes in quotas.of_clients(view, kind):
            labels = {"resource": name, "user": user, "client_id": client_id}
            for attribute, value in _kept(attributes):
                whole = f"kafka_server_quota_{attribute.replace('-', '_')}"
                counts = "counter" if whole.endswith("_total") else "gauge"
                page.add(_family(whole, counts, _OF_QUOTAS), value, labels)


@lru_cache(4096)
def _parse(name: str) -> _Name:
    domain, _, rest = name.partition(":")
    found = {key: _unquote(text) for key, text in _PROPERTY.findall(rest)}
    parts: list[str] = [domain.replace(".", "_"), found.pop("type"), found.pop("name", "")]
    base = "_".join(part.lower().replace("-", "_") for part in parts if part)
    return _Name(base, {key.lower().replace("-", "_"): text for key, text in found.items()})


def _unquote(text: str) -> str:
    return _UNQUOTED.sub(r"\1", text[1:-1]) if text.startswith('"') else text


@lru_cache(4096)
def _family(name: str, kind: str, meaning: str) -> Family:
    return Family(name, kind, meaning)
