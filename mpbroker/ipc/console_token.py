"""The token of the web console: a file in the runtime directory that the broker's user alone can read.

The supervisor makes the token at its start and removes it at its end, so a restarted exporter has the same
token. The console compares a client's token with it; `mpbroker ctl console` prints it as a part of the URL.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

NAME = "console.token"
TOKEN_BYTES = 24


def make(directory: Path) -> None:
    """Make a new token. Raises OSError."""
    path = directory / NAME
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES))


def read(directory: Path) -> str:
    """Return the token, "" if there is none. Raises OSError for a file that cannot be read."""
    try:
        return (directory / NAME).read_text("ascii")
    except FileNotFoundError:
        return ""


def remove(directory: Path) -> None:
    (directory / NAME).unlink(missing_ok=True)
