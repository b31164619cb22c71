"""The token of the web console: a file in the runtime directory that the broker's user alone can read.

The supervisor makes the token when it starts and removes it when it ends, so a restarted exporter uses the
same token. The console requires this token of a client. `mpbroker ctl console` prints a URL that has it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

NAME = "console.token"
TOKEN_BYTES = 24


def make(directory: Path) -> None:
    """Write a new token into the runtime directory. Raises OSError."""
    path = directory / NAME
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES))


def read(directory: Path) -> str:
    """Return the token in the runtime directory, "" without one. Raises OSError if it cannot be read."""
    try:
        return (directory / NAME).read_text("ascii")
    except FileNotFoundError:
        return ""


def remove(directory: Path) -> None:
    (directory / NAME).unlink(missing_ok=True)
