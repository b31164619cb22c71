"""`mpbroker ctl`: the supervisor's answers, printed."""

from typing import Any

from mpbroker.cli.control import ControlClient
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.output import print_document, print_json


def status(log_dirs: str | None, *, as_json: bool) -> None:
    """What the supervisor says of itself and its processes."""
    _show(ControlClient.find(log_dirs).call("status"), as_json=as_json)


def resize(log_dirs: str | None, handlers: int | None, processors: int | None, *, as_json: bool) -> None:
    """Asks for other numbers of workers; what is not given stays as it is."""
    wanted = {"handlers": handlers, "processors": processors}
    given = {name: number for name, number in wanted.items() if number is not None}
    if not given:
        raise CliError("nothing to resize: give --handlers N, --processors N or both", USAGE_ERROR)
    _show(ControlClient.find(log_dirs).call("resize", **given), as_json=as_json)


def _show(reply: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(reply)
    else:
        print_document(reply)
