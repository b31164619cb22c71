"""`mpbroker doctor`: things missing on this host, and advice."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mpbroker.cli.errors import RUNTIME_ERROR
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.text.output import counted, print_json
from spark_integration.check import PROBLEM, Check

_PIPED_COLUMNS = 10_000
_NARROWEST = 40
Flags = Mapping[str, str | None]


def host(config_file: Path | None, overrides: Sequence[str], flags: Flags, *, as_json: bool) -> None:
    """Print the checks for a broker with these settings. The exit code is 1 if there is a problem."""
    from mpbroker.cli.doctor import all_checks
    from mpbroker.cli.host.serve import read_config

    config = read_config(config_file, overrides, flags).config
    found = report(all_checks.checks(config), as_json=as_json)
    _end(found, "a broker with these settings can run here", as_json=as_json)


def log_dirs_of(broker: LocalBroker) -> str:
    """Return the log directories of a running broker as a value for --log-dirs. Raises CliError."""
    return ",".join(one["log_dir"] for one in broker.control().call("status")["log_dirs"])


def spark(log_dirs: str | None, *, as_json: bool) -> None:
    """Print the checks for Spark. The exit code is 1 if there is a problem."""
    from mpbroker.spark import examine

    names = [name for name in (part.strip() for part in (log_dirs or "").split(",")) if name]
    found = report(examine(names), as_json=as_json)
    _end(found, "Spark can read topics from here", as_json=as_json)


def _end(problems: int, otherwise: str, *, as_json: bool) -> None:
    """Print the number of problems, or `otherwise` if there are none. Exit with 1 if there are any."""
    if not as_json:
        told = counted(problems, "problem") if problems else f"No problems: {otherwise}"
        sys.stdout.write(f"{told}.\n")
    if problems:
        raise SystemExit(RUNTIME_ERROR)


def report(checks: Iterable[Check], *, as_json: bool) -> int:
    """Print each check as it is done, and return how many problems there are."""
    if as_json:
        done = list(checks)
        rows = [
            {"name": one.name, "state": one.state, "found": one.found, "advice": one.advice or None}
            for one in done
        ]
        problems = sum(one.state == PROBLEM for one in done)
        print_json({"problems": problems, "checks": rows})
        return problems
    problems = 0
    for one in checks:
        problems += one.state == PROBLEM
        _print(one)
    return problems


def _print(check: Check) -> None:
    """Print a check's state, name and finding, and its advice below. Lines are folded only on a terminal."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_COLUMNS
    head = f"{check.state:<8} {check.name}: "
    for first, text in ((head, check.found), (" " * 9 + "→ ", check.advice)):
        if text:
            lines = textwrap.wrap(
                text,
                max(columns, _NARROWEST),
                initial_indent=first,
                subsequent_indent=" " * 11,
                break_long_words=False,
                break_on_hyphens=False,
            )
            sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
