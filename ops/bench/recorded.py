"""Files of figures in docs, from which tables are made: parts, each with when and where it was measured."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ops.bench import run

Figures = dict[str, Any]
Parts = Mapping[str, Callable[[], Figures]]


def read(file: Path) -> Figures:
    found: Figures = json.loads(file.read_text()) if file.exists() else {}
    return found


def add_only(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    parser.add_argument("--only", action="append", choices=names, help="measure this part; repeatable")


def measure(parts: Parts, names: Sequence[str], file: Path | None = None) -> Figures:
    """Measure parts; return them with those that `file` has. Each is kept there as soon as it is measured."""
    found = {} if file is None else read(file)
    for name in names:
        label = _when_and_where()
        found[name] = {"circumstances": label, **rounded(parts[name]())}
        if file is not None:
            file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def _when_and_where() -> str:
    """Return when and where this is measured, in a line."""
    load = os.getloadavg()[0]
    place = run.circumstances(Path(tempfile.gettempdir()).resolve())
    return f"{datetime.now(UTC):%Y-%m-%d}, {place}, load average {load:.1f}"


def rounded(value: Any) -> Any:
    """Return figures rounded to four digits: further digits are noise, and would differ after each run."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
