"""All metrics: importing this module registers the metrics of all modules of the package."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from mpbroker.metrics import broker, cleaner, listeners, log_dirs, network, quotas, remote, requests
from mpbroker.metrics.families import Bean, Family, View, families
from mpbroker.metrics.snapshot import Snapshot

REGISTERED = (broker, cleaner, listeners, log_dirs, network, quotas, remote, requests)


def beans(
    now: Snapshot, before: Snapshot | None = None, wanted: Callable[[str], bool] = lambda _name: True
) -> list[Bean]:
    """Return the wanted beans, sorted by name. A bean with attributes in several families is returned once.

    A bean whose own name is not wanted is returned with its wanted attributes only, if it has any.
    """
    view = View(now, before)
    found: dict[str, dict[str, float]] = {}
    for one in families():
        for bean in one.make(view):
            attributes = bean.attributes
            if not wanted(bean.name):
                attributes = {name: value for name, value in attributes.items() if wanted(name)}
            if attributes:
                found.setdefault(bean.name, {}).update(attributes)
    return [Bean(name, attributes) for name, attributes in sorted(found.items())]


def matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Return a test of names: a name must contain or match (*, ?) one of `patterns`, if there are any."""
    whole = [p if any(c in p for c in "*?[") else f"*{p}*" for p in patterns]
    return lambda name: not whole or any(fnmatchcase(name, pattern) for pattern in whole)


def table() -> list[Family]:
    """Return the rows of docs/METRICS.md."""
    return families()
