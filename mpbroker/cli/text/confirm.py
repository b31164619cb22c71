"""Questions before commands that cannot be undone, for people at a terminal.

Scripts are not asked. They need --yes for commands that lose records for good.
"""

from __future__ import annotations

import sys

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.protocol.printable import printable


def confirm(question: str, *, is_sure: bool, scripts_need_yes: bool = False) -> None:
    """Ask a question on the terminal, and raise CliError if the answer is not yes. `is_sure`: do not ask.

    Without a terminal nothing is asked; then raise CliError only if `scripts_need_yes`.
    """
    if is_sure:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if scripts_need_yes:
            raise CliError(f"{printable(question)} It needs a terminal to ask on: add --yes", USAGE_ERROR)
        return
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")
