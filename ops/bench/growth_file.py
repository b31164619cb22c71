"""The measured curves: docs/growth.json, which ops/bench/growth.py writes and docs/ draws and quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GROWTH = Path(__file__).parents[2] / "docs" / "growth.json"

# Loads of the curve of hops, by their place on its axis.
LOADS = ("produce-100B-1", "produce-100B-64", "produce-16KiB-8", "fetch-1MiB-8")

Point = Mapping[str, Any]
# By name; each has "circumstances", "cores", "device" and "points".
Curves = Mapping[str, Mapping[str, Any]]


def read() -> Curves:
    return parsed(GROWTH.read_text())


def parsed(text: str) -> Curves:
    """Return the curves of the file's text."""
    curves: Curves = json.loads(text)["curves"]
    return curves


def as_text(curves: Curves) -> str:
    """Return the curves as JSON, a point in each line."""
    texts = []
    for name, curve in curves.items():
        points = ",\n   ".join(json.dumps(point) for point in curve["points"])
        rest = "".join(
            f"\n  {json.dumps(key)}: {json.dumps(curve[key])},"
            for key in ("circumstances", "cores", "device")
        )
        texts.append(f' {json.dumps(name)}: {{{rest}\n  "points": [\n   {points}]}}')
    return '{"curves": {\n' + ",\n".join(texts) + "}}\n"


def write(curves: Curves) -> None:
    GROWTH.write_text(as_text(curves))
