"""Names a broker's directories after the process that owns them, and removes directories without an owner.

A broker removes its directories when its owner has ended. If the owner was killed while the broker did not
run, or together with the broker, the directories remain until the same user starts another broker.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from shm.region import process_start_ticks

PREFIX = "mpbroker-testing"
# A pid and a start name a process within its namespace. Containers may share a directory.
_NAME = re.compile(rf"{PREFIX}-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]+")


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def new_name() -> str:
    """Return a unique name for a directory, with the pid and start time of this process, its owner."""
    pid = os.getpid()
    return f"{PREFIX}-{_namespace()}-{pid}-{process_start_ticks(pid)}-{secrets.token_hex(6)}"


def has_lost_its_owner(name: str) -> bool:
    """Return whether the owner in a directory's name has ended; False if it is in another PID namespace."""
    found = _NAME.fullmatch(name)
    if found is None or int(found["namespace"]) != _namespace():
        return False
    try:
        return process_start_ticks(int(found["pid"])) != int(found["start"])
    except (FileNotFoundError, ProcessLookupError):
        return True


def sweep(places: Iterable[Path]) -> None:
    """Remove the directories in `places` that belong to this user and whose owner process has ended."""
    for place in places:
        for path in place.glob(f"{PREFIX}-*"):
            if has_lost_its_owner(path.name) and _is_ours(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False
