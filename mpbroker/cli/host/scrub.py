"""`mpbroker log scrub`: has a running broker check its segments for damage, and prints the findings."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

from mpbroker.cli.flags import Json, flag
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.text.output import print_json
from mpbroker.client.times import format_time
from mpbroker.ipc.control_client import ControlClient

# Time for counting the segments of all partitions.
COUNTS_WITHIN_SECONDS = 5.0
PAUSE_SECONDS = 0.05


def scrub(
    here: LocalBroker,
    *,
    only_status: Annotated[bool, flag("--status", "Only print the state.")] = False,
    as_json: Json = False,
) -> None:
    """Have the running broker check its sealed segments for damage now.

    The last segment of a partition is still being written, so it is not checked. Prints the scrubber's
    progress and findings.
    """
    broker = here.control()
    reply = broker.call("scrub")
    has_begun = not only_status and not reply["running"]
    if not only_status:
        reply = _begin(broker)
    if as_json:
        print_json(reply)
    else:
        _print(reply, has_begun=has_begun)


def _begin(broker: ControlClient) -> dict[str, Any]:
    """Begin a scrub; return its status as soon as the scrubber has counted the segments."""
    deadline = time.monotonic() + COUNTS_WITHIN_SECONDS
    reply = broker.call("scrub", on=True)
    while reply["running"] and not reply["pass_total_bytes"] and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
        reply = broker.call("scrub")
    return reply


def _print(reply: dict[str, Any], *, has_begun: bool) -> None:
    write = sys.stdout.write
    if reply["running"]:
        done, total = reply["pass_bytes"], reply["pass_total_bytes"]
        count = f"{done:,} of {total:,} bytes" if total else "counting the segments"
        write(f"{'scrub begun' if has_begun else 'scrubbing'}: {count}\n")
    else:
        write("scrub done: there was little to read\n" if has_begun else "not scrubbing now\n")
    write("Only sealed segments are scrubbed: each partition's last one is still written.\n")
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
        return "no complete scrub yet"
    ended = format_time(row["last_ended_ms"])
    return f"last complete scrub: {ended}, {row['last_batches']:,} batches, {row['last_bytes']:,} bytes"
