"""The process that `Broker` starts: a supervisor like that of `mpbroker serve`, owned by a test's process.

It reads a `ServeRequest` from standard input, because other users can read a command line. When its owner
process has ended, for any reason and at any time, the broker stops and removes the directories that it made.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import sys
from pathlib import Path

import msgspec

from mpbroker.config.keys import ConfigError
from mpbroker.config.load import Flag, load

EXIT_MISCONFIGURED = 2
EXIT_WITHOUT_OWNER = 3


class ServeRequest(msgspec.Struct):
    """A request to run a broker. `owner` is the pid of the parent process.

    `own_directories` are made if they do not exist, and removed when the owner has ended.
    """

    owner: int
    settings: dict[str, str]
    own_directories: list[str] = []


def main() -> None:
    """Run the broker that a request on standard input describes; exit with the broker's status."""
    given = sys.stdin.buffer.read()
    if not given:
        sys.exit(EXIT_WITHOUT_OWNER)
    request = msgspec.json.decode(given, type=ServeRequest)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    owner_fd = -1
    # The pid may be another process's by now, unless it is still that of our parent.
    with contextlib.suppress(ProcessLookupError):
        owner_fd = os.pidfd_open(request.owner)
    if owner_fd < 0 or os.getppid() != request.owner:
        _remove(request)
        sys.exit(EXIT_WITHOUT_OWNER)
    try:
        for directory in request.own_directories:
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        sys.exit(_serve(request, owner_fd))
    finally:
        if _has_ended(owner_fd):
            _remove(request)


def _serve(request: ServeRequest, owner_fd: int) -> int:
    flags = [Flag(f"settings[{key!r}]", key, value) for key, value in request.settings.items()]
    try:
        loaded = load(flags=flags)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    # Off until the supervisor forks: imports leave no garbage.
    gc.disable()
    from mpbroker.supervisor import logs
    from mpbroker.supervisor.main import run

    return run(loaded.config, owner_fd=owner_fd, log_format=logs.wanted_format(os.environ))


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _remove(request: ServeRequest) -> None:
    for directory in request.own_directories:
        shutil.rmtree(directory, ignore_errors=True)
