"""A page of metrics in Prometheus' text format, mostly written by prometheus_client.

prometheus_client takes some 5 us for a sample. This module itself writes the metrics with a sample per
partition, in the same format, from labels that are rendered once for all these metrics (`Page.lines`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mpbroker.metrics.snapshot import Distribution

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NO_LABELS: Final[Mapping[str, str]] = {}
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(frozen=True)
class Family:
    """A metric's name (a counter's with `_total`), type (counter, gauge, histogram, summary) and help."""

    name: str
    type: str
    help: str


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """Render (name, value) labels as text, `{a="1",b="2"}`. The caller sorts them by name."""
    return "{" + ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels) + "}"


class Page(Collector):
    """The samples of one scrape. Families of the same name become one, with the first one's help text."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._rendered: list[tuple[Family, list[tuple[str, float]]]] = []

    def add(self, family: Family, value: float, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Add one sample to a counter or gauge."""
        self._of(family).add_sample(family.name, dict(labels), value)

    def summary(
        self,
        family: Family,
        quantiles: Mapping[str, float],
        count: int,
        total: float,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> None:
        """Add a summary: values by quantile, the number of events and the sum of their values."""
        metric = self._of(family)
        for quantile, value in quantiles.items():
            metric.add_sample(family.name, {**labels, "quantile": quantile}, value)
        metric.add_sample(f"{family.name}_count", dict(labels), count)
        metric.add_sample(f"{family.name}_sum", dict(labels), total)

    def histogram(
        self,
        family: Family,
        seen: Distribution,
        bounds: Iterable[tuple[int, float]],
        unit: float,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> None:
        """Add a histogram. `bounds`: ascending pairs (bucket's index, its lower bound divided by `unit`)."""
        metric = self._of(family)
        below, at = 0, 0
        for index, bound in bounds:
            below += sum(seen.buckets[at:index])
            at = index
            metric.add_sample(f"{family.name}_bucket", {**labels, "le": f"{bound:.12g}"}, below)
        metric.add_sample(f"{family.name}_bucket", {**labels, "le": "+Inf"}, seen.count)
        metric.add_sample(f"{family.name}_count", dict(labels), seen.count)
        metric.add_sample(f"{family.name}_sum", dict(labels), seen.total / unit)

    def lines(self, family: Family, samples: Iterable[tuple[str, float]]) -> None:
        """Add all samples of a counter or gauge, as pairs (labels rendered by `labels_text`, value)."""
        if found := list(samples):
            self._rendered.append((family, found))

    def rendered(self) -> Iterable[tuple[Family, list[tuple[str, float]]]]:
        """Return the families that were added by `lines`, with their samples."""
        return self._rendered

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics.values())

    def names(self) -> set[str]:
        """Return the names of the families that prometheus_client writes (all but those added by `lines`)."""
        return set(self._metrics)

    def text(self) -> bytes:
        # Names that clients chose may be no text that UTF-8 can write.
        lines: list[str] = []
        for family, samples in self._rendered:
            name = family.name
            lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.type}\n")
            lines += [f"{name}{labels} {value}\n" for labels, value in samples]
        return generate_latest(self) + "".join(lines).encode(errors="replace")

    def _of(self, family: Family) -> Metric:
        found = self._metrics.get(family.name)
        if found is None:
            # prometheus_client appends the suffix of a counter by itself.
            name = family.name.removesuffix("_total") if family.type == "counter" else family.name
            found = self._metrics[family.name] = Metric(name, family.help, family.type)
        return found
