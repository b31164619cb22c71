"""The parts of metrics: beans with attributes, grouped into families.

A family is one row of docs/METRICS.md and a function that makes beans from a snapshot. Names are Kafka's
ObjectNames. Rates need two snapshots: `View` has the earlier snapshot, if any. A test checks that a family
yields exactly the attributes that its row names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpbroker.ipc.counters import Counter
from mpbroker.metrics.snapshot import NS, Snapshot


class Bean(NamedTuple):
    """A JMX object: its ObjectName, and its attributes by name."""

    name: str
    attributes: dict[str, float]


class View:
    """The snapshots to show: `now`, and optionally an earlier one, `before`, for rates between the two."""

    def __init__(self, now: Snapshot, before: Snapshot | None = None) -> None:
        self.now = now
        self.before = before
        self.seconds = (now.now_ns - before.now_ns) / NS if before is not None else 0.0

    def total(self, counter: int, processes: Sequence[int]) -> int:
        return sum(self.now.get(p, counter) for p in processes)

    def earlier(self, counter: int, processes: Sequence[int]) -> int | None:
        """Return the processes' total of a counter in the earlier snapshot; None without such a snapshot."""
        return None if self.before is None else sum(self.before.get(p, counter) for p in processes)

    def rates(self, count: float, before: float | None) -> dict[str, float]:
        """Return a meter's attributes: Count, MeanRate and, if there are two snapshots, IntervalRate."""
        found = {"Count": count, "MeanRate": count / self.now.uptime_s}
        if before is not None and self.seconds > 0:
            found["IntervalRate"] = max(count - before, 0) / self.seconds
        return found

    def meter(self, name: str, counter: int, processes: Sequence[int]) -> Bean:
        return Bean(name, self.rates(self.total(counter, processes), self.earlier(counter, processes)))

    @staticmethod
    def average(total: float, count: int, earlier: tuple[float, int] | None) -> float:
        """Return the average of the events since `earlier` (total, count); of all events if none is new."""
        if earlier is not None and count > earlier[1]:
            total, count = total - earlier[0], count - earlier[1]
        return total / count if count else 0.0

    def share(self, counter: int, process: int) -> float:
        """Return (ns that a counter counted) / (ns that passed), since the earlier snapshot or the start."""
        spent, passed_ns = self.now.get(process, counter), 0
        if self.before is not None and self.seconds > 0:
            spent -= self.before.get(process, counter)
            passed_ns = self.now.now_ns - self.before.now_ns
        else:
            passed_ns = self.now.now_ns - self.now.get(process, Counter.COUNT_STARTED_NS)
        return min(max(spent / passed_ns, 0.0), 1.0) if passed_ns > 0 else 1.0


Make = Callable[[View], Iterator[Bean]]


@dataclass(frozen=True)
class Family:
    """A set of beans that the function `make` yields.

    `pattern`: the beans' names with <variable> parts. `kind`: meter, histogram, gauge or total, for the docs.
    """

    pattern: str
    kind: str
    meaning: str
    attributes: tuple[str, ...]
    make: Make

    @property
    def named(self) -> str:
        """Return `attributes` as text for docs/METRICS.md; x-total and x-rate become x-<total|rate>."""
        pairs = {name.removesuffix("-total") for name in self.attributes if name.endswith("-total")}
        shown: dict[str, None] = {}
        for name in self.attributes:
            what = name.removesuffix("-total").removesuffix("-rate")
            paired = what in pairs and f"{what}-rate" in self.attributes
            shown[f"{what}-<total|rate>" if paired else name] = None
        return ", ".join(f"`{name}`" for name in shown)


_families: list[Family] = []


def family(pattern: str, kind: str, meaning: str, attributes: Iterable[str] = ()) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as a family. The function yields the family's beans.

    `attributes`: the attributes that the beans have besides Kafka's. Kafka's are Count and rates of a meter,
    Count to 999thPercentile of a histogram, and Value of a gauge.
    """

    def register(make: Make) -> Make:
        _families.append(Family(pattern, kind, meaning, tuple(attributes), make))
        return make

    return register


def families() -> list[Family]:
    """Return all registered families, sorted by pattern."""
    return sorted(_families, key=lambda one: one.pattern)


def value(name: str, number: float) -> Bean:
    return Bean(name, {"Value": number})
