"""A virtual environment with the built wheel, packed for executors that have nothing installed."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.distributions import run

# What docs/SPARK.md installs beside the wheel; PySpark itself is on every host of a cluster.
BESIDE = ("pyarrow", "pandas")


def pack(environment: Path, archive: Path) -> None:
    """Pack an environment as `venv-pack -p ENVIRONMENT -o ARCHIVE` does."""
    words = ["-p", str(environment), "-o", str(archive), "--compress-level", "1", "--quiet"]
    run([sys.executable, "-m", "venv_pack", *words], archive.parent)
