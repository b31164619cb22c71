"""Sentences about the problems of a running broker's disks, with their remedies.

The log workers write problems of log directories into shared memory (`log_sizes`). The broker's log,
`mpbroker ctl status`, the readiness check, `mpbroker top` and the console all use these sentences.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from typing import Final

from mpbroker.config.broker import ROOM_BYTES as ROOM_BYTES
from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.log_sizes import DirSeen

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Producers give up after request.timeout.ms, 30 s by default. A sync of a busy disk may take some seconds.
SLOW_S: Final = 10.0


def refusal_text(error: int, room: Iterable[tuple[str, str]], delete_delay_ms: int) -> str:
    """Return why produces are refused (`error` is an errno), and what the operator can do.

    `room` has (log directory, free space as text) of each log directory concerned.
    """
    until = "until there is room" if error in NO_ROOM else "until this passes"
    return (
        f"{os.strerror(error)}: produces are refused {until}; reads continue (groups may be unable to "
        f"join or commit), and nothing acknowledged is lost"
        f"{room_advice(error, room, delete_delay_ms)}"
    )


def room_advice(error: int, room: Iterable[tuple[str, str]], delete_delay_ms: int) -> str:
    """Return what the operator can do about the errno `error`; "" if there is no special advice."""
    if error in (errno.EMFILE, errno.ENFILE):
        return ". Raise the limit of open files (ulimit -n, LimitNOFILE), or use fewer partitions at once"
    if error not in NO_ROOM:
        return ""
    listed = ", ".join(f"{path} {free}" for path, free in room)
    return (
        f" (free: {listed}). Make the file system larger, delete topics or shorten their retention; what "
        f"is deleted gives its space back after file.delete.delay.ms (of topics that do not set it "
        f"{delete_delay_ms} ms)"
    )


def mebibytes(free_bytes: int) -> str:
    return f"{free_bytes >> 20} MiB"


def disk_problems(config: BrokerConfig, dirs: Iterable[DirSeen]) -> list[str]:
    """Return a sentence for each present problem of these log directories."""
    working = [one for one in dirs if not one.failed]
    found = [_offline_text(one) for one in dirs if one.failed]
    refusing: dict[int, list[tuple[str, str]]] = {}
    for one in working:
        if one.error:
            free = "unknown" if one.usable_bytes is None else mebibytes(one.usable_bytes)
            refusing.setdefault(one.error, []).append((one.name, free))
    delay_ms = config.log_segment_delete_delay_ms
    found += [refusal_text(error, room, delay_ms) for error, room in refusing.items()]
    # A commit round syncs files of several directories: it does not show which of them it waits for.
    if slow := [one for one in working if _waits_s(one) >= SLOW_S]:
        found.append(
            f"the disk of {' or '.join(one.name for one in slow)} has not finished a sync for "
            f"{max(map(_waits_s, slow)):.0f} s: producers wait. Check the disk (dmesg, iostat -x) and "
            "its other users"
        )
    return found


def state_of(one: DirSeen) -> str:
    """Return the state of a log directory as `mpbroker ctl status` prints it, such as `online`."""
    if one.failed:
        return "offline"
    return "refuses produces" if one.error else "slow" if _waits_s(one) >= SLOW_S else "online"


def _waits_s(one: DirSeen) -> float:
    return (time.monotonic_ns() - one.waits_since_ns) / 1e9 if one.waits_since_ns else 0.0


def _offline_text(one: DirSeen) -> str:
    why = f" ({os.strerror(one.error)})" if one.error else ""
    return (
        f"log directory {one.name} is offline{why}: its partitions can be neither read nor written. Mend or "
        "replace the disk, then restart the broker"
    )
