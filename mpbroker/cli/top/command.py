"""`mpbroker top`: chooses between the terminal and plain text, and names what the terminal lacks."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.top.columns import GROUPS, VIEWS, View
from mpbroker.cli.top.watch import BrokerFlags, Watch

_INSTALL = "pip install 'mpbroker-server[top]'"


def run(wanted: BrokerFlags, interval_s: float, view: str | None, *, once: bool, as_json: bool) -> None:
    """Show the broker. Raises CliError."""
    chosen = _view(view)
    if once or as_json:
        from mpbroker.cli.top import plain

        views = VIEWS if chosen is None else (chosen,)
        model = plain.seen_once(wanted, interval_s, with_groups=GROUPS in views)
        plain.show(model, views, as_json=as_json)
        return
    # Textual draws on standard error.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise CliError(
            "mpbroker top draws on a terminal, and this is none: add --once, or --json", USAGE_ERROR
        )
    if find_spec("textual") is None:
        raise CliError(f"mpbroker top needs Textual, which is not installed: {_INSTALL}; or add --once")
    watch = Watch(wanted)
    first = watch.first()
    from mpbroker.cli.top.app import TopApp

    TopApp(watch, wanted, first, interval_s=interval_s, view=chosen or VIEWS[0]).run()


def _view(name: str | None) -> View | None:
    if name is None:
        return None
    found = next((view for view in VIEWS if view.key == name), None)
    if found is None:
        raise CliError(f"--view {name!r} is none of {', '.join(view.key for view in VIEWS)}", USAGE_ERROR)
    return found
