"""The `mpbroker` program. A plain `serve` does not import Typer, which a broker would keep in memory."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from mpbroker.cli.ending import end, exit_code
from mpbroker.cli.errors import INTERRUPTED, explaining_openssl
from mpbroker.cli.serve_flags import ServeFlags, parsed
from mpbroker.cli.text import standard_output


def main() -> NoReturn:
    """Run the `mpbroker` command."""
    flags = None if "_MPBROKER_COMPLETE" in os.environ else parsed(sys.argv[1:])
    if flags is None:
        from mpbroker.cli.main import main as run_with_typer

        run_with_typer()
    standard_output.name_failures()
    try:
        end(exit_code(lambda: _serve(flags)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _serve(given: ServeFlags) -> NoReturn:
    with explaining_openssl():
        from mpbroker.cli.host.serve import serve

    sys.exit(serve(**given._asdict()))
