"""The curves of docs/growth.json, which `make bench-growth` measures and docs/PERFORMANCE.md shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ops.bench.brokers import ROOT

GROWTH = ROOT / "docs" / "growth.json"
# Loads of the curve of hops, by their place on its axis.
LOADS = ("produce-100B-1", "produce-100B-64", "produce-16KiB-8", "fetch-1MiB-8")

# Numbers by name, or by name and kind of process.
Point = dict[str, Any]
# By name; each has "circumstances" and "points".
Curves = Mapping[str, Mapping[str, Any]]


def read() -> Curves:
    curves: Curves = json.loads(GROWTH.read_text())["curves"] if GROWTH.exists() else {}
    return curves


def write(curves: Curves) -> None:
    """Write the curves as JSON, a point in each line."""
    texts = []
    for name, curve in curves.items():
        points = ",\n   ".join(map(json.dumps, curve["points"]))
        about = (f"\n  {json.dumps(key)}: {json.dumps(curve[key])}," for key in curve if key != "points")
        texts.append(f' {json.dumps(name)}: {{{"".join(about)}\n  "points": [\n   {points}]}}')
    GROWTH.write_text('{"curves": {\n' + ",\n".join(texts) + "}}\n")
