"""`mpbroker log scrub`: has a running broker look for damage now, or says what it has found."""

from __future__ import annotations

import sys
import time
from typing import Any

from mpbroker.cli.control import ControlClient
from mpbroker.cli.output import print_json


def scrub(log_dirs: str | None, *, only_status: bool, as_json: bool) -> None:
    """Begins, unless only the status is wanted; what goes on is not begun again."""
    arguments = {} if only_status else {"on": True}
    reply = ControlClient.find(log_dirs).call("scrub", **arguments)
    if as_json:
        print_json(reply)
    else:
        _print(reply)


def _print(reply: dict[str, Any]) -> None:
    write = sys.stdout.write
    if reply["running"]:
        done, total = reply["pass_bytes"], reply["pass_total_bytes"]
        write(f"scrubbing: {done:,} of {total:,} bytes\n" if total else "scrubbing: it begins\n")
    for row in reply["directories"]:
        write(f"{row['directory']}: {_directory(row)}\n")
    for one in reply["findings"]:
        write(
            f"damaged: {one['directory']}/{one['partition']}/{one['base']:020d}.log, bytes "
            f"{one['position']:,} to {one['end'] - 1:,}: {one['reason']}; offsets {one['first']:,} to "
            f"{one['behind'] - 1:,} cannot be read\n"
        )
    if not reply["findings"]:
        write("No damage is known.\n")


def _directory(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    if "last_ended_ms" not in row:
        return "never scrubbed to its end yet"
    ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["last_ended_ms"] / 1000))
    return f"scrubbed until {ended}, {row['last_batches']:,} batches, {row['last_bytes']:,} bytes"
