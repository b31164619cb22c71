"""Settings of brokers with tiered storage that look for work all the time."""

from __future__ import annotations

from pathlib import Path


def tiering(store: Path) -> dict[str, str]:
    """Return settings with which a broker has its object store in a directory."""
    return {
        "remote.log.storage.system.enable": "true",
        "mpbroker.remote.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "20",
        "mpbroker.remote.commit.interval.ms": "10",
        "log.retention.check.interval.ms": "50",
        "log.initial.task.delay.ms": "10",
    }
