"""Questions before what cannot be undone, to people at a terminal only: scripts are not asked."""

from __future__ import annotations

import sys

from mpbroker.cli.errors import CliError
from mpbroker.protocol.printable import printable


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask, unless the caller is sure (--yes) or nobody is there to answer.

    Raises CliError if the answer is not yes.
    """
    if is_sure or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")
