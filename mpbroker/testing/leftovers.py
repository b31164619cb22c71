"""Names a broker's directories by the process that owns them, and removes directories whose owner has ended.

A broker removes its directories when its owner has ended. If the owner was killed while the broker did not
run, or both in one moment, they stay until the same user starts another broker.
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
    """Return a unique name for directories that this process owns."""
    pid = os.getpid()
    return f"{PREFIX}-{_namespace()}-{pid}-{process_start_ticks(pid)}-{secrets.token_hex(6)}"


def has_lost_its_owner(name: str) -> bool:
    """Return whether a directory's owner has ended; False if another namespace or version made it."""
    found = _NAME.fullmatch(name)
    if found is None or int(found["namespace"]) != _namespace():
        return False
    try:
        return process_start_ticks(int(found["pid"])) != int(found["start"])
    except (FileNotFoundError, ProcessLookupError):
        return True


def sweep(places: Iterable[Path]) -> None:
    """Remove the directories in these places that are this user's and have lost their owner."""
    for place in places:
        for path in place.glob(f"{PREFIX}-*"):
            if has_lost_its_owner(path.name) and _is_ours(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False
