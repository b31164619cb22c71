"""Questions before what cannot be undone, to people at a terminal only.

Scripts are not asked. What loses records for good, they have to want with --yes.
"""

from __future__ import annotations

import sys

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.protocol.printable import printable


def confirm(question: str, *, is_sure: bool, scripts_need_yes: bool = False) -> None:
    """Ask, unless the caller is sure (--yes) or nobody is there to answer.

    Raises CliError if the answer is not yes, or, with `scripts_need_yes`, if nobody is there.
    """
    if is_sure:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if scripts_need_yes:
            raise CliError(f"{printable(question)} Nobody is there to answer: say --yes", USAGE_ERROR)
        return
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")
