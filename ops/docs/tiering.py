"""Tables of docs/PERFORMANCE.md: docs/tier.json of `make bench-tier`, docs/lake.json of `make bench-lake`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.docs.tables import head, number, row, wrapped

DOCS = Path(__file__).parents[2] / "docs"
TIER_FILE, LAKE_FILE = DOCS / "tier.json", DOCS / "lake.json"
MODES = {
    "off": "no object store",
    "memory": "store elsewhere",
    "disk": "store on the same disk",
    "down": "store down",
    "ledger": "`acks=ledger`, same disk",
}
LOADS = {
    "produce": "16 KiB, 8 connections",
    "steady": "16 KiB, 1,000 a second",
    "fetch": "fetches of 1 MiB, 8 connections",
    "transactions": "transactions, 8 producers",
}
FIGURES = {"per_s": "a second", "p99_us": "p99, µs", "cpu_us": "CPU of one, µs"}
READS = {
    "local": "from local segments",
    "replica": "from a replica",
    "cold": "from the store",
    "warm": "from the store, once more",
}
QUERIES = {"all": "all columns", "value": "values", "count": "count"}

Figures = Mapping[str, Any]


def loads(found: Figures) -> list[str]:
    """Return each mode's figures of each load, and in brackets their ratios to those without a store."""
    lines = [f"Measured on {found['circumstances']}.", "", *head("", *MODES.values())]
    for load, name in LOADS.items():
        by_mode = found["loads"][load]
        for figure, unit in FIGURES.items():
            if (load, figure) == ("steady", "per_s"):
                continue
            off = by_mode["off"][figure]
            others = (by_mode[mode][figure] for mode in list(MODES)[1:])
            cells = [number(off), *(f"{number(one)} ({one / off:.2f})" for one in others)]
            lines.append(row(f"{name}: {unit}", *cells))
    bare, tier = found["device"], found["tier"]
    return [
        *lines,
        "",
        *wrapped(
            f"The bare device wrote and synced a round of one such produce in {bare['p50_us']:.0f} µs (p99 "
            f"{bare['p99_us']:.0f} µs). An upload took {number(tier['memory']['cpu_s_per_gib'])} s of CPU a "
            f"GiB, to the same disk {number(tier['disk']['cpu_s_per_gib'])} s."
        ),
    ]


def reads(found: Figures) -> list[str]:
    lines = head("one consumer of librdkafka, records of 100 KB", "MiB/s", "CPU of the broker, s a GiB")
    for name, told in READS.items():
        lines.append(row(told, *(number(found[name][figure]) for figure in ("mib_per_s", "cpu_s_per_gib"))))
    return lines


def recovery(found: Figures) -> list[str]:
    lines = head("GiB", "partitions", "restore, s", "start, s", "take-over, s")
    for one in found["rows"]:
        took = (number(one[name]) for name in ("restore_s", "start_s", "take_over_s"))
        lines.append(row(f"{one['gib']:g}", f"{one['partitions']:,}", *took))
    return lines


def lake(found: Figures) -> list[str]:
    lines = [f"Measured on {found['circumstances']}.", "", *head("seconds", *QUERIES.values())]
    by_name = sorted(found["reads"].items(), key=lambda one: -one[1]["all"])
    lines += [row(name, *(f"{one[query]:.2f}" for query in QUERIES)) for name, one in by_name]
    made, lag = found["backfill"], found["lag"]
    return [
        *lines,
        "",
        *wrapped(
            f"{found['bytes'] / 1e9:.0f} GB of values of 1 KiB. `mpbroker tables` made a table of them from "
            f"the store at {number(made['mib_per_s'])} MiB/s with the start of Spark, for "
            f"{number(made['cpu_s_per_gib'])} s of CPU a GiB. While it followed the broker, a commit each "
            f"{lag['interval_s']:g} s at most, the newest record in the table was {lag['median_s']:.1f} s "
            f"old (median of {lag['commits']} commits), {lag['most_s']:.1f} s at most."
        ),
    ]


TIER: Mapping[str, Callable[[Figures], Sequence[str]]] = {
    "loads": loads,
    "reads": reads,
    "recovery": recovery,
}


def measured() -> dict[str, Callable[[], Sequence[str]]]:
    """Return the tables' makers, by the tables' names. They raise KeyError, FileNotFoundError."""
    tier, parts = json.loads(TIER_FILE.read_text()), json.loads(LAKE_FILE.read_text())
    made = {f"tier-{name}": lambda name=name: TIER[name](tier[name]) for name in TIER}
    return made | {"lake": lambda: lake(parts["lake"])}
