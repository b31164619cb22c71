"""Finds a broker on this host by a port that it listens on, through what the kernel says of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mpbroker.cli.errors import CliError
from mpbroker.ipc.pointer import CONTROL_NAME, PUBLIC_NAME

_LISTENING: Final = "0A"


def runtime_dir_of(port: int) -> Path:
    """Return the runtime directory of the broker that listens on a TCP port of this host. Raises CliError."""
    sockets = set(_listening(port))
    if not sockets:
        raise CliError(f"nobody listens on port {port} of this host; start a broker with mpbroker serve")
    for process in _processes():
        if sockets & set(_open_sockets(process)):
            for directory in _maps(process):
                if (directory / CONTROL_NAME).exists():
                    return directory
    raise CliError(
        f"who listens on port {port} is no mpbroker of this user's; name its data directory with --log-dirs, "
        "or run this as the broker's user"
    )


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on the port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _open_sockets(process: Path) -> Iterator[str]:
    """Yield the inodes of a process' sockets; none if it is another user's, or has gone."""
    try:
        for fd in os.scandir(process / "fd"):
            target = str(Path(fd.path).readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return


def _maps(process: Path) -> Iterator[Path]:
    """Yield the directories of the public regions that a process has mapped."""
    try:
        lines = (process / "maps").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    paths = {Path(fields[5]) for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    yield from (path.parent for path in paths if path.name == PUBLIC_NAME)
