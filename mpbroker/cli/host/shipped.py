"""Files that come with the commands: pages of the docs, units of systemd, dashboard and alerts.

A git clone has them in the source tree. A wheel has copies below `mpbroker/share`, under the same names.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2]
SHARE = "share"


def directory() -> Path:
    """Return the directory that has docs/ and ops/."""
    packaged = PACKAGE / SHARE
    return packaged if packaged.is_dir() else PACKAGE.parent


def text(name: str) -> str:
    """Return the text of a file, such as ops/systemd/mpbroker.service."""
    return (directory() / name).read_text("utf-8")
