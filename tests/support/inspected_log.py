"""What the log directory of the inspection tests holds."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from mpbroker.cli.main import app

BATCHES = 30
RECORDS = 3


def log_command(*arguments: str) -> Result:
    """Run `mpbroker log`."""
    return CliRunner().invoke(app, ["log", *arguments])


def segments(directory: Path, suffix: str = ".log") -> list[Path]:
    """Return the files of its partition, in their order."""
    return sorted((directory / "t-0").glob(f"*{suffix}"))
