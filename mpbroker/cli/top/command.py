"""`mpbroker top`: starts the display on a terminal, which needs Textual, or prints tables or JSON once."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

from mpbroker.cli.broker_flags import LocalBootstrap, LogDirs, Port
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import CommandConfig, flag, option
from mpbroker.cli.text.numbers import SECONDS
from mpbroker.cli.top.columns import GROUPS, VIEWS, View
from mpbroker.cli.top.watch import BrokerFlags, Watch
from mpbroker.config.extras import pip_install


def top(
    log_dirs: LogDirs = None,
    port: Port = None,
    bootstrap: LocalBootstrap = None,
    command_config: CommandConfig = None,
    view: Annotated[
        str | None, option("--view", "NAME", "processes, requests, memory, partitions or groups.")
    ] = None,
    interval: Annotated[
        float, option("--interval", "SECONDS", "Time between samples.", min=0.1, callback=SECONDS)
    ] = 1.0,
    once: Annotated[bool, flag("--once", "Print tables of now and exit.")] = False,
    json: Annotated[bool, flag("--json", "With or without --once: JSON of now.")] = False,
) -> None:
    """Watch a broker on this host, or show a stopped one.

    The view is live; for a stopped broker it shows the directories. With --log-dirs, -b is the address to
    ask for groups.
    """
    wanted, chosen = BrokerFlags(log_dirs, bootstrap, command_config, port), _view(view)
    if once or json:
        from mpbroker.cli.top import plain

        views = VIEWS if chosen is None else (chosen,)
        model = plain.seen_once(wanted, interval, with_groups=GROUPS in views)
        plain.show(model, views, as_json=json)
        return
    # Textual draws on standard error.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise CliError("mpbroker top needs a terminal to draw on: add --once, or --json", USAGE_ERROR)
    if find_spec("textual") is None:
        install = pip_install("top")
        raise CliError(f"mpbroker top needs Textual, which is not installed: {install}; or add --once")
    watch = Watch(wanted)
    first = watch.first()
    from mpbroker.cli.top.app import TopApp

    TopApp(watch, wanted, first, interval_s=interval, view=chosen or VIEWS[0]).run()


def _view(name: str | None) -> View | None:
    if name is None:
        return None
    found = next((view for view in VIEWS if view.key == name), None)
    if found is None:
        raise CliError(f"--view {name!r} is none of {', '.join(view.key for view in VIEWS)}", USAGE_ERROR)
    return found
