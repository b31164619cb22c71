"""The token of the web console: a file in the runtime directory that the broker's user alone can read.

The supervisor makes it at each start and removes it at the end, so that a successor of the exporter has the
same one. The console compares with it, and `mpbroker ctl console` prints it as a part of the page's address.
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
