"""The flags of `mpbroker service`; what its commands do is in `service`."""

from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import DryRun, Json, Yes

service_app = App(no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Only write files, below this directory, as for systemctl: for packages and images.",
        readable=False,
    ),
]


@service_app.command("install")
def service_install(
    now: Annotated[
        bool, typer.Option("--now", help="Start it, and with each boot (systemctl enable --now).")
    ] = False,
    root: Root = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make this installation a service of systemd.

    Creates the user mpbroker, /etc/mpbroker/server.properties unless it exists, the log directories it names,
    and the unit. Repeat it after a failure, after a change of log.dirs, or from another installation. With
    --root, owners are not set.
    """
    from mpbroker.cli.host import service

    service.install(service.Host(root), is_dry=dry_run, is_sure=yes, starts=now, as_json=json)


@service_app.command("uninstall")
def service_uninstall(
    root: Root = None, dry_run: DryRun = False, yes: Yes = False, json: Json = False
) -> None:
    """Stop the service and remove its unit.

    Keeps the log directories, the settings and the user mpbroker.
    """
    from mpbroker.cli.host import service

    service.uninstall(service.Host(root), is_dry=dry_run, is_sure=yes, as_json=json)
