"""`mpbroker ctl metrics`: reads the broker's public region (shared memory), without asking a process.

This works while the broker does not answer, and after a crash as long as the region's file exists.
"""

import time
from pathlib import Path

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.text.output import print_groups, print_json
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import catalogue, snapshot
from mpbroker.observe.live import attach


def show(
    here: LocalBroker, patterns: list[str], interval_s: float, file: Path | None, *, as_json: bool
) -> None:
    public = attach(file.resolve() if file else here.control().checked(PUBLIC_NAME))
    before = None
    if interval_s > 0 and public.owner_is_alive():
        before = snapshot.take(public)
        time.sleep(interval_s)
    now = snapshot.take(public)
    found = catalogue.beans(now, before, catalogue.matcher(patterns))
    if patterns and not found:
        raise CliError(f"no metric's name contains {' or '.join(repr(one) for one in patterns)}")
    if as_json:
        print_json({bean.name: bean.attributes for bean in found})
        return
    if not now.alive:
        print(f"the broker (pid {public.owner_pid}) does not run; these are its last counts")
    print_groups(
        (bean.name, {name: _number(value) for name, value in bean.attributes.items()}) for bean in found
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}"
