"""`mpbroker log scrub` on a running broker: starts a scrub, and reports its progress and findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.topology import SharedMemory
from mpbroker.log.scrub.scrub_process import ASKED, BEGUN, GOES_ON
from mpbroker.storage.checkpoints import CheckpointCorrupt
from mpbroker.storage.damage import read_scrubbed

# An answer is one message (control.ANSWER_BYTES_MAX). More findings than fit mean that a disk is lost.
FINDINGS_BYTES = 128 << 10


def begin(memory: SharedMemory, config: BrokerConfig) -> None:
    """Ask the scrubber to scrub all log directories once. Raises FatalError."""
    if not config.log_scrub_max_bytes_per_second:
        raise FatalError(
            "log.scrub.max.bytes.per.second=0: nothing is scrubbed. Set a rate, and reload the configuration"
        )
    words = memory.words("scrub_asked")
    words.store(ASKED, words.load(ASKED) + 1)
    memory.doorbell(topology.SCRUBBER).ring()


def progress(memory: SharedMemory) -> dict[str, Any]:
    """Return the scrubber's progress, from its counters."""
    page, words = memory.counters(topology.SCRUBBER), memory.words("scrub_asked")
    running = words.load(ASKED) != words.load(BEGUN) or bool(words.load(GOES_ON))
    return {
        "running": running,
        "pass_bytes": page.get(Counter.COUNT_SCRUB_PASS_BYTES) if running else 0,
        "pass_total_bytes": page.get(Counter.COUNT_SCRUB_PASS_TOTAL) if running else 0,
        "damaged_ranges": page.get(Counter.COUNT_SCRUB_FINDINGS),
    }


def report(memory: SharedMemory, config: BrokerConfig) -> dict[str, Any]:
    """Return the progress, and the scrubs and findings that the log directories' files record."""
    directories: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] = []
    for name in config.log_dirs:
        row: dict[str, Any] = {"directory": name}
        try:
            known = read_scrubbed(Path(name))
        except (CheckpointCorrupt, OSError) as error:
            directories.append({**row, "error": str(error)})
            continue
        for key, one in (("current", known.current), ("last", known.last)):
            if one is not None:
                row |= {f"{key}_{field}": value for field, value in msgspec.structs.asdict(one).items()}
        directories.append(row)
        findings += [
            {"directory": name, **msgspec.to_builtins(one)}
            for one in known.all_damages()
            if one.is_there(Path(name))
        ]
    return {**progress(memory), "directories": directories, "findings": list(_first(findings))}


def _first(findings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the first findings, as many as fit into one answer of the control socket."""
    size = 0
    for one in findings:
        size += len(msgspec.json.encode(one)) + 1
        if size > FINDINGS_BYTES:
            return
        yield one
